"""What a hosted graph keeps: its state for each session, and what it remembers of each user."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.constants import START
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchOp,
)

from agentic_backend.agent.hosted.current import CURRENT, HostedTurn, current_turn
from agentic_backend.agent.hosted.state_writes import CheckpointPart, StatePart, StateWrites, WritesPart
from agentic_backend.agent.interrupts import strict_serializer
from backend_kit.kpi import Status, current_ledger

PHASES: Final = ("state_read", "state_write", "store")
"""Phases of a hosted graph's turn: its state is read and written, its store is used."""
_DEPTH: Final = 2
"""In `stream_agent_response`, and there beside the nodes or inside `graph`."""
_DELTAS: Final = "counters_since_delta_snapshot"
"""In the metadata of each checkpoint of a graph that has a `DeltaChannel`."""
_USERS: Final = "user"
"""The first label of every namespace; the second is the user's."""
_T = TypeVar("_T")


class GraphState(Protocol):
    """Where hosted graphs keep their state. Each context may raise `NotKept`."""

    def saver(self) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]:
        """A saver for one read, by the serializer that is set in its `serde`."""

    async def write(self, parts: Sequence[StatePart]) -> None:
        """Store parts of states in their order; where it raises, the first of them may be stored.

        It waits longer for its turn than a read: what is written is part of an answer that people have seen. Raises
        `TurnFailed` for a value that cannot be stored, too.
        """

    def store(self) -> AbstractAsyncContextManager[BaseStore]:
        """A store for one batch of operations."""


@dataclass(frozen=True, slots=True)
class StateRef:
    """A checkpoint of a graph, as history names it: what the graph knew when an exchange had ended.

    `thread` is one line of a graph's states in a session. `str` gives the form for history.
    """

    thread: str
    checkpoint_id: str

    def __str__(self) -> str:
        return f"{self.checkpoint_id}.{self.thread}"

    @property
    def configurable(self) -> dict[str, str]:
        """Where LangGraph finds it."""
        return {"thread_id": self.thread, "checkpoint_ns": "", "checkpoint_id": self.checkpoint_id}

    @classmethod
    def parse(cls, text: str) -> "StateRef | None":
        """The reverse of `str`; None for any other text."""
        checkpoint_id, dot, thread = text.partition(".")
        return cls(thread, checkpoint_id) if dot and checkpoint_id and thread else None


