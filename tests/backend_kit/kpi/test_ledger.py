"""The ledger of a turn: nesting, what is left over, and whose turn it is."""

import asyncio
from time import perf_counter

import pytest

from backend_kit.kpi import Kpi, Ledger, current_ledger, phase
from backend_kit.kpi.core import MAX_ROWS


def test_outside_a_turn_phase_does_nothing(kpi: Kpi) -> None:
    assert current_ledger() is None
    with phase("llm_invoke"):
        pass
    assert kpi.timers == {}


def test_rows_stand_by_start_with_their_depth(kpi: Kpi) -> None:
    ledger = Ledger(kpi)
    with ledger.activate() as active:
        assert active is current_ledger()
        with phase("history_restore"):
            pass
        with phase("stream_agent_response"):
            with phase("vector_search"), phase("kf_vector_search"):
                pass
            with phase("made_up_by_an_author"):
                pass
    assert current_ledger() is None
    rows = ledger.rows()
    assert [(row["phase"], row["depth"]) for row in rows] == [
        ("history_restore", 0),
        ("stream_agent_response", 0),
        ("vector_search", 1),
        ("kf_vector_search", 2),
        ("made_up_by_an_author", 1),
    ]
    outer = [row for row in rows if row["depth"] == 0]
    assert outer[0]["start_ms"] + outer[0]["ms"] <= outer[1]["start_ms"] + 0.001
    assert set(kpi.timers) == {
        f"app.phase_latency_ms|phase={name}"
        for name in ("history_restore", "stream_agent_response", "vector_search", "kf_vector_search", "other")
    }


def test_what_no_outer_phase_covers_is_unattributed(kpi: Kpi) -> None:
    begun = perf_counter()
    ledger = Ledger(kpi, started=begun)
    ledger.add("admission_wait", begun, begun + 0.25)
    ledger.add("llm_invoke", begun + 0.5, begun + 1.0)
    ledger.add("inside", begun + 0.6, begun + 0.7, depth=1)
    assert ledger.unattributed_ms(1000.0) == pytest.approx(250.0)
    assert ledger.unattributed_ms(10.0) == 0.0
    assert [(round(row["start_ms"]), round(row["ms"])) for row in ledger.rows()] == [(0, 250), (500, 500), (600, 100)]


def test_a_failed_phase_stands_in_the_ledger(kpi: Kpi) -> None:
    ledger = Ledger(kpi)
    with ledger.activate(), pytest.raises(KeyError), phase("llm_invoke"):
        raise KeyError
    assert [row["phase"] for row in ledger.rows()] == ["llm_invoke"]
    assert (ledger.open, ledger.current) == (0, None)


def test_current_names_the_innermost_open_phase(kpi: Kpi) -> None:
    ledger = Ledger(kpi)
    seen = []
    with ledger.activate():
        with phase("a"):
            seen.append(ledger.current)
            with phase("b"):
                seen.append(ledger.current)
            seen.append(ledger.current)
        seen.append(ledger.current)
    assert seen == ["a", "b", "a", None]


async def test_each_turn_has_its_own_ledger_and_its_tasks_share_it(kpi: Kpi) -> None:
    async def half(name: str, go: asyncio.Event, done: asyncio.Event) -> None:
        with phase(name):
            done.set()
            await go.wait()

    async def turn(name: str) -> Ledger:
        ledger = Ledger(kpi)
        lexical, vector = asyncio.Event(), asyncio.Event()
        with ledger.activate(), phase(name):
            async with asyncio.TaskGroup() as group:
                group.create_task(half("lexical", vector, lexical))
                group.create_task(half("vector", lexical, vector))
        return ledger

    one, two = await asyncio.gather(turn("one"), turn("two"))
    for ledger, name in ((one, "one"), (two, "two")):
        rows = ledger.rows()
        assert [row["phase"] for row in rows if row["depth"] == 0] == [name]
        assert {row["phase"] for row in rows} == {name, "lexical", "vector"}


