"""What the offline model answers to a request of the Messages API, and what it refuses as the API would."""

import json
import re
from hashlib import sha256
from typing import Any

from local.model_choice import choose
from local.model_rules import NOTE, short
from local.model_schema import fill

Json = dict[str, Any]


def answer(request: Json) -> Json:
    """The message that the rules give to a request: a tool call, or JSON where a schema is given, or prose.

    A tool is called once in a conversation, when the text names it or `tool_choice` demands one; then the answer is
    made from what it gave.
    """
    blocks = [block for message in request["messages"] for block in _blocks(message)]
    said = "\n".join(
        block["text"]
        for message in request["messages"]
        if message["role"] == "user"
        for block in _blocks(message)
        if block["type"] == "text"
    )
    results = [_plain(block.get("content")) for block in blocks if block["type"] == "tool_result"]
    called = any(block["type"] == "tool_use" for block in blocks)
    if not called and (tool := _tool(request, said)):
        call = {"type": "tool_use", "id": f"toolu_offline_{_digest(request)}", "name": tool["name"]}
        call["input"] = fill(tool.get("input_schema", {"type": "object"}), said)
        return message(request, [call], "tool_use")
    if schema := _output_schema(request):
        filled = fill(schema, "\n".join([said, *results]))
        filled |= _chosen(schema, _plain(request.get("system")), said)
        text = json.dumps(filled, ensure_ascii=False)
    elif results:
        text = f"The tool answered: {short(results[-1], 500)}\n{NOTE}"
    else:
        text = f"You wrote: {short(said, 200)}\n{NOTE}"
    most = request["max_tokens"] * 4
    return message(request, text[:most], "end_turn" if len(text) <= most else "max_tokens")


def message(request: Json, content: str | list[Json], stop_reason: str = "end_turn") -> Json:
    """A whole message of the API. Tokens are counted as one for four characters, which is an estimate."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    asked = {name: request.get(name) for name in ("system", "messages", "tools")}
    return {
        "id": f"msg_offline_{_digest(request)}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "offline"),
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": _tokens(asked),
            "output_tokens": _tokens([b.get("text", b.get("input")) for b in blocks]),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def _blocks(message: Json) -> list[Json]:
    content = message.get("content", "")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _plain(content: Any) -> str:
    return "\n".join(block.get("text", "") for block in _blocks({"content": content or ""}))


def _tool(request: Json, said: str) -> Json | None:
    """The tool to call, if one is: the one demanded, else the first that the text has a word of the name of."""
    choice = request.get("tool_choice") or {"type": "auto"}
    tools: list[Json] = request.get("tools") or []
    match choice["type"]:
        case "none":
            tools = []
        case "tool":
            tools = [tool for tool in tools if tool["name"] == choice["name"]]
        case "auto":
            words = set(re.findall(r"[a-z]{4,}", said.lower()))
            tools = [tool for tool in tools if words & set(re.split(r"[_-]", tool["name"].lower()))]
    return next(iter(tools), None)


def _chosen(schema: Json, instructions: str, said: str) -> Json:
    """The fields of an answer that choose among labels which the instructions describe, and how sure that is."""
    fields: Json = schema.get("properties", {})
    found = {
        name: chosen
        for name, field in fields.items()
        if "enum" in field and (chosen := choose(name, field["enum"], instructions, said))
    }
    values: Json = {name: label for name, (label, _) in found.items()}
    if found and "confidence" in fields:
        values["confidence"] = min(sure for _, sure in found.values())
    return values


def _output_schema(request: Json) -> Json | None:
    schema: Json | None = ((request.get("output_config") or {}).get("format") or {}).get("schema")
    return schema


def fault(request: Any) -> str | None:
    """What the API would refuse a request for, as a sentence; None when nothing."""
    if not isinstance(request, dict):
        return "the body is not a JSON object"
    for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
        if not isinstance(request.get(name), kind) or not request[name]:
            return f"{name}: missing or of the wrong type"
    return _conversation_fault(request["messages"]) or _schema_fault(_output_schema(request))


def _conversation_fault(messages: list[Json]) -> str | None:
    """Each tool call has its result at the head of the next message, and each result its call in the one before."""
    owed: list[str] = []
    for message in messages:
        blocks = _blocks(message)
        paid = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(paid) != sorted(owed) or any(
            b["type"] != "tool_result" for b in blocks[: len(owed)]
        ):
            return "messages: tool calls and tool results do not match"
        owed = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return "messages: tool calls without results" if owed else None


def _schema_fault(schema: Any) -> str | None:
    """What the service does not compile: bounds, open objects, definitions that hold themselves."""
    if isinstance(schema, list):
        return next((found for item in schema if (found := _schema_fault(item))), None)
    if not isinstance(schema, dict):
        return None
    bounds = sorted(_BOUNDS & schema.keys())
    if bounds:
        return f"output_config.format.schema: {bounds[0]} is not supported"
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return "output_config.format.schema: additionalProperties must be false"
    for name, member in schema.items():
        members = list(member.values()) if name in ("properties", "$defs") else member
        if name == "$defs":
            for own, definition in member.items():
                if f'"$ref": "#/$defs/{own}"' in json.dumps(definition):
                    return "output_config.format.schema: recursive definitions are not supported"
        if found := _schema_fault(members):
            return found
    return None


_BOUNDS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
}


def _tokens(value: Any) -> int:
    return -(-len(json.dumps(value, ensure_ascii=False)) // 4)


def _digest(request: Json) -> str:
    """The same for the same question, streamed or not."""
    asked = {name: value for name, value in request.items() if name != "stream"}
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
