"""The runs of a thread, from its history and those in progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final

from agentic_backend.errors import Conflict
from agentic_backend.events import iso_z
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import AWAITING
from agentic_backend.session.stream import Awaiting, Cancelled, Turn
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.errors import NoThread
from agentic_backend.surfaces.langgraph.messages import asked, note_in, noted
from agentic_backend.surfaces.langgraph.names import names_of_agent, session_of_thread
from agentic_backend.surfaces.langgraph.states import messages_in
from agentic_backend.surfaces.langgraph.stream import RunView
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import Code

DELETED: Final = "turnwise:deleted_runs"
"""The key of a thread's metadata with the ids of runs that its client deleted; no client sees it."""
_MOST_DELETED: Final = 200
"""How many are kept: more would leave too little room for metadata."""


@dataclass(slots=True)
class RunInfo:
    """A run as its clients see it. `answers` as in `RunView`; `note` is what was kept of its request."""

    run_id: str
    exchange_id: str
    agent_id: str
    created_at: str
    updated_at: str
    status: str
    note: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] | None = None
    command: Mapping[str, Any] | None = None
    ledger: Any = None
    rank: int = -1
    """The rank of its question, or of a person's answer; -1 while it runs."""

    @property
    def answers(self) -> str | None:
        """The question to a person that it answers."""
        return self.note.get("answers")

    def fields(self, services: DoorServices, thread_id: str) -> dict[str, Any]:
        """The run in LangGraph's shape, and its ledger where it has one."""
        named = names_of_agent(services, self.agent_id)
        derived = {"created_by": "system", **named}
        metadata = {**derived, **self.note.get("metadata", {})}
        kwargs = {
            "input": self.input,
            "command": self.command,
            "config": {
                "configurable": {"run_id": self.run_id, "thread_id": thread_id, **named},
                "metadata": derived,
            },
            "context": {},
            "stream_mode": list(self.note.get("modes", ("values",))),
            "interrupt_before": None,
            "interrupt_after": None,
            "webhook": None,
            "feedback_keys": None,
            "temporary": False,
            "subgraphs": bool(self.note.get("subgraphs")),
            "resumable": True,
            "checkpoint_during": True,
            "durability": "async",
        }
        told = {
            "run_id": self.run_id,
            "thread_id": thread_id,
            "assistant_id": named["assistant_id"],
            "metadata": metadata,
            "status": self.status,
            "kwargs": kwargs,
            "multitask_strategy": self.note.get("strategy", "enqueue"),
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "langsmith_session_name": None,
        }
        return told | ({"ledger": self.ledger} if self.ledger is not None else {})


async def delete_run(services: DoorServices, session: Session, run_id: str) -> None:
    """Remove an ended run from the list of runs. What was said in it stays in its thread.

    Raises `NoThread`, or `Conflict` while it runs.
    """
    if (await run_of(services, session, run_id)).status in ("pending", "running"):
        raise Conflict(field="run_id")
    gone = [*await _deleted(services, session), run_id][-_MOST_DELETED:]
    await services.threads.merge(session.id, session.user_id, {DELETED: gone})


async def _deleted(services: DoorServices, session: Session) -> list[str]:
    thread = await services.threads.get(session.id, session.user_id)
    return [] if thread is None else list(thread.metadata.get(DELETED, ()))


async def runs_of(services: DoorServices, session: Session) -> list[RunInfo]:
    """The runs of a thread, the oldest first: those of its history, then those that run or wait here."""
    gone = set(await _deleted(services, session))
    return [run for run in await _all_of(services, session) if run.run_id not in gone]


async def _all_of(services: DoorServices, session: Session) -> list[RunInfo]:
    # Read before history: a run that ends meanwhile is then in one of the two.
    turns = await _running_in(services, session)
    runs: list[RunInfo] = []
    with services.kpi.phase("history_get"):
        async for message in messages_in(services, session.id, session.user_id):
            _take(runs, message, session)
    known = {run.run_id for run in runs}
    # A run that begins after an earlier message replaces others, which history shows until it has ended.
    begun = [turn.ask for turn in turns if turn.ask.human is None]
    stays = min((ask.after_rank for ask in begun if ask.after_rank is not None), default=None)
    kept = [run for run in runs if stays is None or run.rank <= stays]
    return kept + [run for run in map(running, turns) if run.run_id not in known]


async def _running_in(services: DoorServices, session: Session) -> list[Turn]:
    """The turns of a thread that run or wait here, and the one that another instance runs."""
    registry, user_id = services.registry, session.user_id
    turns = registry.turns_of(session.id, user_id)
    elsewhere = await registry.newest_elsewhere(session.id, user_id)
    if elsewhere is None or any(turn.ask.exchange_id == elsewhere for turn in turns):
        return turns
    turn = await registry.locate(elsewhere, user_id)
    return turns if turn is None or not turn.ask.agent_id else [turn, *turns]


