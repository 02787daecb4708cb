"""The table of contracts is whole: what the scan finds stands in it, and what stands in it is there, bound and tested.

The scan (`scan.py` says what it sees, and what it does not) reads the syntax tree of each product module for private
names of libraries. A name that is in no contract of that module fails here: give its library an upper bound in
`pyproject.toml` with a comment that names the file, write a test beside this one that shows what we stand on, and enter
both in `table.py`; or, better, do without the private part.
"""

import ast

import langchain_openai  # noqa: F401 - binds a port when it is first loaded, which in the test would be a server of its
import pytest

from tests.checks.source import ROOT, Module, module_of, modules
from tests.contracts.scan import foreign_parts
from tests.contracts.table import CONTRACTS, Contract

HERE = "tests/contracts"


def source_of(module: str) -> str:
    """The path of one of our modules."""
    return f"{module.replace('.', '/')}.py"


def test_every_private_part_that_we_touch_has_its_contract() -> None:
    known = {(source_of(module), text) for one in CONTRACTS for module, texts in one.uses.items() for text in texts}
    found = {(str(module.path), part) for module in modules() for part in foreign_parts(module)}
    assert found, "the scan sees nothing"
    assert sorted(found - known) == []


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda one: f"{one.library}-{one.test.partition('::')[2]}")
def test_a_contract_is_what_its_module_does_and_its_test_says(contract: Contract) -> None:
    file, _, name = contract.test.partition("::")
    tree = ast.parse((ROOT / HERE / file).read_text())
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    told = ast.get_docstring(tests[name]) or ""
    for module, texts in contract.uses.items():
        assert source_of(module) in told, "the docstring of the test names who stands on it"
        text = (ROOT / source_of(module)).read_text()
        assert [one for one in texts if one not in text] == []


SAMPLES = {
    "an attribute": ("import lib\nlib.thing()._private", {"_private"}),
    "one that is set": ("def f(thing):\n thing._private = 1", {"_private"}),
    "a name of a file of ours": ("class A:\n def __init__(self):\n  self._x = 1\ndef f(a):\n return a._x", set()),
    "a method of ours": ("class A:\n def _x(self): ...\ndef f(a):\n return a._x()", set()),
    "a special name": ("def f(a):\n return a.__class__", set()),
    "documented for everybody": ("def f(row):\n return row._mapping", set()),
    "a module": ("import anyio._backends._asyncio", {"anyio._backends._asyncio"}),
    "a name of a module": ("from uvicorn import _types", {"uvicorn._types"}),
    "names of a private module": ("from uvicorn._types import Scope, ASGISendEvent", {"uvicorn._types"}),
    "for type checkers": ("from _typeshed.wsgi import StartResponse", set()),
    "a method that is overridden": (
        "import aiohttp\nclass A(aiohttp.payload.IOBasePayload):\n def _close(self): ...",
        {"_close"},
    ),
    "an attribute that a base sets": (
        "from uvicorn import Server\nclass A(Server):\n def f(self):\n  self._captured_signals = []",
        {"_captured_signals"},
    ),
    "a method that is inherited": (
        "from langchain_openai import ChatOpenAI as Chat\nclass A(Chat):\n def f(self):\n  self._get_request_payload()",
        {"_get_request_payload"},
    ),
    "a name of a subclass's own": ("from uvicorn import Server\nclass A(Server):\n def _ours(self): ...", set()),
}


@pytest.mark.parametrize(("text", "parts"), SAMPLES.values(), ids=SAMPLES)
def test_a_private_part_is_found(text: str, parts: set[str]) -> None:
    sample: Module = module_of(text)
    assert foreign_parts(sample) == parts
