"""The help: every flag in a group, with a value as it may be written, and examples that can be run."""

import re
import shlex

import pytest

from ws_bench.__main__ import main
from ws_bench.cli import knee, ladder, matrix, micro, profile, sweep, verdict
from ws_bench.config.flags import config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags

COMMANDS = {
    "run": lambda: run_flags("ws_bench run", "Load."),
    "sweep": sweep._flags,
    "find-knee": knee._flags,
    "micro": micro._flags,
    "ladder": ladder._flags,
    "matrix": matrix._flags,
    "profile": profile._flags,
    "verdict": verdict._flags,
}
_HIDDEN = {"help", "progress"}


def help_of(flags: Flags) -> str:
    return flags.parser.format_help()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_its_line_and_a_value(command: str) -> None:
    flags = COMMANDS[command]()
    shown = dict(re.findall(r"^  -([a-z-]+) ?(\S.*?)?(?:  |$)", help_of(flags), re.MULTILINE))
    named = {action.option_strings[-1].lstrip("-") for action in flags.parser._actions} - _HIDDEN
    assert set(shown) == named
    assert [name for name in flags.value_flags if not shown[name] or shown[name].startswith("VALUE")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_group_ends_with_an_example_that_parses(command: str) -> None:
    text = help_of(COMMANDS[command]())
    groups = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    examples = re.findall(r"^  example: ws_bench (\S+) (.*)$", text, re.MULTILINE)
    assert len(groups) == len(examples) >= 8
    assert {of for of, _ in examples} <= {"run", command}
    for of, example in examples:
        argv = [word for word in shlex.split(example) if word != "questions.txt" and word != "-prompts"]
        config_of(COMMANDS[of]().parse(argv))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_value_of_the_help_is_one(command: str) -> None:
    flags = COMMANDS[command]()
    likes = re.findall(r"^  -([a-z-]+) (\S.*?)(?:  |$)", help_of(flags), re.MULTILINE)
    for name, like in likes:
        if name in flags.value_flags:
            flags.parse([f"-{name}", *shlex.split(like)])


def test_defaults_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "-clients", "3", "-h"])
    ran = " ".join(capsys.readouterr().out.split())
    assert "concurrent clients (default 150)" in ran
    assert "starts are spread over this time (default 10s)" in ran
    assert "10s, 10% or turns" in ran
    assert "(default 8)" in help_of(matrix._flags())
    assert "numbers of clients, comma between (default 1,4,16,64)" in help_of(verdict._flags())
