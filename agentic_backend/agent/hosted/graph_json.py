"""What a graph holds and says, as JSON: messages in the shape of LangGraph's API, other objects by their fields."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Final
from uuid import UUID

from langchain_core.messages import BaseMessage
from langgraph.types import Overwrite, StateSnapshot
from pydantic import BaseModel

from backend_kit.wire import dumps

EXCHANGE: Final = "exchange_id"
"""Under which the metadata of a checkpoint names the exchange that wrote it."""
_DEEPEST: Final = 100
"""Of values within values: what is deeper is named by its type alone. A value may hold itself."""


def as_json(value: Any) -> bytes:
    """The encoding of what LangGraph's stream says."""
    return dumps(plain(value))


def plain(value: Any, depth: int = 0) -> Any:
    """A value of a graph's state as JSON has it. What has no form there is its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if depth >= _DEEPEST:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, BaseMessage):
        return plain(dict(value.model_dump()), depth + 1)
    return _of_object(value, depth)


def _of_object(value: Any, depth: int) -> Any:
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name), depth + 1) for name in type(value).model_fields}
    if isinstance(value, Overwrite):
        return plain(value.value, depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name), depth + 1) for one in fields(value)}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, BaseException):
        return _failure(value)
    return str(value)


class SnapshotNames:
    """What the threads and checkpoints of a session's graph are called outside: `thread` is that of the saver."""

    def __init__(self, session_id: str, agent_id: str, line: str) -> None:
        """`line` is how the saver's threads of this agent begin in the session."""
        self._session_id = session_id
        self._agent_id = agent_id
        self._line = line

    def checkpoint(self, config: Any) -> dict[str, Any] | None:
        """The checkpoint that a config names; None for none."""
        where = (config or {}).get("configurable", {})
        if not where.get("thread_id"):
            return None
        named: dict[str, Any] = {"thread_id": self._session_id, "checkpoint_ns": where.get("checkpoint_ns", "")}
        if checkpoint_id := where.get("checkpoint_id"):
            named["checkpoint_id"] = f"{checkpoint_id}.{str(where['thread_id']).removeprefix(self._line)}"
        return named

    def metadata(self, metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """What clients see of a checkpoint: never the configuration of its run, which is the operator's."""
        if metadata is None:
            return None
        told = {key: plain(metadata[key]) for key in ("source", "step", "parents") if key in metadata}
        if (run_id := metadata.get(EXCHANGE)) is not None:
            told["run_id"] = run_id
        return {"graph_id": self._agent_id, "thread_id": self._session_id, **told}

    def snapshot(self, state: StateSnapshot) -> dict[str, Any]:
        """A state in the shape of LangGraph's API."""
        checkpoint, parent = self.checkpoint(state.config), self.checkpoint(state.parent_config)
        known = state.metadata is not None
        return {
            "values": plain(state.values),
            "next": list(state.next),
            "tasks": [self._task(task) for task in state.tasks],
            "metadata": self.metadata(state.metadata),
            "created_at": state.created_at,
            "checkpoint": checkpoint if known else None,
            "parent_checkpoint": parent,
            "interrupts": [_interrupt(one) for one in state.interrupts],
            "checkpoint_id": checkpoint.get("checkpoint_id") if known and checkpoint else None,
            "parent_checkpoint_id": parent.get("checkpoint_id") if parent else None,
        }

    def _task(self, task: Any) -> dict[str, Any]:
        state = task.state
        within = isinstance(state, StateSnapshot)
        return {
            "id": task.id,
            "name": task.name,
            "path": plain(task.path),
            "error": None if task.error is None else _failure(task.error),
            "interrupts": [_interrupt(one) for one in task.interrupts],
            "checkpoint": None if within else self.checkpoint(state),
            "state": self.snapshot(state) if within else None,
            "result": plain(task.result),
        }


def _failure(error: Any) -> str:
    """Its kind alone: the text may repeat a prompt."""
    return type(error).__name__ if isinstance(error, BaseException) else str(error).partition("(")[0][:64]


def _interrupt(one: Any) -> dict[str, Any]:
    return {"id": one.id, "value": plain(one.value)}
