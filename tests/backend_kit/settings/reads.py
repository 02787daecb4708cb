"""Which keys of the settings the product reads: a search for attributes over its syntax trees."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from backend_kit.settings import Section
from backend_kit.settings.base import RootSection
from backend_kit.settings.load import known_keys, nested_section
from tests.checks.source import Module

Key = tuple[type[Section], str]
"""A field and the section that declares it first, so that a subclass with another default has the same key."""
Names = dict[str, set[type[Section]]]
"""What a variable, an attribute or a function of one class or module stands for."""

_WORD = re.compile(r"\w+")


def keys_of(root: type[RootSection]) -> dict[Key, str]:
    """Each key below `root` that is no section, with its dotted path (of several, the first)."""
    found: dict[Key, str] = {}
    for path, section in known_keys(root):
        if nested_section(section.model_fields[path[-1]].annotation) is None:
            found.setdefault(key_of(section, path[-1]), ".".join(path))
    return found


def key_of(section: type[Section], name: str) -> Key:
    """The key of a section's field."""
    return [base for base in section.__mro__ if issubclass(base, Section) and name in base.model_fields][-1], name


def read_by_loader(root: type[RootSection]) -> set[Key]:
    """The keys that name an environment variable: the loader reads them."""
    return {key for key, path in keys_of(root).items() if path in root.env_named}


def sections_of(root: type[RootSection]) -> set[type[Section]]:
    """Every section below `root`, itself, and what they inherit from."""
    below = {section for _, section in known_keys(root)} | {root}
    return {base for section in below for base in section.__mro__ if issubclass(base, Section)} - {Section}


def reads(module: Module, sections: Iterable[type[Section]]) -> set[Key]:
    """The keys that a module reads from anything that is one of `sections`, by its name, its annotation or where it
    was taken from. `model_dump` reads every key of its section, not those of the sections below it.
    """
    known = {section.__name__: section for section in sections}
    shared = _annotated(module.nodes, known)
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    rest = ast.Module([node for node in module.tree.body if not isinstance(node, ast.ClassDef)], [])
    found: set[Key] = set()
    # Class by class, since `self` is another thing in each.
    for part in (*classes, rest):
        names = {name: set(stands_for) for name, stands_for in shared.items()}
        if isinstance(part, ast.ClassDef) and part.name in known:
            names["self"] = {known[part.name]}
        if isinstance(part, ast.ClassDef):
            # `class AgenticService(Service[AgenticSettings, State])`: the frame keeps them as `_settings`.
            arguments = {word for base in part.bases for word in _WORD.findall(ast.unparse(base)) if word in known}
            names.setdefault("_settings", set()).update(known[word] for word in arguments)
        nodes = tuple(ast.walk(part))
        _follow(nodes, names)
        found |= set(_found(nodes, names))
    return found


def _annotated(nodes: Iterable[ast.AST], known: Mapping[str, type[Section]]) -> Names:
    """The sections by their own names, and the parameters, variables and functions whose annotation names one."""
    names: Names = {name: {section} for name, section in known.items()}
    for node in nodes:
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, annotation = _last_name(node.target), node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, annotation = node.name, node.returns
        else:
            continue
        for word in _WORD.findall(ast.unparse(annotation)) if annotation is not None else ():
            if word in known:
                names.setdefault(name, set()).add(known[word])
    return names


def _follow(nodes: Sequence[ast.AST], names: Names) -> None:
    """Add what is bound to a value that is a section, or a tuple of them, until nothing new is found."""
    bound = [pair for node in nodes for pair in _bindings(node)]
    before = -1
    while before != (before := sum(map(len, names.values()))):
        for target, value in bound:
            if found := _sections(value, names):
                names.setdefault(_last_name(target), set()).update(found)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        # Of `for place, one in enumerate(many)` both stand for what `many` holds: the number has no such attributes.
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        yield from ((target, node.iter) for target in targets)


def _sections(value: ast.expr, names: Names) -> set[type[Section]]:
    """The sections that an expression may be, or hold."""
    if isinstance(value, ast.Name):
        return names.get(value.id, set())
    if isinstance(value, ast.Attribute):
        fields = (section.model_fields.get(value.attr) for section in _sections(value.value, names))
        nested = {nested_section(field.annotation) for field in fields if field is not None}
        own = names.get(value.attr, set())
        return {section for section in nested if section is not None} or own
    if isinstance(value, ast.Call):
        return set().union(*(_sections(part, names) for part in [value.func, *value.args]))
    parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
    return set().union(*(_sections(part, names) for part in parts))


def _found(nodes: Sequence[ast.AST], names: Names) -> Iterator[Key]:
    for node in nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        for section in _sections(node.value, names):
            if node.attr == "model_dump":
                yield from (key_of(section, name) for name in section.model_fields)
            elif node.attr in section.model_fields:
                yield key_of(section, node.attr)


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")
