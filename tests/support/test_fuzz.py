"""`make fuzz` runs the tests that there are, each in a process of its own."""

import pytest

from tests.fuzz.__main__ import names_of

pytestmark = pytest.mark.servers


def test_a_word_chooses_tests() -> None:
    names = names_of("parsers")
    assert [name.partition("::")[0] for name in names] == ["tests/fuzz/test_parsers.py"] * 3
