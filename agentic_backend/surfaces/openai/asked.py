"""What a request says outside its messages: its session, its agent and model, and whether it is a front end's task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

from agentic_backend.errors import AgentNotFound
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import Conversation

SESSION_HEADERS: Final = ("x-turnwise-session", "x-openwebui-chat-id", "x-conversation-id")
"""Tried in this order; `metadata.session_id` of the body comes after them."""
_SESSIONS: Final = UUID("6f0f6d53-6c3e-5a0e-9d0a-4d1b8a7f2c11")
"""The namespace of session ids. Never change it: each id that clients sent would name another session."""
_TEMPORARY: Final = ("x-openwebui-chat-id", "local")
"""How Open WebUI marks a temporary chat: this id, or this, a colon and the id of the page's connection, which is the
same for all temporary chats of the page."""
_MAX_ID_CHARS: Final = 512
_MOST_MARKS: Final = 8
"""How many `@` a name may have before the one that ends it."""
_TASK: Final = "### Task:"
_TASK_HISTORY: Final = "<chat_history>"
_TASK_CONTEXT: Final = "<context>"


def session_id_of(user_id: str, headers: Mapping[str, str], metadata: Mapping[str, Any]) -> str | None:
    """The id of the session that a request belongs to, None if it names none: then nothing of it is kept.

    The same name is a different session for each user. A temporary chat has none. Raises Refused for a name of more
    than 512 characters, or one that is not a string.
    """
    for header in SESSION_HEADERS:
        name = headers.get(header, "").strip()
        if name and (header, name.partition(":")[0]) != _TEMPORARY:
            return _session_id(user_id, name, header)
    named = metadata.get("session_id")
    if named is None or named == "":
        return None
    if not isinstance(named, str):
        raise Refused("metadata.session_id must be a string.", "metadata.session_id", "invalid_type")
    return _session_id(user_id, named, "metadata.session_id")


def is_temporary(headers: Mapping[str, str]) -> bool:
    """Whether a request belongs to a temporary chat."""
    header, name = _TEMPORARY
    return headers.get(header, "").strip().partition(":")[0] == name


def _session_id(user_id: str, name: str, where: str) -> str:
    if len(name) > _MAX_ID_CHARS:
        raise Refused(f"{where} has more than {_MAX_ID_CHARS} characters.", where, "string_above_max_length")
    return _id_of(user_id, name)


@lru_cache(maxsize=2048)
def _id_of(user_id: str, name: str) -> str:
    """The id of the user's session of this name."""
    return str(uuid5(_sessions_of(user_id), name))


@lru_cache(maxsize=1024)
def _sessions_of(user_id: str) -> UUID:
    """The namespace of a user's sessions."""
    return uuid5(_SESSIONS, user_id)


def is_task(conversation: Conversation) -> bool:
    """Whether this is not a person's question, but one that Open WebUI asks about a conversation: its title, tags,
    follow-ups, queries.

    Such a request has one user message, which begins like a task and contains the conversation. Its template for
    documents begins the same way but contains a context instead: that is a person's question, whatever the documents
    say.
    """
    text = conversation.question
    if not text.startswith(_TASK) or any(message.role != "system" for message in conversation.history):
        return False
    history, context = text.find(_TASK_HISTORY), text.find(_TASK_CONTEXT)
    return history >= 0 and (context < 0 or history < context)


@dataclass(frozen=True, slots=True)
class Named:
    """The agent that a model name stands for, and the model that is to answer, None for the agent's own choice."""

    agent_id: str
    model: str | None = None


class Agents(Protocol):
    """The agents of a process, as `agentic_backend.agent.Catalog` has them."""

    def __contains__(self, agent_id: object) -> bool:
        """Whether it may be asked."""

    def list(self) -> list[dict[str, Any]]:
        """Every agent with its `model_choices`."""


def named(model: str, agents: Agents) -> Named:
    """Resolve `agent` or `agent@model`. Raises AgentNotFound with field `model`.

    Names of agents and of models may contain an `@`: the first split that fits is taken. Whether the agent offers the
    model is checked when the turn begins.
    """
    if model in agents:
        return Named(model)
    at = model.find("@")
    for _ in range(_MOST_MARKS):
        if at <= 0:
            break
        if model[:at] in agents and model[at + 1 :]:
            return Named(model[:at], model[at + 1 :])
        at = model.find("@", at + 1)
    raise AgentNotFound(field="model")


def listed(agents: Agents, may_ask: Callable[[str], bool], created: int) -> list[dict[str, Any]]:
    """The models that a caller may ask: each agent and, where there is a choice, each agent with every model that it
    may use. `may_ask` says whether the caller may ask the agent with an id."""
    models: list[dict[str, Any]] = []
    for agent in agents.list():
        if agent["id"] not in agents or not may_ask(agent["id"]):
            continue
        models.append(_model(agent["id"], agent["name"], agent, created))
        choices = agent["model_choices"]
        for choice in choices if len(choices) > 1 else ():
            name = f"{agent['name']} ({choice['title'] or choice['id']})"
            models.append(_model(f"{agent['id']}@{choice['id']}", name, agent, created))
    return models


def _model(id_: str, name: str, agent: Mapping[str, Any], created: int) -> dict[str, Any]:
    description = (agent.get("tuning") or {}).get("description")
    model = {"id": id_, "object": "model", "created": created, "owned_by": "turnwise", "name": name}
    return {**model, "description": description} if description else model
