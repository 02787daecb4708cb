"""The reference of docs/configuration.md, made from the models: `python -m tests.backend_kit.settings.reference`."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import Section
from backend_kit.settings.base import RootSection, _origin, http_url
from backend_kit.settings.load import nested_section
from knowledge_flow_backend.settings import KnowledgeFlowSettings

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"

HANDED_THROUGH = "Handed through"
WITHOUT_EFFECT = "Accepted, without effect"
"""How the docstring of a key that the product does not read says so: clients get the value, or nobody does."""

_BEGIN = "<!-- reference: begin -->\n"
"""What stands before it is written by hand."""


def page() -> str:
    """The whole page: what is written by hand, as it is there, and the reference."""
    return DOCUMENT.read_text().partition(_BEGIN)[0] + _BEGIN + reference()


def reference() -> str:
    """Every key of both services."""
    return "\n".join(
        [
            *_service("Every key: agentic service", AgenticSettings),
            *_service("Every key: knowledge flow", KnowledgeFlowSettings),
        ]
    )


def _service(title: str, model: type[RootSection]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| environment variable | key it sets |\n|---|---|"
    for name, keys in model.env_overrides.items():
        yield f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} |"
    for naming, named in model.env_named.items():
        yield f"| the one that `{naming}` names | `{named}` |"
    yield "\n| key of Fred's files | the same here |\n|---|---|"
    for old, new in model.renamed_keys.items():
        yield f"| `{old}` | `{new}` |"
    yield f"\n{WITHOUT_EFFECT}: {', '.join(_without_effect(model, ''))}.\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    yield from _rows(model, "", {})
    yield ""


def _without_effect(model: type[Section], prefix: str) -> Iterator[str]:
    """The ignored keys. A pattern does not cover the fields that match it."""
    for key in model.ignored_keys:
        kept = [f"`{name}`" for name in model.model_fields if fnmatchcase(name, key)]
        yield f"`{prefix}{key}`" + (f" (other than {', '.join(kept)})" if kept else "")
    for name, field in model.model_fields.items():
        nested = nested_section(field.annotation)
        if nested is not None:
            yield from _without_effect(nested, f"{prefix}{name}{_index(field)}.")


def _rows(model: type[Section], prefix: str, shown: dict[type[Section], str]) -> Iterator[str]:
    """A row a key. `shown` has the sections that stand on the page already: their keys are not repeated."""
    for name, field in model.model_fields.items():
        nested = nested_section(field.annotation)
        key = f"{prefix}{name}"
        if nested is None:
            yield f"| `{key}` | {_type(field)} | {_default(field)} | {meaning(model, name)} |"
            continue
        same = shown.get(nested)
        if same is not None or field.is_required() or field.default in (None, ()):
            text = meaning(model, name) or (inspect.getdoc(nested) or "").splitlines()[0]
            default = "*required*" if field.is_required() else "none" if field.default in (None, ()) else "as there"
            kind = "list" if _index(field) else "section"
            yield f"| `{key}` | {kind} | {default} | {text}{f' Keys as in `{same}`.' if same else ''} |"
        if same is None:
            shown[nested] = key
            yield from _rows(nested, f"{key}{_index(field)}.", shown)


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
    """The docstring under a field, of the class or of the nearest base that has one; empty if none has."""
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
    DOCUMENT.write_text(page())
