"""The rung below the agent: one direct model call within the limits of turns, no graph, no session, nothing stored."""

import asyncio
import logging

from agentic_backend.agent import AgentAnswer, AgentRun, DirectAnswer
from agentic_backend.errors import Draining, ExchangeNotFound, TurnDeadline
from agentic_backend.session.admission import Admission
from agentic_backend.session.exchange import Exchange
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Accepted, Ask, Cancelled, Failed, Final, Turn
from agentic_backend.session.turn import refuse
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code, ServiceError

logger = logging.getLogger(__name__)


class BaselineTurns:
    """Answers asks with the model alone. The session in `final` is made up: it exists nowhere."""

    def __init__(self, direct: DirectAnswer, admission: Admission, tasks: TaskRegistry, *, turn_s: float) -> None:
        self._direct = direct
        self._admission = admission
        self._tasks = tasks
        self._turn_s = turn_s
        self._turns: dict[tuple[str, str], Turn] = {}
        self.draining = False

    def submit(self, ask: Ask) -> Turn:
        """Start the call."""
        turn = Turn(ask)
        try:
            if ask.human is not None:
                raise ExchangeNotFound
            if self.draining:
                raise Draining(retry_after_s=2.0)
            self._admission.check(ask.user_id)
        except ServiceError as error:
            refuse(turn, error)
            return turn
        self._admission.enter_user(ask.user_id)
        self._turns[(ask.user_id, ask.exchange_id)] = turn
        turn.bind(self._tasks.spawn("baseline", lambda: self._run(turn)))
        return turn

    def find(self, exchange_id: str, user_id: str) -> Turn | None:
        """The running call, or None."""
        return self._turns.get((user_id, exchange_id))

    def resume(self, session_id: str, exchange_id: str, user_id: str, request_id: str = "") -> Turn:
        """The running call; nothing is known of one that has ended."""
        turn = self.find(exchange_id, user_id)
        if turn is not None and turn.ask.session_id == session_id:
            return turn
        unknown = Turn(Ask(session_id, "", "", exchange_id, user_id, 0.0, request_id=request_id))
        refuse(unknown, ExchangeNotFound())
        return unknown

    async def _run(self, turn: Turn) -> None:
        ask = turn.ask
        try:
            turn.begin()
            await self._admission.enter()
            try:
                await self._answer(turn)
            finally:
                self._admission.leave()
        except ServiceError as error:
            refuse(turn, error)
        except asyncio.CancelledError:
            turn.publish(Cancelled((), Session.new(ask.user_id, ask.agent_id, "baseline")))
        finally:
            self._turns.pop((ask.user_id, ask.exchange_id), None)
            self._admission.leave_user(ask.user_id)

    async def _answer(self, turn: Turn) -> None:
        ask = turn.ask
        exchange = Exchange(turn, Session.new(ask.user_id, ask.agent_id, "baseline"))
        turn.publish(Accepted())
        exchange.open()
        try:
            async with asyncio.timeout(self._turn_s):
                answer = await self._direct.run(self._agent_run(exchange))
        except asyncio.CancelledError:
            turn.publish(Cancelled(tuple(exchange.messages), exchange.next_session()))
        except TimeoutError:
            self._fail(exchange, TurnDeadline.code)
        except ServiceError as error:
            self._fail(exchange, error.code)
        else:
            self._finish(exchange, answer)
        finally:
            if not turn.ended:
                self._fail(exchange, Code.INTERNAL)  # nobody foresaw it, and the task's owner logs it

    def _agent_run(self, exchange: Exchange) -> AgentRun:
        ask = exchange.ask
        return AgentRun(
            session_id=ask.session_id,
            exchange_id=ask.exchange_id,
            user_id=ask.user_id,
            message=ask.message,
            history=(),
            runtime_context=ask.runtime_context,
            language=ask.language,
            emit=exchange.emit,
        )

    def _finish(self, exchange: Exchange, answer: AgentAnswer) -> None:
        exchange.close(answer.text, answer.parts, answer.metadata)
        messages = tuple(exchange.messages)
        exchange.turn.publish(Final(messages, exchange.next_session(), [], 0.0, "none"))

    def _fail(self, exchange: Exchange, code: Code) -> None:
        failed = Failed(code, refused=False, language=exchange.ask.language, partial=bool(exchange.text))
        metadata = {"finish_reason": "other", "extras": {"error": code.value}}
        exchange.close(failed.text, [], metadata)
        exchange.turn.publish(
            Failed(
                code,
                refused=False,
                language=exchange.ask.language,
                partial=failed.partial,
                messages=tuple(exchange.messages),
                session=exchange.next_session(),
            )
        )
