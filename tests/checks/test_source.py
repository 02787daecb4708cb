"""Style rules that no linter knows, over the whole source."""

import ast
import statistics

import pytest

from tests.checks.source import (
    PACKAGES,
    SERVICES,
    broad_excepts,
    functions,
    length,
    module_of,
    modules,
    patches,
    prints,
    stray_tasks,
    unexplained,
)

LONGEST_FUNCTION = 60
LONGEST_FUNCTION_P90 = 40
BROAD_EXCEPTS_A_SERVICE = 3


def test_every_module_says_what_it_owns() -> None:
    silent = [str(m.path) for m in modules(*PACKAGES, "tests/support") if m.text and not ast.get_docstring(m.tree)]
    assert silent == []


def test_tasks_are_created_in_one_place_only() -> None:
    strays = [stray for m in modules() if m.path.parts[:2] != ("backend_kit", "aio") for stray in stray_tasks(m)]
    assert strays == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import asyncio\nasyncio.create_task(f())", 1),
        ("from asyncio import create_task\ncreate_task(f())", 1),
        ("loop.create_task(f())", 1),
        ("asyncio.ensure_future(f())", 1),
        ("async def g():\n async with asyncio.TaskGroup() as tasks:\n  tasks.create_task(f())", 0),
        ("def g(tasks: asyncio.TaskGroup):\n tasks.create_task(f())", 0),
    ],
)
def test_a_stray_task_is_found(text: str, count: int) -> None:
    assert len(stray_tasks(module_of(text))) == count


@pytest.mark.parametrize("service", SERVICES)
def test_everything_is_caught_at_three_edges_only_each_with_its_reason(service: str) -> None:
    found = [(m, handler) for m in modules(service, "backend_kit") for handler in broad_excepts(m)]
    places = [m.at(handler) for m, handler in found]
    assert len(places) <= BROAD_EXCEPTS_A_SERVICE, places
    without_reason = [m.at(handler) for m, handler in found if "#" not in m.lines(handler, 2)]
    assert without_reason == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("try:\n f()\nexcept Exception:\n pass", 1),
        ("try:\n f()\nexcept (ValueError, BaseException) as e:\n log(e)", 1),
        ("try:\n f()\nexcept:\n pass", 1),
        ("try:\n f()\nexcept BaseException:\n g()\n raise", 0),
        ("try:\n f()\nexcept (ValueError, OSError):\n pass", 0),
    ],
)
def test_a_broad_except_is_found(text: str, count: int) -> None:
    assert len(broad_excepts(module_of(text))) == count


def test_each_suppressed_finding_has_its_reason() -> None:
    """The security rules of ruff (S, which are bandit's) are on: who switches one off for a line says why."""
    assert [place for m in modules(*PACKAGES, "tests") for place in unexplained(m)] == []


@pytest.mark.parametrize(
    ("comment", "count"),
    [
        ("# noqa", 1),
        ("# noqa: S608", 1),
        ("# noqa: S608 -", 1),
        ("# noqa: S608 - constants", 0),
        ("# noqa: S310, S603 # our own", 0),
        ("# ruff: noqa: S608", 1),
        ("# anything else", 0),
    ],
)
def test_a_suppressed_finding_without_a_reason_is_found(comment: str, count: int) -> None:
    assert len(unexplained(module_of(f"x = 1  {comment}\n"))) == count


def test_functions_fit_a_screen() -> None:
    lengths = {f"{m.at(f)} {f.name}": length(f) for m in modules() for f in functions(m)}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}
    assert statistics.quantiles(lengths.values(), n=10)[8] <= LONGEST_FUNCTION_P90


def test_the_length_of_a_function_counts_its_docstring() -> None:
    (function,) = functions(module_of('@decorated\ndef f():\n    """Says.\n\n    More.\n    """\n    return 1\n'))
    assert length(function) == 6


def test_services_log_and_never_print() -> None:
    """The command lines (ws_bench, deploy) and the entry points may."""
    found = [at for m in modules(*SERVICES, "backend_kit") if m.path.name != "__main__.py" for at in prints(m)]
    assert found == []


def test_a_print_is_found() -> None:
    assert prints(module_of("def f():\n    print(1)")) == ["agentic_backend/sample.py:2"]


def test_tests_patch_nothing() -> None:
    """What a test changes is handed over where the object is built: a clock, a wait, a bound, a double of a part."""
    assert [place for m in modules("tests") for place in patches(m)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("monkeypatch.setattr(store, '_WAIT_S', 0.1)", 1),
        ("with monkeypatch.context() as short:\n short.setattr('store._WAIT_S', 0.1)", 1),
        ("monkeypatch.setitem(CODECS, 'gzip', seen)", 1),
        ("monkeypatch.delattr(store, 'close')", 1),
        ("from unittest.mock import patch", 1),
        ("from unittest import mock", 1),
        ("import unittest.mock", 1),
        ("store._wait_s = 0.1", 1),
        ("service.store._rows['a'].at -= 5", 1),
        ("service.store.append = fails  # type: ignore[method-assign]", 1),
        ("monkeypatch.setenv('A', 'b')\nmonkeypatch.delenv('C')\nmonkeypatch.chdir(path)", 0),
        ("setattr(fake, 'answers', 500)", 0),
        ("store.wait_s = 0.1", 0),
        ("class Fake:\n def __init__(self):\n  self._wait_s = 0.1\n  self._of.rows = []", 0),
        ("assert store._wait_s == 0.1", 0),
    ],
)
def test_a_patch_is_found(text: str, count: int) -> None:
    assert len(patches(module_of(text))) == count
