"""What the service compiles as the schema of an answer: a subset of JSON Schema, held before anything is asked.

A schema outside of it would be refused with every request, and the work with it. Bounds are no matter: the SDK moves
them into descriptions.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from stafette.core.errors import PermanentError

# Of one schema, definitions counted wherever they are used.
MOST_OPTIONAL = 24
MOST_UNIONS = 16
MOST_BYTES = 16_384

Json = dict[str, Any]


class SchemaError(PermanentError):
    """The schema of an answer is none that the service compiles."""

    reason = "schema_unsupported"


def check_schema(answer: type[BaseModel]) -> None:
    """Looks at a model before it is asked for.

    Raises:
        SchemaError: what is wrong with it, field by field.
    """
    if faults := faults_of(answer.model_json_schema()):
        raise SchemaError(f"{answer.__name__}: {'; '.join(faults)}")


def faults_of(schema: Json) -> list[str]:
    """What the service does not compile, each with the field that it is about."""
    seen = _Seen(schema.get("$defs", {}))
    faults = list(seen.look(schema, "", ()))
    if _resolved(schema, seen.definitions).get("type") != "object":
        faults.append("it is no object")
    for what, number, most in (
        ("fields that may be left out", seen.optional, MOST_OPTIONAL),
        ("unions", seen.unions, MOST_UNIONS),
        ("bytes", len(json.dumps(schema)), MOST_BYTES),
    ):
        if number > most:
            faults.append(f"{number} {what}; {most} are the most")
    return faults


@dataclass
class _Seen:
    """One walk over a schema, and what it counted."""

    definitions: Json
    optional: int = 0
    unions: int = 0

    def look(self, schema: Any, place: str, within: tuple[str, ...]) -> Iterator[str]:
        """The faults of a schema and of all that is in it; `within` names the definitions that it stands in."""
        where = place or "it"
        name = schema["$ref"].removeprefix("#/$defs/") if "$ref" in schema else None
        if name is not None:
            if name in within:
                yield f"{where}: {name} holds itself"
            else:
                yield from self.look(self.definitions[name], place, (*within, name))
            return
        options = schema.get("anyOf") or schema.get("oneOf") or ()
        self.unions += bool(options) or isinstance(schema.get("type"), list)
        for option in (*options, *schema.get("allOf", ())):
            yield from self.look(option, place, within)
        match schema.get("type"):
            case "object":
                yield from self._object(schema, place, within)
            case "array" if "items" in schema:
                yield from self.look(schema["items"], f"{place}[]", within)
            case "array":
                yield f"{where}: a list whose items have no one type"
            case None if not {"anyOf", "oneOf", "allOf", "enum", "const"} & schema.keys():
                yield f"{where}: any value"

    def _object(self, schema: Json, place: str, within: tuple[str, ...]) -> Iterator[str]:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties", False) is not False:
            yield f"{place or 'it'}: an object of any keys"
        self.optional += len(properties.keys() - set(schema.get("required", ())))
        for name, member in properties.items():
            yield from self.look(member, f"{place}.{name}".lstrip("."), within)


def _resolved(schema: Json, definitions: Json) -> Json:
    return definitions[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema
