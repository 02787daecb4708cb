"""Checks side by side: none takes another with it, and none takes longer than it may."""

import asyncio
import threading
from collections.abc import Sequence

from backend_kit.doctor.checks import Check, Diagnosis, Health, examine, in_thread
from tests.support.patience import PATIENCE_S


def fine(what: str) -> Check:
    async def look() -> Sequence[Diagnosis]:
        return [Diagnosis(what, Health.OK), Diagnosis(f"{what} too", Health.OK)]

    return Check(what, look, "do")


async def test_findings_come_in_the_order_of_the_checks() -> None:
    first = asyncio.Event()

    async def wait() -> Sequence[Diagnosis]:
        await first.wait()
        return [Diagnosis("late", Health.OK)]

    async def let_go() -> Sequence[Diagnosis]:
        first.set()  # so they run side by side
        return []

    found = await examine([Check("late", wait, "do"), fine("x"), Check("none", let_go, "do")], PATIENCE_S)
    assert [one.what for one in found] == ["late", "x", "x too"]


async def test_what_does_not_come_back_in_time_is_away_with_what_to_do() -> None:
    async def hang() -> Sequence[Diagnosis]:
        await asyncio.Event().wait()
        return []

    found = await examine([Check("x", hang, "start it"), fine("y")], 0.05)
    assert found[0] == Diagnosis("x", Health.AWAY, "no answer within 0.05 s", "start it")
    assert [one.what for one in found[1:]] == ["y", "y too"]


async def test_a_thread_that_hangs_is_left_behind() -> None:
    let_go = threading.Event()

    def hang() -> Sequence[Diagnosis]:
        let_go.wait(PATIENCE_S)
        return []

    (found,) = await examine([Check("x", in_thread(hang), "start it")], 0.05)
    let_go.set()
    assert found.state is Health.AWAY


async def test_a_check_that_fails_says_so_without_what_the_failure_says() -> None:
    async def fail() -> Sequence[Diagnosis]:
        raise RuntimeError("secret")

    found = await examine([Check("x", fail, "do"), fine("y")])
    assert (found[0].state, found[0].figure) == (Health.WRONG, "the check failed: RuntimeError")
    assert "secret" not in str(found)
    assert len(found) == 3
