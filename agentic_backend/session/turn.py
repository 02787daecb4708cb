"""One turn from its acceptance to its terminal event, and its record."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, replace
from typing import Any

from agentic_backend.agent import AgentAnswer, AgentRun, MovesOn, ResumedRun, SavedRun, TurnAgent, TurnAgents, Waiting
from agentic_backend.agent.people import answers_for, outcome_of, run_of
from agentic_backend.errors import (
    BadRequest,
    Conflict,
    Draining,
    ExchangeNotFound,
    ModelWithoutVision,
    NotAwaiting,
    SessionBusy,
    SessionNotFound,
    StorageFull,
    TurnDeadline,
    TurnFailed,
)
from agentic_backend.events import AgentEvent, ChatMessage, Delta, text_part, utc_now
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.admission import Admission
from agentic_backend.session.branches import BEFORE_ALL, Branching, is_question
from agentic_backend.session.exchange import Exchange
from agentic_backend.session.images import ImageStore, ShownImages, names_images, shown_images
from agentic_backend.session.models import AskRecord, DoorRerun, Durability, GraphRerun, Rerun, Session, TurnRecord
from agentic_backend.session.past_exchanges import AWAITING, KnownSession, SessionMemory, StoredExchange
from agentic_backend.session.store import (
    Elsewhere,
    HeldElsewhere,
    Lease,
    LeaseLost,
    Leases,
    SessionAwaited,
    TurnLog,
    TurnStore,
    load_owned,
)
from agentic_backend.session.stream import (
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Failed,
    Final,
    SessionChanged,
    Turn,
    Whole,
)
from agentic_backend.session.titles import Titles
from agentic_backend.session.turn_report import NUMBERED, TurnEnd, TurnReports, loggable, usage_of
from backend_kit.auth import AuditAction, AuditEvent, NoteEvent
from backend_kit.kpi import Kpi, Ledger, Status, phase
from backend_kit.wire import Code, ServiceError, dumps, message_for

logger = logging.getLogger(__name__)

MODEL_PREFERENCE = "model"
"""The session preference that names the model of asks without one."""
_GIVEN_BYTES = 64 * 1024
"""Bytes of what a client sent with its question that are written to disk so that the turn can run again."""
_ACK_PHASES: Mapping[Durability, str] = {"spool": "spool_ack", "db": "db_ack", "none": "turn_close"}
_LEASE_PAUSE_S = 0.05
_LONGEST_LEASE_PAUSE_S = 0.5
_REST_S = 12 * 3600.0
"""A session that was used within this time cannot have been pruned meanwhile: retention counts whole days."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """The bounds of a turn: its seconds in total, how many earlier exchanges the agent gets, and whether its reasoning
    is stored. `authenticated` is whether users are: then a turn that uses their credentials cannot run again without
    them. `kept` is whether anything of a turn is stored, and `ack` what its end waits for. `lease_wait_s` is how long
    an ask that queues waits for a turn that another instance runs."""

    turn_s: float
    restore_max_exchanges: int
    keep_thoughts: bool = False
    authenticated: bool = False
    kept: bool = True
    ack: Durability = "spool"
    lease_wait_s: float = 300.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The state needed to accept a turn. `model` is the id of the one that answers, `checkpoint` the agent's newest one
    where that is older than `history`, `asked` the question of a rerun, `waited` the exchange that waited for a person,
    `saved` its claimed run, `images` what the turn shows of those that it or an earlier one names."""

    session: Session
    agent: TurnAgent
    history: Sequence[HistoryItem]
    lease: Lease | None
    model: str
    checkpoint: str = ""
    asked: ChatMessage | None = None
    waited: StoredExchange | None = None
    saved: Any = None
    images: ShownImages | None = None


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a run ended: `status` for the metrics, `code` if it failed, with when to retry and which field of what was
    sent was wrong if that is known, `question` if it waits for a person."""

    status: Status
    code: Code | None = None
    answer: AgentAnswer | None = None
    question: dict[str, Any] | None = None
    retry_after_ms: int | None = None
    field: str | None = None


class TurnRunner:
    """Runs turns. Stateless between them; `run_turn` may be called concurrently any number of times.

    With `leases` other instances run turns of the same sessions: each turn then runs under a lease, and its question is
    stored before it is accepted. `elsewhere` are the turns that those run. `memory` is how sessions are remembered
    between turns.
    """

    def __init__(
        self,
        *,
        store: TurnStore,
        images: ImageStore,
        log: TurnLog,
        catalog: TurnAgents,
        admission: Admission,
        metrics: AgenticMetrics,
        kpi: Kpi,
        reports: TurnReports,
        rules: TurnRules,
        leases: Leases | None = None,
        elsewhere: Elsewhere | None = None,
        titles: Titles | None = None,
        memory: SessionMemory | None = None,
        replays: Callable[[str], AbstractAsyncContextManager[object]] = lambda _user_id: contextlib.nullcontext(),
        note: NoteEvent = lambda _event: None,
    ) -> None:
        """`replays` admits a read of an exchange from history for a user; it raises ServiceError if it cannot. `note`
        is called with how people answer agents."""
        self._note = note
        self.memory = memory or SessionMemory()
        self._store = store
        self._images = images
        self._log = log
        self._catalog = catalog
        self._admission = admission
        self._metrics = metrics
        self._kpi = kpi
        self._reports = reports
        self._rules = rules
        self._leases = leases
        self.elsewhere = elsewhere
        self._titles = titles
        self._replays = replays

    @property
    def alone(self) -> bool:
        """Whether no other process runs turns of the same sessions."""
        return self._leases is None

    async def run_turn(self, turn: Turn, known: KnownSession | None) -> KnownSession | None:
        """Run the turn to its terminal event. Returns the session's state after it, None if it does not exist.

        `known` is the session's state as this process last knew it; the caller must ensure that no other turn of the
        session runs meanwhile. An ask whose exchange has ended is replayed from history, without the agent.

        A turn that an earlier process had begun (`turn.cut`) is not refused if it cannot begin: it raises the
        ServiceError, or the CancelledError of a stop, and has published nothing. Raises `HeldElsewhere` if another
        instance runs this exchange, and `LeaseLost` if one may continue it: then it has no end here. Raises
        `SessionAwaited` if it must be run later.
        """
        ask = turn.ask
        ledger = Ledger(
            self._kpi,
            started=ask.received_at,
            owner=self._known_agent(ask.agent_id),
            numbered=NUMBERED,
            traceparent=self._reports.traceparent(ask),
        )
        with contextlib.ExitStack() as ending:
            ending.enter_context(ledger.activate())
            self._reports.begin(ledger)
            ending.callback(self._reports.leave, ledger)
            try:
                agent = self._catalog.get(ask.agent_id)
                while True:
                    lease = await self._lease(turn)
                    # In two steps: if it cannot be loaded, its earlier state is no longer valid either.
                    known = _if_current(known, lease)
                    known, prepared = await self._known_and_prepared(turn, known, agent, lease)
                    if prepared is None:
                        return known
                    exchange, begun = self._begin_exchange(turn, prepared)
                    try:
                        waited_s, prepared = await self._take_slot(turn, prepared, begun)
                    except LeaseLost:
                        if turn.has_published:
                            raise
                        known = None  # another instance had it meanwhile: everything read here is out of date
                    else:
                        break
            except (ServiceError, asyncio.CancelledError) as error:
                if turn.let_go and isinstance(error, asyncio.CancelledError):
                    _uncancel()
                    raise LeaseLost from None
                if turn.cut is not None:
                    raise
                self._not_begun(turn, known, error, ledger)
                return None if isinstance(error, SessionNotFound) else known
            self._metrics.admission_wait.observe(waited_s)
            try:
                return known.after(await self._run_accepted(exchange, begun, prepared, ledger), ask.exchange_id)
            finally:
                self._admission.leave(prepared.model)

    def _not_begun(
        self, turn: Turn, known: KnownSession | None, error: ServiceError | asyncio.CancelledError, ledger: Ledger
    ) -> None:
        if turn.refused_by_drain and isinstance(error, asyncio.CancelledError):
            error = Draining(retry_after_s=2.0)
        if isinstance(error, ServiceError):
            refuse(turn, error)
            self._reports.refused(turn.ask, error, ledger)
        else:
            self._stopped_before_start(turn, known)

    async def publish_past(self, turn: Turn) -> None:
        """Publish the turn's exchange from history; a ServiceError becomes the turn's only event."""
        ask = turn.ask
        try:
            async with self._replays(ask.user_id):
                with self._kpi.phase("history_get"):
                    session = await self._store.get(ask.session_id, ask.user_id)
                    encoded = await self._store.exchange(ask.session_id, ask.user_id, ask.exchange_id)
            if session is None or not encoded:
                raise ExchangeNotFound
        except ServiceError as error:
            refuse(turn, error)
            return
        StoredExchange.decode(encoded).publish(turn, session)

    async def _lease(self, turn: Turn) -> Lease | None:
        """The session's lease, None without leases. An ask that may wait does so while another instance runs a turn of
        the session; one that replaces it stops that.

        Raises `HeldElsewhere` if that turn is this ask's, `SessionAwaited` if it goes on here, and as `Leases.acquire`.
        """
        if self._leases is None:
            return None
        ask = turn.ask
        with phase("session_read"):
            pause_s, stopped = _LEASE_PAUSE_S, ""
            give_up_at = time.monotonic() + self._rules.lease_wait_s
            while True:
                try:
                    lease = await self._leases.acquire(ask.session_id, ask.user_id)
                    if not turn.gives_way:
                        return lease
                except HeldElsewhere as held:
                    if held.exchange_id == ask.exchange_id:
                        raise
                    if ask.if_busy == "reject" or time.monotonic() > give_up_at:
                        raise SessionBusy(retry_after_s=1.0) from None
                    if ask.if_busy == "replace" and stopped != held.exchange_id and self.elsewhere is not None:
                        stopped = held.exchange_id
                        await self.elsewhere.stop(stopped, ask.user_id)
                if turn.gives_way:
                    raise SessionBusy(retry_after_s=1.0) if ask.if_busy == "reject" else SessionAwaited
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_LEASE_PAUSE_S)

    async def _load(self, ask: Ask) -> KnownSession:
        """The session and its exchange ids from storage, read once for as long as this process remembers it."""
        with phase("session_read"):
            session = await load_owned(self._store, ask.session_id, ask.user_id)
            if session.rested and not await self._store.touch(ask.session_id, ask.user_id):
                raise SessionNotFound
            if session.next_rank == 0:
                return self.memory.know(session)
            ids = await self._store.exchange_ids(ask.session_id, ask.user_id, self.memory.exchanges + 1)
        return self.memory.read(session, ids)

    async def _stored(self, ask: Ask, known: KnownSession) -> StoredExchange | None:
        """The exchange of this ask if it has ended before; raises Conflict if it cannot be answered again."""
        if not known.may_have(ask.exchange_id):
            return None
        with phase("history_get"):
            encoded = await self._store.exchange(ask.session_id, ask.user_id, ask.exchange_id)
        if not encoded:
            return None
        stored = StoredExchange.decode(encoded)
        if ask.human is not None:
            return stored
        if not stored.is_of(ask) or (stored.cut_off and not stored.is_newest_of(known.session)):
            raise Conflict
        return stored

    async def _known_and_prepared(
        self, turn: Turn, known: KnownSession | None, agent: TurnAgent, lease: Lease | None
    ) -> tuple[KnownSession, _Prepared | None]:
        """The session's state, as remembered or from storage, and what `_prepare` makes of it."""
        if known is not None:
            try:
                return known, await self._prepare(turn, known, agent, lease)
            except (BadRequest, Conflict, ExchangeNotFound, NotAwaiting):
                if lease is None:
                    raise
                # Another instance may have had the session since: only the record of a question would show it.
        known = await self._load(turn.ask)
        return known, await self._prepare(turn, known, agent, lease)

    async def _prepare(
        self, turn: Turn, known: KnownSession, agent: TurnAgent, lease: Lease | None
    ) -> _Prepared | None:
        """What the turn runs with; None if its exchange has ended before, and was replayed."""
        ask, session = turn.ask, known.session.with_agent(turn.ask.agent_id)
        stored = await self._stored(ask, known)
        if stored is not None and _has_ended(stored, turn):
            stored.publish(turn, session)
            return None
        if turn.cut is not None:
            self._expect_rerun(turn.cut, known, stored, agent)
        elif stored is None:
            turn.ask = ask = await self._placed(ask, session)
        elif ask.human is None:
            turn.ask = ask = ask.begun_at(stored.question)  # it was placed when it began for the first time
        if ask.graph is not None:
            agent.expect_input(ask.graph)
        model = agent.model_of(ask.model, session.preferences.get(MODEL_PREFERENCE), lenient=ask.lenient)
        history, checkpoint = await self._history(ask, session, agent)
        prepared = _Prepared(session, agent, history, lease, model, checkpoint)
        if ask.human is not None:
            prepared = replace(prepared, **_continuation(turn, known, stored))
        elif stored is not None:
            turn.restarted = True
            prepared = replace(prepared, session=stored.before(session), asked=stored.question)
        elif turn.cut is not None:
            prepared = replace(prepared, asked=turn.cut.user_message)
        return await self._seeing(turn.ask, prepared)

    async def _seeing(self, ask: Ask, prepared: _Prepared) -> _Prepared:
        """The prepared turn with the images that the model is to see. Raises ModelWithoutVision if a new question has
        some and the model sees none, and as `shown_images`."""
        if not names_images(ask, prepared.history):
            return prepared
        begins = prepared.asked is None
        if not prepared.agent.sees(prepared.model):
            if ask.images and begins:
                raise ModelWithoutVision(field="images")
            return prepared
        with phase("images_read"):
            shown = await shown_images(self._images, ask, prepared.history, whole=begins and ask.regenerate is None)
        return replace(prepared, history=shown.history, images=shown)

    async def _placed(self, ask: Ask, session: Session) -> Ask:
        """The ask of a new exchange, with the message behind which it begins, if that is not the newest. Raises
        BadRequest where no exchange of the live line, or of any, ends there or has the question to be asked again."""
        if ask.regenerate is not None:
            with phase("history_get"):
                return await self._regenerating(ask, ask.regenerate)
        after_rank = ask.after_rank
        if after_rank is None or after_rank in (BEFORE_ALL, session.next_rank - 1):
            return ask
        with phase("history_get"):
            standing = await self._store.standing(ask.session_id, ask.user_id, after_rank)
        if standing is None or not standing.ends or not (standing.live or ask.any_branch):
            raise BadRequest(field="after_rank")
        return ask

    async def _regenerating(self, ask: Ask, exchange_id: str) -> Ask:
        encoded = await self._store.exchange(ask.session_id, ask.user_id, exchange_id)
        question = StoredExchange.decode(encoded).question if encoded else None
        if question is None or not is_question(question) or not question.text:
            raise BadRequest(field="regenerate")
        standing = await self._store.standing(ask.session_id, ask.user_id, question.rank)
        if standing is None or not (standing.live or ask.any_branch):
            raise BadRequest(field="regenerate")
        before = Branching.of(question).after_rank
        after_rank = question.rank - 1 if before is None else before
        return replace(ask, message=question.text, images=question.images, after_rank=after_rank)

    async def _history(self, ask: Ask, session: Session, agent: TurnAgent) -> tuple[Sequence[HistoryItem], str]:
        """The conversation before the question: what the client sent, else the last exchanges, and the checkpoint from
        which the agent goes on if none of them names one: exchanges of other agents and failed ones count among the
        last, too."""
        if ask.given is not None:
            return ask.given, ""
        if ask.after_rank == BEFORE_ALL:
            return (), ""
        # Up to the newest message it is the live line, which is cached.
        up_to = ask.after_rank if ask.after_rank is not None and ask.after_rank < session.next_rank - 1 else None
        key = (ask.session_id, ask.user_id)
        with phase("history_restore"):
            history = await self._store.remembered(*key, self._rules.restore_max_exchanges, up_to)
            # A question to a person names its checkpoint itself.
            if session.next_rank == 0 or ask.human is not None or not agent.misses_state(ask.session_id, history):
                return history, ""
            return history, await self._store.newest_checkpoint(*key, ask.agent_id, up_to)

    def _expect_rerun(
        self, cut: AskRecord, known: KnownSession, stored: StoredExchange | None, agent: TurnAgent
    ) -> None:
        """Raise Conflict if the service may not restart a turn: its agent no longer may, or its ranks are taken."""
        if not self._may_rerun(agent, continued=cut.earlier is not None):
            raise Conflict
        if stored is None and known.session.next_rank != cut.user_message.rank:
            raise Conflict

    def _may_rerun(self, agent: TurnAgent, *, continued: bool) -> bool:
        """Whether a turn of the agent may run again without its user; `continued` after a person was asked.

        What a person has allowed may have been done: only a checkpoint knows.
        """
        if self._rules.authenticated and agent.uses_credentials:
            return False
        return agent.restart == "from_checkpoint" or (agent.restart == "from_question" and not continued)

    def _begin_exchange(self, turn: Turn, prepared: _Prepared) -> tuple[Exchange, AskRecord]:
        """The exchange of the run that begins, which has published nothing, and its record."""
        with phase("turn_open"):
            exchange = Exchange(turn, prepared.session, keep_thoughts=self._rules.keep_thoughts)
            return exchange, _begun(exchange, prepared, self._rerun(turn, prepared))

    async def _take_slot(self, turn: Turn, prepared: _Prepared, begun: AskRecord) -> tuple[float, _Prepared]:
        """Store the question if other instances need it, and take a slot. Returns the seconds waited for it."""
        admission, model = self._admission, prepared.model
        if not turn.counted:
            # Only here is it known that it runs at this instance, and that it has not ended before.
            await admission.enter_overall(turn.ask.user_id)
            turn.counted = True
        recorded = await self._store_question(turn, prepared, begun)
        entered = whole = False
        try:
            queued = turn.cut is None and admission.full(model)
            if queued and not admission.queue_full(model):
                turn.publish(Accepted(admission.waiting + 1))
            with phase("admission_wait"):
                waited_s = await (admission.enter(model) if turn.cut is None else admission.enter_behind(model))
            entered = True
            # Only once there is room to run it: a run can be claimed once, and that of a cut-off turn was.
            if prepared.waited is not None and turn.cut is None:
                asked = prepared.waited.asked_of_person
                prepared = replace(prepared, saved=await prepared.agent.claim(turn.ask.session_id, run_of(asked)))
                self._note(_answered(turn.ask, asked))
                recorded = (
                    None  # if lost now, the instance that has the session continues it: nobody can claim it again
                )
            self._expect_held(prepared.lease)  # all of this may have taken long
            whole = True
        finally:
            # On any failure: a slot that is not returned is lost for good, and a question would be run by others.
            if not whole:
                if entered:
                    admission.leave(model)
                if recorded is not None and self._leases is not None and not turn.let_go:
                    self._leases.withdraw(recorded.fence, (turn.ask.session_id, turn.ask.user_id), turn.ask.exchange_id)
        if turn.cut is not None and turn.cut.rerun is not None:
            # Not before: it has the number of a waiting run only now, and one that cannot begin has no event.
            turn.begin_again(turn.cut.rerun.restarts)
        if not queued:
            turn.publish(Accepted())
        return waited_s, prepared

    async def _store_question(self, turn: Turn, prepared: _Prepared, begun: AskRecord) -> Lease | None:
        """The lease under which the question is now stored for other instances; None if it is not. Raises
        `LeaseLost`."""
        lease, leases = prepared.lease, self._leases
        if lease is None or leases is None or turn.cut is not None:
            return None
        if self._admission.full(prepared.model) and self._admission.queue_full(prepared.model):
            return None  # it will be refused
        with phase("ask_commit"):
            await leases.record(lease, begun)
        return lease

    async def _run_accepted(self, exchange: Exchange, begun: AskRecord, prepared: _Prepared, ledger: Ledger) -> Session:
        turn = exchange.turn
        turn.may_move = self._leases is not None and begun.rerun is not None
        with phase("turn_open"):
            if turn.cut is not None:
                self._metrics.turns_restarted.inc()
            elif prepared.waited is None:
                self._metrics.user_messages.inc()
            _open(exchange, begun)
            self._log.begin(begun)
        ending = await self._answer(exchange, prepared, ledger.traceparent)
        self._expect_held(prepared.lease)
        turn.settle()
        session, durable = await self._record(exchange, ending, ledger, prepared.lease)
        model = ending.answer.metadata.get("model", "") if ending.answer is not None else ""
        end = TurnEnd(
            ending.status,
            ending.code,
            durable,
            str(model),
            exchange.first_token_at,
            exchange.longest_gap_s,
            exchange.deltas,
            ending.answer.text if ending.answer is not None else exchange.text,
        )
        self._reports.ended(exchange.ask, end, ledger)
        return session

    def _rerun(self, turn: Turn, prepared: _Prepared) -> Rerun | None:
        """What a later process needs to restart this turn; None if it must not."""
        ask = turn.ask
        if turn.cut is not None:
            return turn.cut.rerun
        # A client that wanted it stopped when its connection breaks has lost the connection with this process.
        if ask.on_disconnect == "cancel" or not self._may_rerun(prepared.agent, continued=prepared.waited is not None):
            return None
        rerun = Rerun(
            agent_id=ask.agent_id,
            model=prepared.model,
            runtime_context=ask.runtime_context,
            language=ask.language,
            request_id=ask.request_id,
            human=None if ask.human is None else ask.human.payload,
        )
        plain = ask.given is None and not ask.client_tools and ask.turn_s is None and ask.graph is None
        return rerun if plain else _of_door(rerun, ask)

    def _expect_held(self, lease: Lease | None) -> None:
        """Raise `LeaseLost` if another instance may have the session by now."""
        if self._leases is not None and lease is not None:
            self._leases.expect_valid(lease)

    def _while_valid(self, emit: Callable[[AgentEvent], None], lease: Lease | None) -> Callable[[AgentEvent], None]:
        """Ends a run that another instance may have taken over, before it announces its next tool call."""

        def guarded(event: AgentEvent) -> None:
            if type(event) is not Delta:  # text does no harm: it is replaced if another instance continues
                self._expect_held(lease)
            emit(event)

        return guarded

    def _run_of(self, exchange: Exchange, prepared: _Prepared, traceparent: str | None) -> AgentRun:
        """The turn as its agent sees it."""
        ask = exchange.ask
        return AgentRun(
            session_id=ask.session_id,
            exchange_id=ask.exchange_id,
            user_id=ask.user_id,
            message=ask.message,
            history=prepared.history,
            runtime_context=ask.runtime_context,
            language=ask.language,
            emit=exchange.emit if self._leases is None else self._while_valid(exchange.emit, prepared.lease),
            credentials=ask.credentials,
            request_id=ask.request_id,
            traceparent=traceparent,
            resume=_resume(ask, prepared),
            model=prepared.model,
            restarted=exchange.turn.restarted,
            checkpoint=prepared.checkpoint,
            client_tools=ask.client_tools if prepared.agent.client_tools else (),
            kept=self._rules.kept,
            moves=lambda: exchange.turn.moves_after_step and exchange.turn.may_move,
            graph=ask.graph,
            images=() if prepared.images is None else prepared.images.data_urls,
        )

    async def _answer(self, exchange: Exchange, prepared: _Prepared, traceparent: str | None) -> _Ending:
        """Let the agent answer. Each way to end is a value, so that all are recorded alike.

        Raises only `LeaseLost`, if another instance may continue the turn: then it has not ended.
        """
        ask = exchange.ask
        shown_id = loggable(ask.exchange_id)
        run = self._run_of(exchange, prepared, traceparent)
        try:
            with phase("stream_agent_response"):
                try:
                    async with asyncio.timeout(ask.turn_s or self._rules.turn_s) as deadline:
                        answer = await prepared.agent.run(run)
                except Waiting as waiting:  # seen in here: the phase did not fail
                    return _Ending("ok", None, None, waiting.payload)
            # What is not JSON cannot be stored: the agent's failure, found while it can still be recorded as one.
            dumps([answer.parts, answer.metadata])
        except TurnFailed as error:
            logger.warning("turn failed exchange_id=%s code=%s reason=%s", shown_id, error.code, error)
            status: Status = "timeout" if "timeout" in error.code or "deadline" in error.code else "error"
            return _Ending(status, error.code, retry_after_ms=_in_ms(error.retry_after_s), field=error.field)
        except TimeoutError:
            code = TurnDeadline.code if deadline.expired() else Code.INTERNAL
            logger.warning("turn failed exchange_id=%s code=%s", shown_id, code)
            return _Ending("timeout", code)
        except asyncio.CancelledError:
            # From here on the stop is a value: recording it must not be cancelled again.
            _uncancel()
            if exchange.turn.let_go:
                raise LeaseLost from None
            return _Ending("cancelled")
        except MovesOn:
            exchange.turn.mirror_from_now_on(run_over=True)
            raise LeaseLost from None
        except LeaseLost:
            raise
        except Exception:
            # The edge of the turn: an agent is third-party code, and any failure of it must end in an event.
            logger.exception("agent failed exchange_id=%s agent=%s", shown_id, ask.agent_id)
            return _Ending("error", Code.INTERNAL)
        return _Ending("ok", None, answer)

    async def _record(
        self, exchange: Exchange, ending: _Ending, ledger: Ledger, lease: Lease | None
    ) -> tuple[Session, Durability]:
        """Close the exchange, hand it to storage, and only then publish its end."""
        partial = bool(exchange.text)
        with phase("turn_close"):
            self._close(exchange, ending, ledger)
            session = exchange.next_session().preferring(exchange.turn.preferences).titled(exchange.turn.title)
            messages = tuple(sorted(exchange.messages, key=lambda message: message.rank))
            record = TurnRecord(session, exchange.ask.exchange_id, messages, lease.fence if lease else None)
        turn = exchange.turn
        try:
            with phase(_ACK_PHASES[self._rules.ack]):
                durable = await self._log.append(record)
        except StorageFull as error:
            # It is not durable yet, so it is not published as a durable end.
            logger.error("turn not stored exchange_id=%s", loggable(turn.ask.exchange_id))
            turn.publish(
                Failed(error.code, refused=False, language=turn.ask.language, partial=partial, session=session)
            )
            return session, "none"
        self._publish_end(exchange, ending, record, ledger, durable)
        return session, durable

    def _publish_end(
        self, exchange: Exchange, ending: _Ending, record: TurnRecord, ledger: Ledger, durable: Durability
    ) -> None:
        """Publish the terminal event of a recorded turn, after the title that the session got in it."""
        turn, session, messages = exchange.turn, record.session, record.messages
        answered = ending.answer is not None
        if not exchange.session.title and (answered or ending.question is not None):
            turn.publish(SessionChanged(session))
        if ending.question is not None:
            turn.publish(Awaiting(ending.question, messages[:-1], session, _used(messages[-1])))
        elif ending.status == "cancelled":
            turn.publish(Cancelled(messages, session))
        elif ending.code is not None:
            turn.publish(
                Failed(
                    ending.code,
                    refused=False,
                    language=turn.ask.language,
                    retry_after_ms=ending.retry_after_ms,
                    partial=bool(exchange.text),
                    messages=messages,
                    session=session,
                    field=ending.field,
                )
            )
        else:
            turn.publish(self._final(exchange, ending, ledger, session, durable))
            if self._titles is not None and not exchange.session.title and turn.ask.message:
                self._titles.begin(session, turn.ask.message, messages[-1].text)

    def _final(
        self, exchange: Exchange, ending: _Ending, ledger: Ledger, session: Session, durable: Durability
    ) -> Final:
        total_ms = (time.perf_counter() - exchange.ask.received_at) * 1e3
        return Final(
            messages=tuple(sorted(exchange.messages, key=lambda message: message.rank)),
            session=session,
            ledger=dumps(ledger.rows()),
            unattributed_ms=round(ledger.unattributed_ms(total_ms), 3),
            durable=durable,
            warnings=tuple(ending.answer.warnings) if ending.answer else (),
        )

    def _close(self, exchange: Exchange, ending: _Ending, ledger: Ledger) -> None:
        exchange.end_thinking()
        latency_ms = (time.perf_counter() - exchange.ask.received_at) * 1e3
        extras: dict[str, Any] = {
            "ledger": ledger.rows(),
            "total_ms": round(latency_ms, 3),
            "unattributed_ms": round(ledger.unattributed_ms(latency_ms), 3),
        }
        extras.update(exchange.stream_metadata)
        if exchange.turn.restarted:
            extras["restarted"] = True
            if exchange.turn.runs_before > 1:
                extras["restarts"] = exchange.turn.runs_before
        if (usage := usage_of(ledger)) is not None:
            extras["usage"] = usage
        metadata: dict[str, Any] = {"agent_id": exchange.ask.agent_id, "latency_ms": round(latency_ms)}
        if ending.answer is not None:
            metadata.update(ending.answer.metadata)
            metadata["extras"] = {**ending.answer.metadata.get("extras", {}), **extras}
            exchange.close(ending.answer.text, ending.answer.parts, metadata)
            return
        metadata["extras"] = extras
        if ending.question is not None:
            metadata["finish_reason"] = "other"
            # With the number of the event that will publish it, from which a later process continues.
            seq = exchange.turn.next_seq + exchange.published_by_pause + (not exchange.session.title)
            extras.update(status=AWAITING, awaiting={"payload": ending.question, "seq": seq})
            exchange.pause(metadata)
            return
        if ending.code is None:
            extras["status"] = "interrupted"
            metadata["finish_reason"] = "cancelled"
            exchange.close(exchange.text, [], metadata)
            return
        extras["error"] = ending.code.value
        metadata["finish_reason"] = "other"
        excuse = message_for(ending.code, exchange.ask.language)
        if exchange.text:
            exchange.close(exchange.text, [text_part(excuse)], metadata)
        else:
            exchange.close(excuse, [], metadata)

    def _stopped_before_start(self, turn: Turn, known: KnownSession | None) -> None:
        """End a turn that was cancelled while it waited: nothing was stored or shown."""
        ask = turn.ask
        session = known.session if known else Session(ask.session_id, ask.user_id, "", "", utc_now())
        turn.publish(Cancelled((), session.with_agent(ask.agent_id)))
        self._metrics.turns(self._known_agent(ask.agent_id), "cancelled").inc()

    def _known_agent(self, agent_id: str) -> str:
        # A label must come from the configuration, never from what a client sent.
        return self._catalog.label(agent_id)


