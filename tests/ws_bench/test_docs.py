"""The page on ws_bench names every command, every flag of a run and every knob of the fake model."""

import re
from pathlib import Path

from ws_bench.__main__ import _COMMANDS, _HELP
from ws_bench.cli import ladder, matrix, micro, profile, verdict
from ws_bench.config.options import TIMES
from ws_bench.config.runflags import run_flags
from ws_bench.fakes.knobs import KNOBS

PAGE = (Path(__file__).parents[2] / "docs" / "ws_bench.md").read_text()
HIDDEN = {"help", "progress"}


def flags_of(command: str) -> set[str]:
    options = run_flags(command, "").parser._actions
    return {name.lstrip("-") for option in options for name in option.option_strings if name.startswith("--")} - HIDDEN


def test_every_flag_of_a_run_is_described() -> None:
    missing = [flag for flag in sorted(flags_of("run")) if not re.search(rf"`[^`]*-{re.escape(flag)}\b", PAGE)]
    assert missing == []


def test_every_flag_on_the_page_exists() -> None:
    known = flags_of("run") | {"levels", "recovery", "start", "max-rate", "step", "tolerance", "slo"}
    known |= {"old", "new", "baseline", "save-baseline", "noise-runs", "min-effect", "confidence", "force", "port"}
    known |= {"embed-latency", "rerank-latency"}
    for command in (ladder, matrix, micro, profile, verdict):
        known |= command._flags().value_flags
    named = set(re.findall(r"(?<=[` ])-{1,2}([a-z][a-z-]+)(?=[ `=]|$)", PAGE))
    assert sorted(named - known - {"m"}) == []


def test_commands_knobs_and_metrics_of_gates_are_named() -> None:
    for command in (*_COMMANDS, "mock-llm"):
        assert f"| `{command}` |" in PAGE
        assert f"ws_bench {command}" in _HELP.replace("[run]", "run")
    assert [knob for knob in KNOBS if f"`{knob}`" not in PAGE] == []
    assert [metric for metric in TIMES if f"{metric}:" not in PAGE] == []
