"""The other instances, by their table in Postgres and by what they answer."""

import pytest
from yarl import URL

from agentic_backend.doctor.instances import Reached, judge_instances
from agentic_backend.fleet.probe import InstanceRow
from backend_kit.doctor.checks import Diagnosis, Health, encode_findings
from backend_kit.doctor.http import HttpReply
from turnwise.findings import decode_findings

TOKEN = "token-of-this-instance"
PASSWORD = "password-in-its-url"


def row(name: str = "a", *, silent_s: float = 1.0, keeps_spool: bool = False, draining: bool = False) -> InstanceRow:
    return InstanceRow(name, f"http://user:{PASSWORD}@{name}.example:8000", TOKEN, keeps_spool, draining, silent_s)


def reached(of: InstanceRow, ahead_s: float | None = 0.0, *, answers: bool = True, version: str = "") -> Reached:
    reply = HttpReply(200, TOKEN.encode(), 1.0, ahead_s) if answers else None
    return Reached(of, None if of.url is None else URL(of.url), reply, version)


def judged(rows: list[InstanceRow], answers: list[Reached]) -> list[Diagnosis]:
    return judge_instances(rows, answers, "0.2.0")


@pytest.mark.parametrize(("silent_s", "alive"), [(0.0, True), (9.9, True), (10.0, False)])
def test_who_did_not_renew_for_so_long_is_dead(silent_s: float, alive: bool) -> None:
    assert row(silent_s=silent_s).alive is alive
    assert TOKEN not in repr(row())


def test_all_that_live_are_counted() -> None:
    rows = [row("a"), row("b", draining=True), row("c", silent_s=60)]
    state, clock = judged(rows, [reached(one) for one in rows[:2]])
    assert (state.state, state.figure) == (Health.OK, "2 alive, 1 draining")
    assert (clock.what, clock.state) == ("clock of instances", Health.OK)


def test_one_that_does_not_answer_is_named_by_its_address() -> None:
    rows = [row("a"), row("b")]
    found = judged(rows, [reached(rows[0]), reached(rows[1], answers=False)])
    assert (found[0].state, found[0].figure) == (Health.AWAY, "2 alive, not reached from here: b.example:8000")
    assert "fleet.url" in found[0].remedy
    assert TOKEN not in str(found)
    assert PASSWORD not in str(found)


def test_one_that_died_with_a_spool_is_wrong() -> None:
    (state,) = judged([row("a", silent_s=11.0, keeps_spool=True)], [])
    assert (state.state, state.figure) == (Health.WRONG, "0 alive, dead with a spool: a")
    assert "session_recovering" in state.remedy


def test_the_clock_that_is_furthest_away_is_told() -> None:
    rows = [row("a"), row("b"), row("c")]
    found = judged(rows, [reached(rows[0], 1.0), reached(rows[1], -40.0), reached(rows[2], None)])
    assert (found[1].state, found[1].figure) == (Health.WRONG, "this machine is 40.0 s behind")


@pytest.mark.parametrize(
    ("versions", "state", "figure"),
    [
        (["0.2.0", "0.2.0"], Health.OK, "0.2.0 at 2, 0.2.0 is installed here"),
        (["0.2.0", "0.1.0"], Health.SLOW, "0.1.0 at 1, 0.2.0 at 1, 0.2.0 is installed here"),
        (["0.2.0", ""], Health.OK, "0.2.0 at 1, 0.2.0 is installed here"),
    ],
)
def test_an_upgrade_that_is_not_finished_shows(versions: list[str], state: Health, figure: str) -> None:
    rows = [row("a"), row("b")]
    answers = [reached(one, version=version) for one, version in zip(rows, versions, strict=True)]
    found = judged(rows, answers)[1]
    assert (found.what, found.state, found.figure) == ("versions of instances", state, figure)


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_large_fleet_in_trouble_some_are_named(lost: bool) -> None:
    """A text that is too long would cost all that was found."""
    pods = [f"turnwise-agentic-{number:02}.turnwise.svc.cluster.local" for number in range(64)]
    rows = [row(pod, silent_s=60 if lost else 1, keeps_spool=lost) for pod in pods]
    (state, *_) = found = judged(rows, [] if lost else [reached(one, answers=False) for one in rows])
    assert decode_findings(encode_findings(found)) == found
    assert all(pod in state.figure for pod in pods[:3])
    assert state.figure.endswith(" and 61 more")