def _uncancel() -> None:
    """Let the running task continue after a cancellation that it has handled."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _if_current(known: KnownSession | None, lease: Lease | None) -> KnownSession | None:
    """This process' state of a session, unless another process may have changed it since."""
    fresh = lease is None or lease.fresh
    return known if fresh and known is not None and known.used_within(_REST_S) else None


def _continuation(turn: Turn, known: KnownSession, stored: StoredExchange | None) -> dict[str, Any]:
    """The prepared fields of a continued exchange. Raises ExchangeNotFound, NotAwaiting if not for this answer, or
    BadRequest if its question cannot take the answer.

    An exchange waits for as long as it is the newest of its session: asking something else abandons it.
    """
    ask = turn.ask
    if stored is None:
        raise ExchangeNotFound
    if ask.human is None or not stored.is_for(ask) or not stored.is_newest_of(known.session):
        raise NotAwaiting
    answers_for(stored.asked_of_person, ask.human.payload)  # before the run is claimed: a bad answer leaves it waiting
    turn.ask = ask.begun_at(stored.question)
    turn.continue_after(stored.last_seq)
    return {"session": stored.paused(known.session), "asked": stored.question, "waited": stored}


def _begun(exchange: Exchange, prepared: _Prepared, rerun: Rerun | None) -> AskRecord:
    """The record of a run that begins, with the messages that `_open` will publish."""
    cut = exchange.turn.cut
    if prepared.waited is None:
        asked = prepared.asked or exchange.question(() if prepared.images is None else prepared.images.parts)
        return AskRecord(prepared.session, asked, None, rerun, exchange.ask.agent_id)
    asked, *earlier = prepared.waited.messages[:-1]
    noted = cut.earlier[-1:] if cut is not None and cut.earlier else ()
    decided = next((one for one in noted if (one.role, one.channel) == ("user", "observation")), None)
    decided = decided or exchange.decision(prepared.waited.asked_of_person)
    return AskRecord(prepared.session, asked, (*earlier, decided), rerun, exchange.ask.agent_id)


