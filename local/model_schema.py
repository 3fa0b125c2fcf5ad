"""The smallest JSON that fits a JSON Schema, for the offline model: fixed rules fill it, nothing thinks."""

import re
from typing import Any

from local.model_rules import FIELDS

Json = dict[str, Any]


def fill(schema: Json, text: str, name: str = "", root: Json | None = None) -> Any:
    """The smallest value that fits a JSON Schema; fields known by name follow the rules above."""
    root = schema if root is None else root
    schema = _resolved(schema, root)
    if name in FIELDS and _fits(value := FIELDS[name](text), schema, root):
        return value
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        nothing = any(_resolved(option, root).get("type") == "null" for option in options)
        return None if nothing else fill(options[0], text, name, root)
    at_least = _at_least(schema)
    match _type(schema):
        case "object":
            wanted = {*schema.get("required", ()), *(FIELDS.keys() & schema.get("properties", {}))}
            return {
                key: fill(member, text, key, root)
                for key, member in schema.get("properties", {}).items()
                if key in wanted
            }
        case "array":
            return [fill(schema.get("items", {}), text, name, root) for _ in range(int(at_least))]
        case "integer" | "number" as kind:
            return int(at_least) if kind == "integer" else float(at_least)
        case "boolean":
            return False
        case "null":
            return None
    return _TEXTS.get(schema.get("format", ""), "offline").ljust(int(at_least), ".")


_TEXTS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "offline@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _resolved(schema: Json, root: Json) -> Json:
    while "$ref" in schema:
        found: Any = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            found = found[step]
        schema = found
    for part in schema.get("allOf", ()):
        schema = {**_resolved(part, root), **{k: v for k, v in schema.items() if k != "allOf"}}
    return schema


def _type(schema: Json) -> str:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return str(kind if isinstance(kind, str) else kind[0])


def _at_least(schema: Json) -> float:
    """The lower bound, also where the SDK has moved it into the description: `{minimum: 1}`."""
    for name, over in (("minimum", 0), ("minItems", 0), ("minLength", 0), ("exclusiveMinimum", 1)):
        if name in schema:
            return float(schema[name] + over)
        if found := re.search(rf"\b{name}: (-?[\d.]+)", schema.get("description", "")):
            return float(found[1]) + over
    return 0


def _fits(value: Any, schema: Json, root: Json) -> bool:
    schema = _resolved(schema, root)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return any(_fits(value, option, root) for option in options)
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds: tuple[type, ...] = {
        "boolean": (bool,), "number": (float,), "string": (str,), "null": (type(None),)
    }.get(_type(schema), ())  # fmt: skip
    return isinstance(value, kinds)