async def test_rows_of_depth_0_never_overlap_even_side_by_side(kpi: Kpi) -> None:
    ledger = Ledger(kpi)
    first_in, first_out = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        with phase("first"):
            first_in.set()
            await first_out.wait()

    async def second() -> None:
        await first_in.wait()
        with phase("second"):
            first_out.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with ledger.activate():
        async with asyncio.TaskGroup() as group:
            group.create_task(first())
            group.create_task(second())
    assert {row["phase"]: row["depth"] for row in ledger.rows()} == {"first": 0, "second": 1}
    assert (ledger.open, ledger.current) == (0, None)


def test_a_ledger_is_bounded_and_says_what_it_dropped(kpi: Kpi) -> None:
    ledger = Ledger(kpi, started=0.0)
    for number in range(MAX_ROWS + 10):
        ledger.add("step", float(number), number + 0.5)
    assert len(ledger.rows()) == MAX_ROWS
    assert ledger.dropped_rows == 10
    total_ms = (MAX_ROWS + 10) * 1e3
    assert ledger.unattributed_ms(total_ms) == pytest.approx(total_ms / 2)


def test_calls_of_a_numbered_phase_are_numbered_by_their_start(kpi: Kpi) -> None:
    ledger = Ledger(kpi, started=0.0, numbered=frozenset({"llm_invoke", "tool_call"}))
    ledger.add("llm_invoke", 1.0, 2.0)
    ledger.add("tool_call", 2.5, 2.6)
    ledger.add("tool_call", 2.4, 2.9)  # it began first, and ended last
    ledger.add("history_restore", 0.1, 0.2)
    calls = [(row["phase"], row.get("call")) for row in ledger.rows()]
    assert calls == [("history_restore", None), ("llm_invoke", 1), ("tool_call", 1), ("tool_call", 2)]
    ledger.add("llm_invoke", 3.0, 4.0)
    assert ledger.rows()[-1] == {"phase": "llm_invoke", "depth": 0, "start_ms": 3000.0, "ms": 1000.0, "call": 2}
    assert all("call" not in row for row in Ledger(kpi).rows())


def test_what_no_phase_covers_gets_a_name(kpi: Kpi) -> None:
    kpi.register_phase("graph")
    ledger = Ledger(kpi)
    with ledger.activate(), phase("stream_agent_response"):
        now = perf_counter()
        with ledger.name_gaps("graph"):  # rows of the future, so that the gaps are as long as they say
            ledger.add("vector_search", now + 30, now + 34)
            ledger.add("kf_vector_search", now + 31, now + 32, depth=2)
            ledger.add("llm_invoke", now + 10, now + 20)
            ledger.add("tool_call", now + 20.00001, now + 25)  # a gap too short to say anything
    rows = [(row["phase"], row["depth"], round(row["ms"])) for row in ledger.rows() if row["depth"] == 1]
    assert rows == [
        ("graph", 1, 10_000),
        ("llm_invoke", 1, 10_000),
        ("tool_call", 1, 5000),
        ("graph", 1, 5000),
        ("vector_search", 1, 4000),
    ]
    observed = kpi.timers["app.phase_latency_ms|phase=graph"].rollup.take()
    assert observed is not None
    assert (observed.count, round(observed.total)) == (2, 15_000)


def test_gaps_of_a_block_that_fails_are_named_and_those_of_a_full_ledger_are_not(kpi: Kpi) -> None:
    ledger = Ledger(kpi)

    def fail() -> None:
        with ledger.name_gaps("graph"):
            ledger.add("llm_invoke", perf_counter() + 10, perf_counter() + 20)
            raise KeyError

    with ledger.activate(), pytest.raises(KeyError):
        fail()
    assert [row["phase"] for row in ledger.rows()] == ["graph", "llm_invoke"]
    full = Ledger(kpi)
    with full.activate(), full.name_gaps("graph"):
        for _ in range(MAX_ROWS + 1):
            full.add("tool_call", perf_counter() + 10, perf_counter() + 20)
    assert {row["phase"] for row in full.rows()} == {"tool_call"}