class StateSaver(BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer of all hosted graphs. Each read, and what a turn writes at once, has a connection of its
    own, so that no turn waits for another's saver.

    It notes in the current turn which checkpoint of the graph itself was written last. Its serializer reads only plain
    values, what LangGraph deems safe, and the types of a graph's schemas (`with_allowlist`, which LangGraph calls).
    """

    def __init__(self, state: GraphState) -> None:
        super().__init__(serde=strict_serializer())
        self._state = state
        self.of_graph: StateSaver | None = None
        """The saver that reads the types of its graph's schemas, once the graph has run."""

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> "StateSaver":
        """A saver that reads these types, too. LangGraph calls it for each run of a graph."""
        of_graph = cast(StateSaver, super().with_allowlist(extra_allowlist))
        self.of_graph = of_graph
        return of_graph

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver`."""
        where = config["configurable"]
        if (turn := CURRENT.get()) is not None and (head := turn.head) is not None:
            newest = not where.get("checkpoint_id") and not where.get("checkpoint_ns")
            if newest and where["thread_id"] == head[0]:
                turn.head = None
                return head[1]
        with _timed("state_read"):
            async with self._saver() as saver:
                return await saver.aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        with _timed("state_read"):
            async with self._saver() as saver:
                found = [one async for one in saver.alist(config, filter=filter, before=before, limit=limit)]
        for one in found:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `BaseCheckpointSaver`."""
        part = CheckpointPart(config, checkpoint, metadata, new_versions)
        where = config["configurable"]
        turn = CURRENT.get()
        if turn is None or where.get("checkpoint_ns"):
            await self._write(turn, part)
        elif _is_of_input(part):
            turn.input_part = part
        else:
            await self._write(turn, _behind(turn.input_part, part))
            turn.checkpoint_id = checkpoint["id"]
        names = {"thread_id": where["thread_id"], "checkpoint_ns": where["checkpoint_ns"]}
        return {"configurable": {**names, "checkpoint_id": checkpoint["id"]}}

    async def keep_input(self, turn: HostedTurn) -> None:
        """Store the state of an input that no step follows."""
        if (part := turn.input_part) is not None:
            turn.input_part = None
            await self._write(turn, part)
            turn.checkpoint_id = part.checkpoint["id"]

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `BaseCheckpointSaver`."""
        turn = CURRENT.get()
        left_out = turn.input_part if turn is not None else None
        if turn is not None and left_out is not None and _is_of(left_out, config):
            if task_path.rpartition(", ")[2] == START and not any(channel in WRITES_IDX_MAP for channel, _ in writes):
                return
            # The next checkpoint does not hold the same. The run stops before it, or in a graph that no builder has
            # made, a node works in the step of the input: that is part of the state, and so is the input.
            turn.input_part = None
            await self._write(turn, left_out)
            turn.checkpoint_id = left_out.checkpoint["id"]
        await self._write(turn, WritesPart(config, writes, task_id, task_path))

    # What follows is for nodes that are not asynchronous: LangGraph runs them in threads, and graphs within them there.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver`."""
        return _from_thread(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""

        async def found() -> Sequence[CheckpointTuple]:
            return [one async for one in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from _from_thread(found())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `BaseCheckpointSaver`."""
        return _from_thread(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `BaseCheckpointSaver`."""
        _from_thread(self.aput_writes(config, writes, task_id, task_path))

    def get_next_version(self, current: Any, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """A version above `current`. The random part tells branches apart that go on from one checkpoint."""
        counted = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{counted + 1:032}.{random.random():016}"  # noqa: S311 - nobody gains by guessing it

    def _saver(self) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]:
        return _WithSerializer(self._state.saver(), self.serde)

    async def _write(self, turn: HostedTurn | None, part: StatePart) -> None:
        with _timed("state_write"):
            if turn is None:
                await self._state.write([part])
                return
            if turn.writes is None:
                turn.writes = StateWrites(self._state.write)
            await turn.writes.add(part)


class _WithSerializer:
    """A saver for one operation that uses the serializer of the graph."""

    def __init__(self, inner: AbstractAsyncContextManager[BaseCheckpointSaver[Any]], serde: Any) -> None:
        self._inner = inner
        self._serde = serde

    async def __aenter__(self) -> BaseCheckpointSaver[Any]:
        saver = await self._inner.__aenter__()
        saver.serde = self._serde
        return saver

    async def __aexit__(self, *exc: Any) -> bool | None:
        return await self._inner.__aexit__(*exc)


def _is_of_input(part: CheckpointPart) -> bool:
    """Whether this is the state of a turn's input before its first step, which the next one holds whole.

    The first of a thread is stored all the same: what is asked in its place has to begin somewhere. So is that of a
    graph whose channels store only what was added (`DeltaChannel`), which are read from all states before.
    """
    follows = bool(part.config["configurable"].get("checkpoint_id"))
    return part.metadata.get("source") == "input" and follows and _DELTAS not in part.metadata


def _is_of(part: CheckpointPart, config: RunnableConfig) -> bool:
    return config["configurable"].get("checkpoint_id") == part.checkpoint["id"]


def _behind(left_out: CheckpointPart | None, part: CheckpointPart) -> CheckpointPart:
    """The checkpoint; where it follows the one that was left out, with the one before that as its parent."""
    return part if left_out is None or not _is_of(left_out, part.config) else replace(part, config=left_out.config)


@contextmanager
def _timed(name: str) -> Iterator[None]:
    """A phase beside the nodes: the state of one step is written while the next one runs. So it stands in the ledger at
    a depth of its own, and nothing that begins meanwhile counts as inside it."""
    begun = perf_counter()
    status: Status = "error"
    try:
        yield
        status = "ok"
    finally:
        if (ledger := current_ledger()) is not None:
            now = perf_counter()
            ledger.add(name, begun, now, _DEPTH)
            ledger.kpi.record_phase(name, now - begun, status)


def _user_of_turn() -> str:
    return current_turn().run.user_id


class UserStore(BaseStore):
    """LangGraph's long-term memory, in which every namespace is one user's own: the current turn's."""

    supports_ttl = True

    def __init__(self, state: GraphState, user: Callable[[], str] = _user_of_turn) -> None:
        """`user` gives the id of the current user."""
        self._state = state
        self._user = user

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See `BaseStore`."""
        own = _own_namespace(self._user())
        inner = [_within(op, own) for op in ops]
        with _timed("store"):
            async with self._state.store() as store:
                found = await store.abatch(inner)
        return [_without(result, len(own)) for result in found]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """From a node that blocks in a thread of LangGraph's: the store is async, and lives on the loop, where this
        raises RuntimeError."""
        return _from_thread(self.abatch(ops))


def _from_thread(asked: Coroutine[Any, Any, _T]) -> _T:
    """What the loop answers to a node that is not asynchronous. Raises RuntimeError on the loop, which would wait for
    itself."""
    loop = current_turn().loop
    if loop is _loop_here():
        asked.close()
        raise RuntimeError("an asynchronous node must await: aget instead of get, ainvoke instead of invoke")
    return asyncio.run_coroutine_threadsafe(asked, loop).result()


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _own_namespace(user_id: str) -> tuple[str, ...]:
    """The namespace of the user. A label may have no dot, and user ids are often addresses; one that is a star would
    stand for every user where namespaces are listed."""
    return _USERS, "%2A" if user_id == "*" else user_id.replace("%", "%25").replace(".", "%2E")


def _within(op: Op, own: tuple[str, ...]) -> Op:
    if isinstance(op, GetOp | PutOp):
        return op._replace(namespace=(*own, *op.namespace))
    if isinstance(op, SearchOp):
        return op._replace(namespace_prefix=(*own, *op.namespace_prefix))
    assert isinstance(op, ListNamespacesOp)
    conditions = [
        one._replace(path=(*own, *one.path)) if one.match_type == "prefix" else one for one in op.match_conditions or ()
    ]
    depth = None if op.max_depth is None else op.max_depth + len(own)
    return op._replace(match_conditions=(MatchCondition("prefix", own), *conditions), max_depth=depth)


def _without(result: Result, labels: int) -> Result:
    if isinstance(result, Item):
        result.namespace = result.namespace[labels:]
        return result
    if isinstance(result, list):
        return cast(Result, [_stripped(one, labels) for one in result])
    return result


def _stripped(found: Item | tuple[str, ...], labels: int) -> Item | tuple[str, ...]:
    if isinstance(found, tuple):
        return found[labels:]
    found.namespace = found.namespace[labels:]
    return found
