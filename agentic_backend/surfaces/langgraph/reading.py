"""The body that starts a run, as LangGraph's clients send it. Errors name the field: `input.messages[2].content`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agentic_backend.agent import GraphDurability
from agentic_backend.chat.frames import CleanText, CompatibleContext, Identifier
from agentic_backend.errors import MessageTooLong, TooLarge
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.stream import IfBusy, OnDisconnect
from agentic_backend.surfaces.langgraph.bodies import AnyJson, JsonObject, RequestBody, checked_body
from agentic_backend.surfaces.langgraph.errors import Faulty
from agentic_backend.surfaces.langgraph.messages import Message, answer, human
from agentic_backend.surfaces.langgraph.states import checkpoint_in
from agentic_backend.surfaces.langgraph.stream import MODES
from backend_kit.wire import dumps

MAX_NOTE_BYTES: Final = 16 * 1024
"""Of a run's metadata, as JSON, which is kept with its question."""
MAX_MESSAGES: Final = 4_000
STRATEGIES: Final[dict[str, IfBusy]] = {
    "reject": "reject", "enqueue": "queue", "interrupt": "replace", "rollback": "replace"
}  # fmt: skip
_ROLES: Final = {
    "human": "user", "user": "user",
    "ai": "assistant", "assistant": "assistant", "AIMessageChunk": "assistant",
    "system": "system", "developer": "system",
    "tool": "tool", "function": "tool",
}  # fmt: skip
_OTHER_MODES: Final = ("messages", "events", "debug", "tasks", "checkpoints")
"""Stream modes of LangGraph's that are refused by their names."""
_NOT_HERE: Final = ("webhook", "after_seconds", "interrupt_before", "interrupt_after")


class _RunBody(RequestBody):
    assistant_id: Identifier
    input: AnyJson = None
    command: JsonObject | None = None
    stream_mode: CleanText | list[CleanText] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"] | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    metadata: JsonObject | None = None
    config: JsonObject | None = None
    context: JsonObject | None = None
    checkpoint: JsonObject | None = None
    checkpoint_id: CleanText | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    webhook: CleanText | None = None
    after_seconds: float | None = None
    interrupt_before: CleanText | list[CleanText] | None = None
    interrupt_after: CleanText | list[CleanText] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asks: the text, and the message as it was sent; `at` is its path in the body, `last` whether no
    other message follows it."""

    text: str
    message: Message
    at: str
    last: bool = True


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a client asks for.

    `question` is None if nothing is asked: for a person's answer (`resumes`, `resume`), or a run that continues from a
    checkpoint. `earlier` are the messages before it in the input, each as it was sent and as an agent reads it.
    """

    assistant: str
    question: Question | None
    earlier: tuple[tuple[Message, HistoryItem], ...]
    resumes: bool
    resume: Any
    modes: tuple[str, ...]
    strategy: str
    if_busy: IfBusy
    on_disconnect: OnDisconnect
    temporary: bool
    create: bool
    checkpoint_id: str | None
    metadata: dict[str, Any] = field(default_factory=dict)
    context: CompatibleContext = field(default_factory=CompatibleContext)
    command: Mapping[str, Any] = field(default_factory=dict)
    subgraphs: bool = False
    input: Any = None
    graph_context: Mapping[str, Any] = field(default_factory=dict)
    configurable: Mapping[str, Any] = field(default_factory=dict)
    durability: GraphDurability | None = None


def read_run(said: Mapping[str, Any], max_message_chars: int) -> RunRequest:
    """The request in a body. Unknown fields are ignored. Raises BadRequest, MessageTooLong or TooLarge."""
    body = checked_body(said, _RunBody)
    for name in _NOT_HERE:
        if getattr(body, name):
            raise Faulty(f"{name} is not supported.", name)
    if len(dumps(body.metadata or {})) > MAX_NOTE_BYTES:
        raise TooLarge(field="metadata")
    command = body.command or {}
    question, earlier = _conversation(body.input, max_message_chars)
    resumes = command.get("resume") is not None
    if resumes and len(dumps(command["resume"])) > max_message_chars:
        raise MessageTooLong(field="command.resume")
    strategy = body.multitask_strategy or "enqueue"
    return RunRequest(
        assistant=body.assistant_id,
        question=None if resumes else question,
        earlier=earlier,
        resumes=resumes,
        resume=command.get("resume"),
        modes=_modes(body.stream_mode),
        strategy=strategy,
        if_busy=STRATEGIES[strategy],
        on_disconnect=body.on_disconnect or "continue",
        temporary=body.on_completion != "keep",
        create=body.if_not_exists == "create",
        checkpoint_id=checkpoint_in(said, "checkpoint") or body.checkpoint_id or _configured(body.config),
        metadata=body.metadata or {},
        context=_context(body),
        command=command,
        subgraphs=bool(body.stream_subgraphs),
        input=body.input,
        graph_context=body.context or {},
        configurable=_configurable(body.config),
        durability=body.durability,
    )


