"""Two clocks that differ, and by how much that matters."""

from email.utils import formatdate

import pytest

from backend_kit.doctor.checks import Health
from backend_kit.doctor.clocks import ahead_of, clock_finding


@pytest.mark.parametrize(
    ("ahead_s", "state", "figure"),
    [
        (0.0, Health.OK, "0.0 s apart"),
        (-0.049, Health.OK, "0.0 s apart"),
        (1.96, Health.OK, "this machine is 2.0 s ahead"),
        (-2.5, Health.SLOW, "this machine is 2.5 s behind"),
        (30.0, Health.SLOW, "this machine is 30.0 s ahead"),
        (-31.0, Health.WRONG, "this machine is 31.0 s behind"),
    ],
)
def test_a_difference_is_judged_by_what_it_breaks(ahead_s: float, state: Health, figure: str) -> None:
    found = clock_finding("postgres", ahead_s, 30.0, "tokens are refused")
    assert (found.what, found.state, found.figure) == ("clock of postgres", state, figure)
    assert ("tokens are refused" in found.remedy) is (state is not Health.OK)


def test_a_date_is_read_to_half_a_second() -> None:
    assert ahead_of(formatdate(1_000_000, usegmt=True), 1_000_000.5) == 0.0
    assert ahead_of(formatdate(1_000_000, usegmt=True), 999_990.0) == -10.5
    # Without a zone it is UTC.
    assert ahead_of("Mon, 12 Jan 1970 13:46:40 -0000", 1_000_000.5) == 0.0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Jan 1970 13:46:40 GMT", "x" * 8000])
def test_what_is_no_date_tells_nothing(date: str | None) -> None:
    assert ahead_of(date, 1.0) is None
