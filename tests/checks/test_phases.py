"""Every phase that is declared is timed somewhere, and every name that code times is declared: the two are compared.

A phase without either is dead: it stands in tables and dashboards, and never has a value; one that is timed without
being declared counts as `other`.
"""

import ast
from collections.abc import Iterator

from agentic_backend.agent import AGENT_PHASES
from agentic_backend.session.turn_report import TURN_PHASES
from backend_kit.kpi import PHASES
from knowledge_flow_backend.metrics import PHASES as KNOWLEDGE_PHASES
from tests.checks.source import Module, module_of, modules

DECLARED = frozenset((*PHASES, *AGENT_PHASES, *TURN_PHASES, *KNOWLEDGE_PHASES))
TIMES = frozenset({"phase", "record_phase", "name_gaps"})
"""Functions and methods whose first argument is a phase. Rows that `Ledger.add` enters feed no metric."""
BY_VALUE = "_PHASES"
"""The end of the names of tables whose values are phases that such a function is given."""
BY_ARGUMENT = frozenset({"_ask", "_timed", "_Route"})
"""Functions that time a phase which their caller names."""


def named(module: Module) -> dict[str, str]:
    """The module's names for texts: `PHASE: Final = "llm_invoke_title"`."""
    found = {}
    for node in module.tree.body:
        target, value = (
            (node.target, node.value)
            if isinstance(node, ast.AnnAssign)
            else (node.targets[0], node.value)
            if isinstance(node, ast.Assign)
            else (None, None)
        )
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def texts(node: ast.AST) -> Iterator[str]:
    return (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def timed(module: Module, names: dict[str, str]) -> Iterator[str]:
    """The phases that a module times, by name."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in TIMES and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    yield str(first.value)
                elif isinstance(first, ast.Name) and first.id in names:
                    yield names[first.id]
            elif called in BY_ARGUMENT:
                yield from (text for argument in node.args for text in texts(argument) if text in DECLARED)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Dict):
            for value in node.value.values if node.target.id.endswith(BY_VALUE) else ():
                yield from texts(value)


def timed_in_product() -> set[str]:
    ours = modules("agentic_backend", "knowledge_flow_backend")
    names: dict[str, str] = {}
    for module in ours:
        names |= named(module)
    return {phase for module in ours for phase in timed(module, names)}


def test_every_declared_phase_is_timed_and_every_timed_one_is_declared() -> None:
    found = timed_in_product()
    assert found == DECLARED, f"never timed: {DECLARED - found}; not declared: {found - DECLARED}"


def test_the_search_for_phases_finds_each_way_to_name_one() -> None:
    sample = module_of(
        'PHASE: Final = "by_name"\n'
        '_COUNTED_PHASES: Final = {"part": ("by_value",)}\n'
        'with phase("by_text"), self._kpi.phase(PHASE):\n'
        '    kpi.record_phase("recorded", 1.0)\n'
        '    with phase(name), ledger.name_gaps("between"):\n'
        "        pass\n"
        'PHASES = ("only_declared",)\n'
    )
    assert set(timed(sample, named(sample))) == {"by_name", "by_value", "by_text", "recorded", "between"}
