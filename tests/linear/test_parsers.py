"""Every parser that outside text reaches is linear in that text."""

import ast

import pytest

from tests.checks.source import modules
from tests.linear.measure import superlinear
from tests.linear.parsers import CASES, LIBRARIES, UNREACHED, quietly

START, MOST = 500, 128_000
"""Units of an input: at first, and at the most."""
_DEAR = {"pdf.py": 100, "markdown.py": 250}
"""Parsers of which so many units take tens of milliseconds: where they start."""
_TEXTS = frozenset({"str", "bytes", "bytes | str", "str | None", "bytes | None", "Headers"})


def readers() -> set[str]:
    """Every public function of the services whose first argument is a text, as `file::name`."""
    found: set[str] = set()
    for module in modules("agentic_backend", "backend_kit", "knowledge_flow_backend"):
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                arguments = [*node.args.posonlyargs, *node.args.args]
                written = [ast.unparse(one.annotation) for one in arguments[:1] if one.annotation is not None]
                if _TEXTS.intersection(written):
                    found.add(f"{module.path}::{node.name}")
    return found


def test_each_reader_of_text_has_a_case_or_a_reason_why_it_needs_none() -> None:
    found = readers()
    assert sorted(found - {*CASES, *UNREACHED}) == []
    assert sorted({*UNREACHED} - found) == []
    assert sorted({*UNREACHED} & {*CASES}) == []


def test_each_parser_of_a_format_has_a_case() -> None:
    folder = "knowledge_flow_backend/ingest/parsers/"
    formats = {f"{folder}{module.path.name}::parse" for module in modules("knowledge_flow_backend")
               if str(module.path).startswith(folder) and "def parse(" in module.text}  # fmt: skip
    assert formats <= {*CASES}
    assert len(formats) > 7


@pytest.mark.parametrize("key", CASES)
def test_a_text_takes_time_linear_in_its_length(key: str) -> None:
    read, inputs = CASES[key]
    start = _DEAR.get(key.partition("::")[0].rpartition("/")[2], START)
    for number, made in enumerate(inputs):

        def work(n: int, made=made):  # type: ignore[no-untyped-def]
            given = made(n)
            return lambda: quietly(read, given)

        assert superlinear(work, start, MOST) == "", (key, number, str(made(3))[:200])


def test_what_is_named_beside_functions_has_a_case() -> None:
    assert {*LIBRARIES} <= {*CASES}
