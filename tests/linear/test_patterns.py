"""Every regular expression that outside text reaches is linear in that text."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.linear.measure import superlinear
from tests.linear.patterns import BOUNDS, HOSTILE, UNREACHED, UNREACHED_FOLDERS, Hostile, attempts
from tests.linear.uses import Use, uses

START, MOST = 2_000, 512_000
"""Signs of a text: at first, and at the most."""
_SUSPECT_S = 0.004
"""What a text of 8,000 signs must take before it is measured in earnest; a linear pattern has done in a tenth."""


@pytest.fixture(scope="module")
def found() -> dict[str, Use]:
    """Every use, looked for by the worker that runs these tests."""
    return uses()


def _reason(key: str) -> str | None:
    return UNREACHED.get(key) or next(
        (why for folder, why in UNREACHED_FOLDERS.items() if key.startswith(folder)), None
    )


def test_each_regular_expression_has_a_hostile_text_or_a_reason_why_it_needs_none(found: dict[str, Use]) -> None:
    assert [key for key in found if key not in HOSTILE and _reason(key) is None] == []
    assert [key for key in (*HOSTILE, *UNREACHED) if key not in found] == []
    assert [key for key in HOSTILE if _reason(key) is not None] == []
    assert [key for key in HOSTILE if not found[key].patterns] == []


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_text_takes_time_linear_in_its_length(found: dict[str, Use], key: str) -> None:
    for pattern, method in _applied(found[key]):
        for hostile in HOSTILE[key]:
            work = _work(pattern, method, hostile)
            assert superlinear(work, START, _most(key)) == "", (pattern.pattern, method, hostile)


@pytest.mark.parametrize("key", HOSTILE)
def test_texts_of_its_own_signs_take_time_linear_in_their_length(found: dict[str, Use], key: str) -> None:
    for pattern, method in _applied(found[key]):
        for hostile in attempts(pattern):
            work = _work(pattern, method, hostile)
            began = time.thread_time()
            work(min(8_000, _most(key)))()
            if time.thread_time() - began > _SUSPECT_S:
                assert superlinear(work, 500, _most(key)) == "", (pattern.pattern, method, hostile)


@pytest.mark.parametrize(
    ("written", "method", "hostile"),
    [(r"\s+$", "search", ("", " ", "x")), (r"\s*[\d.,\s]*\d[\d.,\s]*", "fullmatch", ("", "1", "x"))],
)
def test_the_measure_tells_a_pattern_that_goes_back(written: str, method: str, hostile: Hostile) -> None:
    assert superlinear(_work(re.compile(written), method, hostile), 500, MOST)


def _most(key: str) -> int:
    return BOUNDS.get(key, MOST)


def _applied(use: Use) -> list[tuple[re.Pattern[Any], str]]:
    return [(pattern, method) for pattern in use.patterns for method in sorted(use.methods)]


def _work(pattern: re.Pattern[Any], method: str, hostile: Hostile) -> Callable[[int], Callable[[], object]]:
    # What looks at every place of a text costs the same whatever is done with what it finds.
    apply = getattr(pattern, method if method in ("match", "fullmatch", "search") else "findall")
    before, again, behind = hostile

    def made(n: int) -> Callable[[], object]:
        text: Any = before + again * max(1, n // len(again)) + behind
        if isinstance(pattern.pattern, bytes):
            text = text.encode("latin-1")
        return lambda: apply(text)

    return made
