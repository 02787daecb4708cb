"""Turns that an earlier process had begun and not ended: restarted by the service, or left interrupted."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from agentic_backend.agent import GraphInput
from agentic_backend.errors import Draining, HistoryUnavailable, StorageFull
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.branches import Branching
from agentic_backend.session.models import AskRecord, DoorRerun, GraphRerun, Rerun
from agentic_backend.session.past_exchanges import KnownSession, StoredExchange
from agentic_backend.session.store import CutOffTurns, HeldElsewhere, LeaseLost
from agentic_backend.session.stream import Ask, HumanAnswer, Turn
from agentic_backend.session.turn import TurnRunner, refuse
from agentic_backend.session.turn_report import loggable
from backend_kit.aio.retry import Backoff, try_again
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartRules:
    """The pace of turns that the service runs again. Waits in seconds."""

    pause_s: float = 0.02
    """Between two of them: a process that had thousands of turns must not begin all of them at once."""
    longest_s: float = 2.0
    """The longest wait between two looks at a database that has gone away."""


class Restarts:
    """Runs turns of an earlier process again, each once, in the order in which they had begun.

    They wait for `ready` (the schema and the agents are known), and behind every ask of a client for a slot. The run is
    counted on disk before anything of the agent is touched: a turn that kills its process must not do so endlessly. One
    that cannot run is stored as interrupted, and may be asked again: its agent is gone or must not run it by now, its
    ranks are taken, storage has no room, or the process ends.
    """

    def __init__(
        self,
        runner: TurnRunner,
        turns: CutOffTurns,
        ready: Callable[[], Awaitable[None]],
        rules: RestartRules | None = None,
    ) -> None:
        self._runner = runner
        self._turns = turns
        self._ready = ready
        self._rules = rules or RestartRules()
        self._one_by_one = asyncio.Lock()
        self._leaving = False

    def begin(self) -> list[Turn]:
        """The turns that are left, not running yet."""
        begun = [self.turn_of(cut) for cut in self._turns.take_over()]
        if begun:
            logger.warning("turns that the end of a process cut off are run again: %d", len(begun))
        return begun

    def turn_of(self, cut: AskRecord) -> Turn:
        """One that another process had begun, not running yet."""
        return Turn(ask_of(cut), cut=cut)

    def leave(self, turn: Turn) -> None:
        """The process ends: a turn that has not begun is left interrupted."""
        self._leaving = True
        if not turn.has_published:
            turn.cancel()

    async def run_turn(self, turn: Turn, known: KnownSession | None) -> KnownSession | None:
        """Run the turn to its terminal event, as `TurnRunner.run_turn`; its session runs no other meanwhile."""
        cut = turn.cut
        assert cut is not None
        unforeseen = True
        try:
            await self._turn_comes()
            turn.cut = cut = await self._turns.begin_again(cut)
            known = await self._run(turn, known)
            self._turns.drop(cut)  # if it was replayed from history: it had ended, and only the spool did not know
            unforeseen = False
        except (HeldElsewhere, LeaseLost):
            unforeseen = False  # another instance continues it
            raise
        except ServiceError as error:
            unforeseen = False
            self._give_up(turn, cut, error)
            return None
        except asyncio.CancelledError:
            unforeseen = False
            if not turn.cancel_requested:
                raise  # the process ends without a drain: the next one finds the turn in the spool
            self.stopped(turn)
            return None
        finally:
            # An agent that cannot be built, say: history must not lack the question until the next start.
            if unforeseen:
                self._turns.give_up(cut.interrupted())
        return known

    def stopped(self, turn: Turn) -> None:
        """Store a turn that was stopped before it began: by its user, or by the end of the process."""
        assert turn.cut is not None
        self._give_up(turn, turn.cut, Draining(retry_after_s=2.0) if self._leaving else None)

    async def _turn_comes(self) -> None:
        async with self._one_by_one:
            await self._ready()
            await asyncio.sleep(self._rules.pause_s)
        if not self._turns.has_room():
            raise StorageFull(retry_after_s=5.0)

    async def _run(self, turn: Turn, known: KnownSession | None) -> KnownSession | None:
        backoff = Backoff(longest_s=self._rules.longest_s)

        async def attempt() -> KnownSession | None:
            turn.ask = replace(turn.ask, received_at=time.perf_counter())
            return await self._runner.run_turn(turn, known)

        return await try_again(attempt, HistoryUnavailable, lambda _failure, _attempts: backoff.next_s())

    def _give_up(self, turn: Turn, cut: AskRecord, error: ServiceError | None) -> None:
        """Leave a turn interrupted, because of an error, or as its user stopped it."""
        record = cut.interrupted(by_restart=error is not None)
        self._turns.give_up(record)
        if error is not None:
            shown_id = loggable(turn.ask.exchange_id)
            logger.warning("turn is left interrupted exchange_id=%s code=%s", shown_id, error.code)
        if isinstance(error, StorageFull | Draining):
            refuse(turn, error)  # as any ask is refused now: followers come back, and it runs then
            return
        session = record.session.preferring(turn.preferences).titled(turn.title)
        StoredExchange(record.messages).publish(turn, session)


def ask_of(cut: AskRecord) -> Ask:
    """The ask of a cut-off turn as this process runs it: without credentials or followers, and with the same answer of
    a person."""
    session = cut.session
    rerun = cut.rerun or Rerun(cut.agent_id or session.agent_id)
    of_door = rerun if isinstance(rerun, DoorRerun) else DoorRerun(rerun.agent_id)
    given = of_door.given
    branching = Branching.of(cut.user_message)
    said = cut.earlier[-1] if cut.earlier else cut.user_message
    return Ask(
        session_id=session.id,
        agent_id=rerun.agent_id,
        message=cut.user_message.text,
        images=cut.user_message.images,
        exchange_id=cut.user_message.exchange_id,
        user_id=session.user_id,
        received_at=time.perf_counter(),
        runtime_context=rerun.runtime_context,
        language=rerun.language,
        if_busy="queue",
        request_id=rerun.request_id,
        human=None if rerun.human is None else HumanAnswer(rerun.human),
        model=rerun.model,
        lenient=True,  # a model that is no longer offered is no reason to leave the question without an answer
        given=None if given is None else tuple(HistoryItem.of_stored(item) for item in given),
        client_tools=tuple(of_door.client_tools),
        turn_s=of_door.turn_s,
        note=said.metadata.get("extras", {}).get("note"),
        graph=GraphInput.of_stored(rerun.graph) if isinstance(rerun, GraphRerun) else None,
        after_rank=branching.after_rank,
        regenerate=branching.regenerates,
    )