def _take(runs: list[RunInfo], message: Mapping[str, Any], session: Session) -> None:
    """Add a message of history to the runs: it begins, continues or ends one."""
    kind, at = (message["role"], message["channel"]), message["timestamp"]
    metadata = message["metadata"]
    extras = metadata.get("extras", {})
    note = note_in(metadata) if kind[0] == "user" else {}
    if kind == ("user", "final"):
        sent = {"messages": asked(message)}
        agent = session.agent_id
        run = RunInfo(message["exchange_id"], message["exchange_id"], agent, at, at, "running", note, sent)
        run.rank = message["rank"]
        runs.append(run)
    elif kind == ("user", "observation") and "run_id" in note:
        agent = runs[-1].agent_id if runs else session.agent_id
        runs[-1].status = "success"
        command = {"resume": extras.get("decision", {}).get("answer")}
        run = RunInfo(note["run_id"], message["exchange_id"], agent, at, at, "running", note, command=command)
        run.rank = message["rank"]
        runs.append(run)
    elif kind == ("assistant", "final") and runs:
        run = runs[-1]
        run.agent_id = metadata.get("agent_id", run.agent_id)
        run.status, run.updated_at = _status(extras), at
        run.ledger = extras.get("ledger")


def _status(extras: Mapping[str, Any]) -> str:
    """How a run ended, by its answer. A run that asks a person ended successfully; its thread waits."""
    if "error" in extras:
        return "timeout" if extras["error"] == Code.TURN_DEADLINE.value else "error"
    return "interrupted" if extras.get("status", AWAITING) != AWAITING else "success"


def running(turn: Turn) -> RunInfo:
    """The run of a turn that this process runs."""
    note, ask = note_of(turn), turn.ask
    began = iso_z(datetime.now(UTC) - timedelta(seconds=max(0.0, perf_counter() - ask.received_at)))
    said = {"id": None, **note, "content": note.get("content", ask.message), "type": "human"}
    sent = {"messages": [{key: said[key] for key in ("content", "type", "id")}]} if ask.human is None else None
    command = None if ask.human is None else {"resume": ask.human.payload}
    run_id = note.get("run_id", ask.exchange_id)
    return RunInfo(run_id, ask.exchange_id, ask.agent_id, began, began, _state(turn), note, sent, command)


def _state(turn: Turn) -> str:
    """The status of a turn that this process runs."""
    if not turn.ended:
        return "running" if turn.has_published else "pending"
    end = turn.events[-1].payload
    if isinstance(end, Cancelled):
        return "interrupted"
    return "success" if isinstance(end, Ended | Awaiting) else "error"


def note_of(turn: Turn) -> Mapping[str, Any]:
    """What was kept of the request that began a turn."""
    return noted(turn.ask.note)


async def run_of(services: DoorServices, session: Session, run_id: str) -> RunInfo:
    """A run of a thread. Raises `NoThread`."""
    turn = services.registry.find(run_id, session.user_id)
    if turn is not None and not turn.ended and (turn.ask.session_id, turn.ask.human) == (session.id, None):
        return running(turn)  # so that polling until it has ended reads no history
    found = next((run for run in await runs_of(services, session) if run.run_id == run_id), None)
    if found is None:
        raise NoThread("There is no such run.", "run_id")
    return found


async def view_of(
    services: DoorServices, identity: Identity, thread_id: str, run_id: str, modes: Sequence[str]
) -> RunView:
    """The run that an id names, with the modes that are asked for or, without any, its own.

    Raises `NoThread`.
    """
    turn = services.registry.find(run_id, identity.uid)
    if turn is not None and turn.ask.session_id == thread_id and turn.ask.human is None:
        own = modes or note_of(turn).get("modes", ("values",))
        is_graph = services.catalog.graph(turn.ask.agent_id) is not None
        deep = bool(note_of(turn).get("subgraphs"))
        return RunView(run_id, thread_id, run_id, modes=frozenset(own), graph=is_graph, subgraphs=deep)
    session = await session_of_thread(services.store, identity.uid, thread_id)
    run = await run_of(services, session, run_id)
    own = modes or run.note.get("modes", ("values",))
    is_graph = services.catalog.graph(run.agent_id) is not None
    deep = bool(run.note.get("subgraphs"))
    return RunView(run_id, thread_id, run.exchange_id, run.answers, frozenset(own), graph=is_graph, subgraphs=deep)
