"""docs/configuration.md, made from the models: `python -m tests.backend_kit.settings.reference` writes it."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentic_backend.settings import AgenticSettings, _origin
from backend_kit.settings import Section
from backend_kit.settings.base import RootSection, http_url
from backend_kit.settings.load import nested_section
from knowledge_flow_backend.settings import KnowledgeFlowSettings

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"

INTRODUCTION = """# Configuration

Each service reads one YAML file, which `CONFIG_FILE` names, and a `.env` file, if `ENV_FILE` names one (`NAME=value`
lines; a variable of the environment wins over the same one there). The files that come with Turnwise:

| file | for |
|---|---|
| `config/agentic/configuration.yaml`, `config/knowledge_flow/configuration.yaml` | `make run`: one machine, no users |
| `…/configuration_bench.yaml` | `make bench`: mock model, embedded Postgres, no limits per user |
| `knowledge_flow/configuration_opensearch.yaml` | `make opensearch` beside `make run`: passages in OpenSearch |
| `…/configuration_prod.yaml` | a cluster with users: copy it and put your names in |

The settings are read once and never change while the service runs. A file that is wrong ends the start with exit
code 2 and one line on stderr, which never holds a value:

```
config/agentic/configuration.yaml:12: limits.max_trns: unknown key (did you mean "max_turns"?)
```

A key that is there twice, of the wrong type, unknown, or missing is refused. Keys that files of Fred carry and that
have no effect here ([contract](contract.md#configuration-files)) are accepted, and one line in the log names them.
Types are exact: `"8000"` is not a number, `1` is not `true`. **0 means off** where a key is a limit. Units are in the
names; where a compatible name has none, the meaning says it. A default of *required* has none.

This page is made from the models by `python -m tests.backend_kit.settings.reference`; a test keeps it so.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRODUCTION,
            *_service("Agentic service", AgenticSettings),
            *_service("Knowledge flow", KnowledgeFlowSettings),
        ]
    )


def _service(title: str, model: type[RootSection]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| variable of the environment | key it sets |\n|---|---|"
    for name, keys in model.env_overrides.items():
        yield f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} |"
    for naming, named in model.env_named.items():
        yield f"| the one that `{naming}` names | `{named}` |"
    yield f"\nWithout effect: {', '.join(f'`{key}`' for key in _ignored(model, ''))}.\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    yield from _rows(model, "")
    yield ""


def _ignored(model: type[Section], prefix: str) -> Iterator[str]:
    yield from (prefix + key for key in model.ignored_keys)
    for name, field in model.model_fields.items():
        nested = nested_section(field.annotation)
        if nested is not None:
            yield from _ignored(nested, f"{prefix}{name}{_index(field)}.")


def _rows(model: type[Section], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        nested = nested_section(field.annotation)
        if nested is None:
            yield f"| `{prefix}{name}` | {_type(field)} | {_default(field)} | {meaning(model, name)} |"
            continue
        if field.is_required() or field.default in (None, ()):
            doc = inspect.getdoc(nested) or ""
            kind = "list" if _index(field) else "section"
            yield f"| `{prefix}{name}` | {kind} | {_default(field)} | {doc.splitlines()[0]} |"
        yield from _rows(nested, f"{prefix}{name}{_index(field)}.")


def _index(field: FieldInfo) -> str:
    return "[]" if get_origin(field.annotation) is tuple else ""


def _type(field: FieldInfo) -> str:
    if http_url in _functions(field.annotation, field.metadata):
        return "URL"
    text = _plain(field.annotation)
    bounds = [
        f"{sign} {value:g}"
        for meta in field.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"))
        if (value := getattr(meta, name, None)) is not None
    ]
    return f"{text} {' and '.join(bounds)}".strip()


def _plain(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "URL" if http_url in _functions(annotation, []) else _plain(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return "list of origins" if _origin in _functions(arguments[0], []) else f"list of {_plain(arguments[0])}s"
    if origin is dict:
        return "mapping"
    if type(None) in arguments:
        return " or ".join(_plain(argument) for argument in arguments if argument is not type(None))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", SecretStr: "secret text"}
    return names.get(annotation, "any value")


def _functions(annotation: Any, metadata: list[Any]) -> set[Any]:
    """The validator functions of an annotation, also inside `| None`."""
    inner = [argument for argument in get_args(annotation) if get_origin(argument) is Annotated]
    own = list(getattr(annotation, "__metadata__", ())) + [m for one in inner for m in one.__metadata__]
    return {getattr(meta, "func", None) for meta in [*metadata, *own]}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined or default in (None, (), {}, ""):
        return "none"
    if isinstance(default, bool):
        return "true" if default else "false"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def meaning(model: type[Section], name: str) -> str:
    """The docstring under a field, of the class or of the nearest base that has one; empty where there is none."""
    for base in model.__mro__:
        if issubclass(base, Section) and name in _docstrings(base):
            return " ".join(_docstrings(base)[name].split())
    return ""


@cache
def _docstrings(model: type[Section]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: doc.value.value
        for field, doc in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


if __name__ == "__main__":
    DOCUMENT.write_text(reference())