def _modes(said: str | list[str] | None) -> tuple[str, ...]:
    modes = [said] if isinstance(said, str) else said or ["values"]
    for number, mode in enumerate(modes):
        if mode not in MODES:
            at = "stream_mode" if isinstance(said, str) else f"stream_mode[{number}]"
            which = mode if mode in _OTHER_MODES else "This"
            raise Faulty(f"{which} is no stream mode of this service: it has {', '.join(MODES)}.", at)
    return tuple(dict.fromkeys(modes))


def read_modes(said: list[str]) -> tuple[str, ...]:
    """The stream modes of a query; none: those of the run. Raises Faulty."""
    return _modes([mode for mode in said if mode]) if any(said) else ()


def _configurable(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    said = (config or {}).get("configurable")
    return said if isinstance(said, dict) else {}


def _configured(config: Mapping[str, Any] | None) -> str | None:
    said = _configurable(config).get("checkpoint_id")
    return said if isinstance(said, str) else None


def _context(body: _RunBody) -> CompatibleContext:
    """The context of an agent of ours: those fields of the run's context that it knows."""
    given = body.context if body.context is not None else _configurable(body.config)
    return checked_body(given, CompatibleContext, "context")


def _conversation(said: Any, max_message_chars: int) -> tuple[Question | None, tuple[tuple[Message, HistoryItem], ...]]:
    """The question of an input, which is its last user message, and what comes before it."""
    if said is None:
        return None, ()
    if not isinstance(said, dict):
        raise Faulty("input is an object.", "input")
    sent = said.get("messages")
    if sent is None:
        return None, ()
    sent = sent if isinstance(sent, list) else [sent]
    if len(sent) > MAX_MESSAGES:
        raise TooLarge(field="input.messages")
    messages = [_message(one, f"input.messages[{number}]") for number, one in enumerate(sent)]
    asked = [number for number, (_, role, _text) in enumerate(messages) if role == "user"]
    if not asked:
        return None, ()
    place = asked[-1]
    message, _, text = messages[place]
    at = f"input.messages[{place}].content"
    if len(text) > max_message_chars:
        raise MessageTooLong(field=at)
    earlier = [(one, HistoryItem(role, said)) for one, role, said in messages[:place] if role != "tool" and said]
    return Question(text, message, at, place == len(messages) - 1), tuple(earlier)


def _message(said: Any, at: str) -> tuple[Message, Literal["user", "assistant", "system", "tool"], str]:
    """A message of an input, with its role and its text."""
    if isinstance(said, str):
        return human(said, ""), "user", said
    if isinstance(said, list) and len(said) == 2:
        said = {"role": said[0], "content": said[1]}
    if not isinstance(said, dict):
        raise Faulty("A message is an object.", at)
    kind = said.get("role") or said.get("type")
    role: Any = _ROLES.get(kind) if isinstance(kind, str) else None
    if role is None:
        raise Faulty(f"The role of a message is one of {', '.join(_ROLES)}.", f"{at}.role")
    id_, name = said.get("id"), said.get("name")
    for key, value in (("id", id_), ("name", name)):
        if value is not None and not isinstance(value, str):
            raise Faulty(f"{key} is a text.", f"{at}.{key}")
    content = said.get("content")
    text = _text(content, f"{at}.content")
    if role == "user":
        return human(content, id_ or "", name), "user", text
    message = answer(text, id_ or "") if role == "assistant" else {**human(content, id_ or "", name), "type": role}
    return message, role, text


def _text(content: Any, at: str) -> str:
    """The text of a content; pictures and files of it are left out."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise Faulty("The content of a message is a text or a list of blocks.", at)
    texts = []
    for number, block in enumerate(content):
        said = block if isinstance(block, str) else block.get("text", "") if isinstance(block, dict) else None
        if not isinstance(said, str):
            raise Faulty("A block is an object.", f"{at}[{number}]")
        if said:
            texts.append(said)
    return "\n".join(texts)
