"""Which test sees the effect of which key of a configuration file."""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import yaml

T = TypeVar("T", bound=Callable[..., Any])
_ROOT = Path(__file__).parents[2]


def sees(*keys: str) -> Callable[[T], T]:
    """Marks a test that sees the effect of these keys, each set to another value than its default."""

    def mark(test: T) -> T:
        test.keys_seen = keys  # type: ignore[attr-defined] # read by `seen_in`
        return test

    return mark


def seen_in(module: ModuleType) -> list[str]:
    """The keys whose effect the tests of a module see."""
    return [key for test in vars(module).values() for key in getattr(test, "keys_seen", ())]


def keys_of(file: str) -> set[str]:
    """The keys of a configuration file that hold a value: dotted, `[]` behind one of a list of sections."""
    return set(_leaves(yaml.safe_load((_ROOT / file).read_text()), ""))


def missing(elsewhere: Mapping[str, str]) -> list[str]:
    """The tests among the values, each `tests/….py::name`, that are not there."""
    return [test for test in elsewhere.values() if not _is_there(*test.split("::"))]


def lines(said: str, kind: str) -> list[str]:
    """The lines of a kind in a log of KPI summaries."""
    return [line for line in said.splitlines() if f"[KPI][SUMMARY] {kind}" in line]


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        yield path


def _is_there(file: str, name: str) -> bool:
    tree = ast.parse((_ROOT / file).read_text())
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in tree.body)