def _open(exchange: Exchange, begun: AskRecord) -> None:
    """Publish what the run begins with."""
    if begun.earlier is None:
        exchange.open(begun.user_message)
        return
    *earlier, decided = (begun.user_message, *begun.earlier)
    exchange.go_on(tuple(earlier))
    if exchange.turn.cut is not None:
        # Clients that followed the run that was cut off drop what they have of the exchange.
        for message in earlier:
            exchange.turn.publish(Whole(message))
    exchange.decide(decided)


def _has_ended(stored: StoredExchange, turn: Turn) -> bool:
    """Whether an exchange in history has its end, and is only to be replayed."""
    if stored.cut_off:
        return False
    # A cut-off turn that a person had let continue ran on from where it waited, if it did not end.
    return turn.ask.human is None or (turn.cut is not None and not stored.awaits)


def _of_door(rerun: Rerun, ask: Ask) -> Rerun | None:
    """The rerun of an ask with what only doors send; None if that is too much for the spool."""
    given = None if ask.given is None else [item.stored() for item in ask.given]
    graph = None if ask.graph is None else ask.graph.stored()
    if len(dumps([given, ask.client_tools, graph])) > _GIVEN_BYTES:
        return None
    of_door = DoorRerun(
        **{one.name: getattr(rerun, one.name) for one in fields(rerun)},
        given=given,
        client_tools=ask.client_tools,
        turn_s=ask.turn_s,
    )
    if graph is None:
        return of_door
    return GraphRerun(**{one.name: getattr(of_door, one.name) for one in fields(of_door)}, graph=graph)


