"""Whether acknowledged turns are found again."""

import asyncio
from typing import Any

from ws_bench.errors import SessionCallFailed
from ws_bench.load.history import AcknowledgedTurns, compare_history, verify_history


def row(exchange_id: str, role: str, text: str, rank: int) -> dict[str, Any]:
    return {
        "exchange_id": exchange_id, "role": role, "channel": "final", "rank": rank,
        "parts": [{"type": "text", "text": text}],
    }  # fmt: skip


def test_a_history_that_holds_every_turn_as_answered_is_good() -> None:
    messages = [
        row("a", "user", "q", 0),
        row("a", "assistant", "A", 1),
        row("b", "user", "q", 2),
        row("b", "assistant", "B", 3),
    ]
    found = compare_history(messages, {"a": "A", "b": "B"})
    assert (found.missing, found.altered, found.disordered) == ([], [], False)


def test_what_is_missing_altered_or_out_of_order_is_found() -> None:
    messages = [
        row("a", "assistant", "A", 1), row("b", "assistant", "not B", 2), row("c", "assistant", "C", 3),
        row("c", "assistant", "C", 3), row("d", "user", "only the question", 4),
    ]  # fmt: skip
    found = compare_history(messages, {"a": "A", "b": "B", "c": "C", "d": "D", "e": "E"})
    assert [text.split()[0] for text in found.missing] == ["d", "e"]
    assert [text.split()[0] for text in found.altered] == ["b", "c"]
    assert found.disordered


class Store:
    """Histories that get their rows one read at a time."""

    def __init__(self, reads: dict[str, list[Any]]) -> None:
        self.reads = reads

    async def history(self, session_id: str) -> list[dict[str, Any]]:
        reads = self.reads[session_id]
        answer = reads.pop(0) if len(reads) > 1 else reads[0]
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


async def test_a_turn_that_comes_late_is_waited_for_and_one_that_never_comes_is_counted() -> None:
    acknowledged = AcknowledgedTurns()
    acknowledged.add("late", "a", "A")
    acknowledged.add("never", "b", "B")
    acknowledged.add("unread", "c", "C")
    store = Store(
        {
            "late": [[], [row("a", "assistant", "A", 1)]],
            "never": [[]],
            "unread": [SessionCallFailed("history_500")],
        }
    )
    check = await verify_history(store, acknowledged, patience_s=1.2, concurrency=3)  # type: ignore[arg-type]
    assert (check.acknowledged, check.missing, check.unread, check.good) == (3, 1, 1, False)
    assert check.samples == ["b is not in the history"]


async def test_a_history_that_could_not_be_read_in_time_is_read_once_more() -> None:
    class Late(Store):
        async def history(self, session_id: str) -> list[dict[str, Any]]:
            if len(self.reads[session_id]) > 1:
                self.reads[session_id].pop(0)
                await asyncio.Event().wait()
            return await super().history(session_id)

    acknowledged = AcknowledgedTurns()
    acknowledged.add("s", "a", "A")
    store = Late({"s": [[], [row("a", "assistant", "A", 1)]]})
    check = await verify_history(store, acknowledged, patience_s=0.2, concurrency=1)  # type: ignore[arg-type]
    assert (check.acknowledged, check.missing, check.unread, check.good) == (1, 0, 0, True)
