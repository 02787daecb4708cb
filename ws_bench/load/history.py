"""Whether acknowledged turns were stored: each turn that ended well is looked up in its session's history."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ws_bench.errors import TurnBroken
from ws_bench.load.sessions import SessionApi, for_each
from ws_bench.record.dialects import answer_of
from ws_bench.record.recording import HistoryCheck

_RETRY_S = 0.5


class AcknowledgedTurns:
    """Answers of the turns whose final was read, by session and exchange."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, str]] = {}

    def add(self, session_id: str, exchange_id: str, answer: str) -> None:
        """Record a turn that ended well."""
        self.answers.setdefault(session_id, {})[exchange_id] = answer


@dataclass(slots=True)
class _Finding:
    """The result of checking one session."""

    missing: list[str]
    altered: list[str]
    disordered: bool = False
    unread: int = 0


async def verify_history(
    sessions: SessionApi, acknowledged: AcknowledgedTurns, *, patience_s: float, concurrency: int
) -> HistoryCheck:
    """Read the history of every session; one that lacks a turn is read again for up to `patience_s`."""
    findings: list[_Finding] = []

    async def check(session_id: str) -> None:
        answers = acknowledged.answers[session_id]
        findings.append(await _check_session(sessions, session_id, answers, patience_s))

    await for_each(acknowledged.answers, check, concurrency=concurrency)
    samples = [text for finding in findings for text in (*finding.missing, *finding.altered)]
    return HistoryCheck(
        acknowledged=sum(len(answers) for answers in acknowledged.answers.values()),
        missing=sum(len(finding.missing) for finding in findings),
        altered=sum(len(finding.altered) for finding in findings),
        disordered=sum(finding.disordered for finding in findings),
        unread=sum(finding.unread for finding in findings),
        samples=samples[:5],
    )


async def _check_session(
    sessions: SessionApi, session_id: str, answers: Mapping[str, str], patience_s: float
) -> _Finding:
    """The result of the last reading. The history is read once more after `patience_s`: the process may have slept."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + patience_s
    while True:
        is_last = loop.time() >= ends_at
        try:
            async with asyncio.timeout(patience_s):
                finding = compare_history(await sessions.history(session_id), answers)
        except (TurnBroken, TimeoutError):
            finding = _Finding([], [], unread=len(answers))
        if is_last or (not finding.missing and not finding.unread):
            return finding
        await asyncio.sleep(max(0.0, min(_RETRY_S, ends_at - loop.time())))


def compare_history(messages: Sequence[Mapping[str, Any]], answers: Mapping[str, str]) -> _Finding:
    """Compare one session's messages with the answers that were acknowledged in it."""
    finding = _Finding([], [])
    by_exchange: dict[str, list[Mapping[str, Any]]] = {}
    for message in messages:
        by_exchange.setdefault(str(message.get("exchange_id")), []).append(message)
    for exchange_id, answer in answers.items():
        kept = by_exchange.get(exchange_id, [])
        finals = [m for m in kept if m.get("role") == "assistant" and m.get("channel", "final") == "final"]
        if not finals:
            finding.missing.append(f"{exchange_id} is not in the history")
        elif len(finals) > 1 or answer_of(finals) != answer:
            finding.altered.append(f"{exchange_id} is there with {len(finals)} answer(s) and another text")
    ranks = [message["rank"] for message in messages if isinstance(message.get("rank"), int)]
    finding.disordered = any(second <= first for first, second in itertools.pairwise(ranks))
    return finding
