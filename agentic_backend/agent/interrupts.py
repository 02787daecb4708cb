"""Runs that wait for a person: what the person is asked, and the state from which the run continues."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from agentic_backend.agent.people import answers_for, question_for

PHASES: Final = ("checkpoint_keep", "checkpoint_take")
"""Phases of a run that waits for a person: its state is stored, and later claimed."""

_INTERRUPT: Final = "__interrupt__"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One checkpoint of a graph or of one of its subgraphs (`namespace`), with the writes that were under way."""

    namespace: str
    parent_id: str | None
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    writes: tuple[tuple[str, str, Any], ...]

    @property
    def id(self) -> str:
        """The checkpoint's own id."""
        return self.checkpoint["id"]

    @property
    def writes_by_task(self) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
        """Each task's writes: a saver numbers those of one call, and keeps one write of a task under each number."""
        tasks: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in self.writes:
            tasks.setdefault(task_id, []).append((channel, value))
        return tasks.items()


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run as it stood when it began to wait: a checkpoint of its graph, and one of each subgraph under way."""

    checkpoints: tuple[SavedCheckpoint, ...]

    @property
    def root(self) -> SavedCheckpoint:
        """The checkpoint of the graph itself."""
        return next(saved for saved in self.checkpoints if not saved.namespace)

    @property
    def id(self) -> str:
        """The id under which it can be claimed."""
        return self.root.id


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A claimed run, as its agent's `claim` returned it, and the person's answer; `asked` is what they were asked, None
    if that is not known."""

    saved: Any
    answer: Any
    asked: Mapping[str, Any] | None = None


class Waiting(Exception):  # not a failure: how a run ends that continues later
    """A run waits for a person. `payload` is what they are asked, as HitlPayload with the id of the saved run."""

    def __init__(self, payload: dict[str, Any]) -> None:
        super().__init__("the run waits for a person")
        self.payload = payload


class Checkpoints(Protocol):
    """Where runs wait, one a session. A stored run is deleted with its session."""

    async def keep(self, session_id: str, saved: SavedRun) -> None:
        """Store a run, replacing the one that waited in its session; committed on return. Raises `TurnFailed`."""

    async def take(self, session_id: str, run_id: str) -> SavedRun | None:
        """Claim a run, which can be done once. None if no run waits under this id.

        Raises `HistoryUnavailable`.
        """


def strict_serializer() -> JsonPlusSerializer:
    """A serializer that reads plain values and the types that LangGraph deems safe, never a type named by a row."""
    return JsonPlusSerializer(allowed_msgpack_modules=None, pickle_fallback=False)


class RunMemory:
    """The checkpointer of one agent: keeps runs only while they are in progress.

    Only a run that waits for a person is worth a round trip to Postgres. So LangGraph writes here, in memory, at the
    end of a run, and `saved` returns what has to be stored elsewhere.
    """

    def __init__(self) -> None:
        self.saver = InMemorySaver(serde=strict_serializer())

    def thread(self) -> RunnableConfig:
        """The configuration of a new thread, for one run."""
        return {"configurable": {"thread_id": uuid4().hex}}

    async def restore(self, thread: RunnableConfig, resume: ResumedRun) -> Command[Any]:
        """Put a claimed run into a thread; returns the input with which it continues.

        Questions that the answer leaves open are asked again. Raises `BadRequest` for one that the asked cannot take.
        """
        for saved in resume.saved.checkpoints:
            config = _within(thread, saved.namespace, saved.parent_id)
            put = await self.saver.aput(config, saved.checkpoint, saved.metadata, saved.checkpoint["channel_versions"])
            for task_id, writes in saved.writes_by_task:
                await self.saver.aput_writes(put, writes, task_id)
        asked = resume.asked
        if asked is None or "interrupt_id" not in asked:  # stored by an earlier release
            written = (value for _, channel, value in resume.saved.root.writes if channel == _INTERRUPT)
            asked = question_for([(one.id, one.value) for value in written for one in value], resume.saved.id)
        return Command(resume=answers_for(asked, resume.answer))

    async def saved(self, thread: RunnableConfig) -> SavedRun:
        """The newest checkpoint of the thread's graph and of each subgraph; each has the complete state."""
        found = [
            SavedCheckpoint(
                namespace=one.config["configurable"].get("checkpoint_ns", ""),
                parent_id=one.parent_config["configurable"].get("checkpoint_id") if one.parent_config else None,
                checkpoint=one.checkpoint,
                metadata=one.metadata,
                writes=tuple(one.pending_writes or ()),
            )
            async for one in self.saver.alist({"configurable": {"thread_id": thread["configurable"]["thread_id"]}})
        ]
        newest = {saved.namespace: saved for saved in sorted(found, key=lambda saved: saved.id)}
        return SavedRun(tuple(newest.values()))

    async def forget(self, thread: RunnableConfig) -> None:
        """Drop a thread and its state."""
        await self.saver.adelete_thread(thread["configurable"]["thread_id"])


def _within(thread: RunnableConfig, namespace: str, checkpoint_id: str | None) -> RunnableConfig:
    configurable = {**thread["configurable"], "checkpoint_ns": namespace}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}