def _answered(ask: Ask, asked: Mapping[str, Any]) -> AuditEvent:
    """The event of a person's answer to this question, which goes to the agent now."""
    assert ask.human is not None
    grant = None if ask.credentials is None else ask.credentials.grant
    return AuditEvent(
        AuditAction.PERSON_ANSWERED,
        "exchange",
        ask.exchange_id,
        actor=ask.user_id,
        key_id="" if grant is None else grant.key_id,
        request_id=ask.request_id,
        outcome=outcome_of(asked, ask.human.payload),
    )


def _resume(ask: Ask, prepared: _Prepared) -> ResumedRun | None:
    if prepared.waited is None or ask.human is None:
        return None
    return ResumedRun(prepared.saved or SavedRun(()), ask.human.payload, prepared.waited.asked_of_person)


def refuse(turn: Turn, error: ServiceError) -> None:
    """End a turn that never began. An ask that already got its place in the queue gets a numbered error."""
    retry_after_ms = _in_ms(error.retry_after_s)
    turn.publish(
        Failed(
            error.code,
            refused=not turn.has_published,
            language=turn.ask.language,
            retry_after_ms=retry_after_ms,
            field=error.field,
        )
    )


def _used(placeholder: ChatMessage) -> dict[str, Any] | None:
    """The usage of the model calls of a waiting run, as it is stored."""
    used: dict[str, Any] | None = placeholder.metadata["extras"].get("usage")
    return used


def _in_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
