"""What is shown and what is kept."""

import io
import re
from pathlib import Path

import pytest

from turnwise.console import Console

CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return Terminal()


def trouble(number: int) -> str:
    return f"2026-11-22 10:00:00,000 ERROR a.b no {number}"


def test_what_programs_write_is_kept_and_only_trouble_is_shown(tmp_path: Path) -> None:
    screen = io.StringIO()
    told = Console(screen, tmp_path / "log" / "x.log")
    told.print_line("turnwise", "hello")
    told.output("agentic", "2026-11-22 10:00:00,000 INFO a.b served")
    told.output("agentic", trouble(1))
    told.output("postgres", "2026-11-22 10:00:00 UTC [7] PANIC:  no room")
    told.status("never without a terminal")
    told.close()
    shown = screen.getvalue().splitlines()
    assert [line.split("|")[0].strip() for line in shown] == ["turnwise", "agentic", "postgres"]
    kept = (tmp_path / "log" / "x.log").read_text().splitlines()
    assert kept == [shown[0], "agentic  | 2026-11-22 10:00:00,000 INFO a.b served", *shown[1:]]
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_flood_of_trouble_is_kept_and_five_lines_of_it_are_shown(tmp_path: Path) -> None:
    screen = io.StringIO()
    told = Console(screen, tmp_path / "x.log")
    for number in range(100):
        told.output("agentic", trouble(number))
    told.close()
    assert len(screen.getvalue().splitlines()) == 5
    assert len((tmp_path / "x.log").read_text().splitlines()) == 100


def test_verbose_shows_all_and_has_no_living_line(tmp_path: Path, terminal: Terminal) -> None:
    told = Console(terminal, tmp_path / "x.log", verbose=True)
    told.output("agentic", "INFO served")
    told.status("has_status_line")
    told.close()
    assert terminal.getvalue() == "agentic  | INFO served\n"


def test_the_living_line_stays_below_what_is_said_and_goes_in_the_end(tmp_path: Path, terminal: Terminal) -> None:
    told = Console(terminal, tmp_path / "x.log")
    told.status("1 turn")
    told.announce("said")
    told.status("x" * 100)
    told.close()
    assert terminal.getvalue() == f"{CLEAR}1 turn{CLEAR}said\n{CLEAR}1 turn{CLEAR}{'x' * 39}{CLEAR}"


def test_the_log_is_bounded(tmp_path: Path) -> None:
    told = Console(io.StringIO(), tmp_path / "x.log", log_bytes=1000)
    for number in range(1000):
        told.output("agentic", f"line {number}")
    told.close()
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["x.log", "x.log.1", "x.log.2"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3000
    assert re.search(r"line 999$", (tmp_path / "x.log").read_text())


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(5, "the terminal is gone")])
def test_a_terminal_that_is_gone_does_not_end_the_launcher(error: OSError) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str, /) -> int:
            raise error

    Console(Gone()).print_line("sample", "text")
