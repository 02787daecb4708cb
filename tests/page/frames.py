"""The frames of the native protocol as TypeScript types, made from the schemas that docs/schema publishes.

The page's JSDoc names them `Frames.<name of the schema>`; a field that the schemas do not have is a type error there.
"""

import json
from pathlib import Path
from typing import Any

from tests.checks.source import ROOT

_SCHEMAS = {"FromServer": "native-server.schema.json", "FromClient": "native-client.schema.json"}
_PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def declarations(schemas: Path = ROOT / "docs/schema") -> str:
    """A namespace with a type for each definition of both schemas, and one for any frame of either side."""
    types: dict[str, str] = {}
    for name, file in _SCHEMAS.items():
        schema = json.loads((schemas / file).read_text())
        made = {definition: _type(body) for definition, body in schema["$defs"].items()} | {name: _type(schema)}
        for own, text in made.items():
            if types.setdefault(own, text) != text:
                raise ValueError(f"{own} means one thing in {file} and another in the schema before it")
    lines = [f"  type {name} = {text};" for name, text in types.items()]
    return "\n".join(["declare namespace Frames {", *lines, "}", ""])


def _type(schema: dict[str, Any]) -> str:
    """The type of what a schema admits, apart from lengths, ranges and patterns."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix("#/$defs/")
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    choices = schema.get("oneOf", schema.get("anyOf"))
    if choices is not None:
        return " | ".join(map(_type, choices))
    if "type" not in schema:
        return "unknown"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " | ".join(_of_kind(kind, schema) for kind in kinds)


def _of_kind(kind: str, schema: dict[str, Any]) -> str:
    if kind == "array":
        return f"({_type(schema['items'])})[]"
    if kind != "object":
        return _PRIMITIVES[kind]
    required = schema.get("required", ())
    fields = [
        f"{json.dumps(name)}{'' if name in required else '?'}: {_type(body)};"
        for name, body in schema.get("properties", {}).items()
    ]
    if schema.get("additionalProperties", True):
        fields.append("[key: string]: unknown;")
    return f"{{ {' '.join(fields)} }}"
