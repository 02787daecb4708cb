"""The name under which an attached file is shown: plain text, short, and never a path."""

import pytest

from agentic_backend.rest.attachments import MAX_NAME_CHARS, file_name


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("notes.md", "notes.md"),
        ("../../etc/passwd", "passwd"),
        ("/etc/cron.d/job", "job"),
        ("C:\\Users\\ann\\notes.md", "notes.md"),
        ("a\0b\x1b[31m.md", "ab[31m.md"),
        ("\u202egnp.exe", "gnp.exe"),
        ("  two\t words .md ", "two words .md"),
        ("re\u0301sume\u0301.md", "r\u00e9sum\u00e9.md"),
        ("CON", "CON"),
        ("..", ""),
        ("dir/", ""),
        ("\u200b", ""),
        ("\ud800.md", ".md"),
        ("", ""),
    ],
)
def test_a_name_is_the_last_part_as_plain_text(sent: str, shown: str) -> None:
    assert file_name(sent) == shown


@pytest.mark.parametrize(("sent", "ending"), [("x" * 5000 + ".md", ".md"), ("x" * 5000, "x"), ("x." + "y" * 5000, "y")])
def test_a_long_name_is_cut_and_keeps_its_ending(sent: str, ending: str) -> None:
    shown = file_name(sent)
    assert len(shown) == MAX_NAME_CHARS
    assert shown.endswith(ending)
