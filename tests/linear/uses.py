"""Where the packages use regular expressions, from their syntax trees: a new use is found without being listed."""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.checks.source import Module, modules

PACKAGES = ("agentic_backend", "backend_kit", "knowledge_flow_backend", "turnwise", "ws_bench")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = frozenset({"compile", "match", "fullmatch", "search", "split", "findall", "finditer", "sub", "subn"})


@dataclass(slots=True)
class Use:
    """One regular expression. `key` is `file::name`, of the constant or of what it stands in; `methods` is how it is
    applied, which decides what it costs: `fullmatch` begins once, `search` at each sign."""

    key: str
    patterns: tuple[re.Pattern[Any], ...]
    methods: set[str] = field(default_factory=set)


def uses() -> dict[str, Use]:
    """Every regular expression of the packages, by its key. Raises AssertionError for one that cannot be followed."""
    found: dict[str, Use] = {}
    for module in modules(*PACKAGES):
        for use in _uses_of(module):
            assert use.key not in found, f"two regular expressions at {use.key}: give one a name"
            found[use.key] = use
    return found


def _uses_of(module: Module) -> Iterator[Use]:
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            raise AssertionError(f"{module.at(node)}: say re.something, so that it is found")
    if not any(map(_is_use, module.nodes)):
        return
    names: dict[str, ast.expr] = {}
    named: set[ast.AST] = set()
    for node in module.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and any(map(_is_use, ast.walk(value))):
            names[target.id] = value
            named.update(ast.walk(value))
    inside = {node for scope in module.nodes if isinstance(scope, _SCOPES) for node in ast.walk(scope)}
    for node in module.nodes:
        assert not _is_use(node) or node in named or node in inside, f"{module.at(node)}: give it a name"
    for name in names:
        patterns = tuple(_patterns(getattr(importlib.import_module(_dotted(module)), name)))
        yield Use(f"{module.path}::{name}", patterns, _methods(module, name))
    for scope in module.nodes:
        if isinstance(scope, _SCOPES):
            yield from _inline(module, scope, named)


def _inline(module: Module, scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, named: set[ast.AST]) -> Any:
    """Expressions that are written where they are used; those of one function are told apart by a number."""
    own = [node for child in ast.iter_child_nodes(scope) for node in _own(child) if _is_use(node) and node not in named]
    for number, node in enumerate(own, 1):
        assert isinstance(node, ast.Call)
        key = f"{module.path}::{scope.name}" + (f"#{number}" if number > 1 else "")
        written = _written(node)
        patterns = (re.compile(written.value),) if isinstance(written, ast.Constant) else ()
        method = node.func.attr if isinstance(node.func, ast.Attribute) and _is_re(node.func.value) else "search"
        yield Use(key, patterns, {method})


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of scopes in it."""
    if isinstance(node, _SCOPES):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


def _is_use(node: ast.AST) -> bool:
    """A call of `re`, or of anything that is given a `pattern` as text, as fields of pydantic are."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute) and _is_re(called.value):
        return called.attr in FUNCTIONS
    return any(word.arg in ("pattern", "regex") for word in node.keywords)


def _is_re(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("re", "regex")


def _written(node: ast.Call) -> ast.expr:
    words = [word.value for word in node.keywords if word.arg in ("pattern", "regex")]
    return words[0] if words else node.args[0]


def _methods(module: Module, name: str) -> set[str]:
    """How a constant is applied in its module; `search` where that is not said of it by name."""
    return {
        node.attr
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    } & FUNCTIONS or {"search"}


def _patterns(value: Any) -> Iterator[re.Pattern[Any]]:
    """The compiled patterns in a constant: itself, or what it holds; of a type, those of its fields."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _patterns(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _patterns(one)
    elif isinstance(getattr(value, "pattern", None), str):
        yield re.compile(value.pattern)
    else:
        for one in getattr(value, "__metadata__", getattr(value, "metadata", ())):
            yield from _patterns(one)


def _dotted(module: Module) -> str:
    return ".".join(module.path.with_suffix("").parts).removesuffix(".__init__")
