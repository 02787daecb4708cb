"""Finds in product code what is private to somebody else's library: `foreign._name`, by its syntax tree.

Three ways lead to such a name, and all three are looked at:

- `thing._name`, read or written, where nothing in the same file is called `_name`. Private names of ours stay in their
  file, so one that is bound there is taken for ours, whatever it is read from.
- an import of a module or a name that begins with an underscore.
- a class with a base from elsewhere: what it defines, sets or reads on itself under a name that the source of that base
  uses too. Only its direct bases are looked up, by importing the library, never our module.

It does not see private names in strings (`getattr(x, "_" + name)`), those of bases in Python's own library, nor what is
undocumented without an underscore: that stands in the table because somebody has looked.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from textwrap import dedent
from typing import Any

from tests.checks.source import PACKAGES, Module

DOCUMENTED = {
    "_current_frames": "sys",
    "_exit": "os",
    "_mapping": "sqlalchemy.Row",
    "_replace": "typing.NamedTuple",
}
"""Names with an underscore that their library documents for everybody."""
_TYPES_ONLY = "_typeshed"
"""Exists for type checkers alone."""


def foreign_parts(module: Module) -> set[str]:
    """The private names of libraries that a module touches; an imported one with its whole path."""
    return {*_read(module), *_imported(module), *_inherited(module)} - DOCUMENTED.keys()


def _is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.startswith("__")


def _read(module: Module) -> Iterator[str]:
    ours = {name for node in module.nodes for name in _bound_by(node)}
    for node in module.nodes:
        if not isinstance(node, ast.Attribute) or _is_self(node.value):
            continue
        if _is_private(node.attr) and node.attr not in ours:
            yield node.attr


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
        yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _imported(module: Module) -> Iterator[str]:
    for path in _imports(module).values():
        root, *parts = path.split(".")
        if root not in (*PACKAGES, "__future__", _TYPES_ONLY) and any(map(_is_private, [root, *parts])):
            *inside, last = path.split(".")
            yield path if _is_private(last) else ".".join(inside)


def _imports(module: Module) -> dict[str, str]:
    """What each imported name stands for."""
    found: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            # `import a.b` binds `a`, and says that there is `a.b`.
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
            found |= {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
    return found


def _inherited(module: Module) -> Iterator[str]:
    imports = _imports(module)
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            bases = [found for base in node.bases if (found := _class_of(base, imports)) is not None]
            theirs = {name for base in bases for one in base.__mro__ for name in _private_names(one)}
            yield from theirs.intersection(_names_in(node))


def _class_of(base: ast.expr, imports: dict[str, str]) -> type[Any] | None:
    """The class that a base names, where it comes from elsewhere."""
    name, _, rest = ast.unparse(base).partition("[")[0].partition(".")
    path = f"{imports.get(name, '')}.{rest}".strip(".")
    if not path or path.split(".")[0] in PACKAGES:
        return None
    inside, _, last = path.rpartition(".")
    found = getattr(importlib.import_module(inside), last, None)
    return found if isinstance(found, type) else None


@cache
def _private_names(base: type[Any]) -> frozenset[str]:
    """The private names in the source of a class that is not of the standard library."""
    if base.__module__.split(".")[0] in sys.stdlib_module_names:
        return frozenset()
    try:
        return frozenset(_names_in(ast.parse(dedent(inspect.getsource(base)))))
    except (OSError, TypeError):  # not written in Python
        return frozenset(filter(_is_private, vars(base)))


def _names_in(tree: ast.AST) -> Iterator[str]:
    """The private names that a class has or uses of itself."""
    for node in ast.walk(tree):
        used = [node.attr] if isinstance(node, ast.Attribute) and _is_self(node.value) else _bound_by(node)
        yield from filter(_is_private, used)
