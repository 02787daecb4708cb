"""A RunAgentInput as AG-UI's clients send it. Errors name the field: `messages[2].toolCallId`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentic_backend.chat.frames import CleanText, Identifier, RuntimeContext, storable_json
from agentic_backend.errors import BadRequest, MessageTooLong
from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.session.stream import IfBusy, OnDisconnect
from agentic_backend.surfaces.agui.people import Answered, answered, hash_of, known_calls
from agentic_backend.surfaces.agui.writing import is_own
from backend_kit.wire import InvalidJson, dumps, field_of, loads

MAX_THREAD_ID: Final = 512
"""Characters of a `threadId`."""
_MAX_TOOLS: Final = 128
_MAX_MESSAGES: Final = 4_000
_MAX_CONTEXT: Final = 1_000

Json = Annotated[Any, AfterValidator(storable_json)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, hide_input_in_errors=True)


_Model = TypeVar("_Model", bound=_Read)


class _Function(_Read):
    name: CleanText
    arguments: CleanText = ""


class _Call(_Read):
    id: CleanText
    function: _Function


class _Message(_Read):
    id: str = ""
    role: Literal["developer", "system", "user", "assistant", "tool", "activity", "reasoning"]
    content: CleanText | list[dict[str, Any]] | dict[str, Any] | None = None
    calls: Annotated[list[_Call] | None, Field(alias="toolCalls")] = None
    call_id: Annotated[CleanText | None, Field(alias="toolCallId")] = None
    error: CleanText | None = None

    def text(self, at: str) -> str:
        """The text of its content; pictures and files of it are left out. Raises BadRequest."""
        if not isinstance(self.content, list):
            return self.content if isinstance(self.content, str) else ""
        texts = []
        for number, part in enumerate(self.content):
            if part.get("type") != "text":
                continue
            said = part.get("text")
            if not isinstance(said, str) or "\x00" in said:
                raise BadRequest("no text", field=f"{at}.content[{number}].text")
            texts.append(said)
        return "\n".join(texts)


class _Tool(_Read):
    name: Annotated[CleanText, Field(min_length=1, max_length=128)]
    description: CleanText = ""
    parameters: Json = None


class _Context(_Read):
    description: CleanText = ""
    value: CleanText


class _Entry(_Read):
    interrupt_id: Annotated[CleanText, Field(alias="interruptId")]
    status: Literal["resolved", "cancelled"]
    payload: Json = None


class _Options(_Read):
    """What `forwardedProps.turnwise` may say, as in a native ask."""

    runtime_context: RuntimeContext = RuntimeContext()
    if_busy: IfBusy = "replace"
    on_disconnect: OnDisconnect = "continue"


class _Forwarded(_Read):
    turnwise: _Options = _Options()


class _Input(_Read):
    thread_id: Annotated[CleanText, Field(alias="threadId", min_length=1, max_length=MAX_THREAD_ID)]
    run_id: Annotated[Identifier, Field(alias="runId")]
    parent_run_id: Annotated[CleanText | None, Field(alias="parentRunId")] = None
    messages: Annotated[list[_Message], Field(max_length=_MAX_MESSAGES)]
    tools: Annotated[list[_Tool] | None, Field(max_length=_MAX_TOOLS)] = None
    context: Annotated[list[_Context] | None, Field(max_length=_MAX_CONTEXT)] = None
    forwarded: Annotated[Any, Field(alias="forwardedProps")] = None
    resume: Annotated[list[_Entry] | None, Field(max_length=_MAX_CONTEXT)] = None


@dataclass(frozen=True, slots=True)
class RunInput:
    """What a client asks for.

    `question` is the user's last message, "" where the conversation ends with results of the client's tools; `given`
    what comes before it. `answer` is a person's answer to the question of another run, which then continues; otherwise
    there is a `question`, or results. `calls` and `taken` are the tool calls of the thread (`RunNames`), `snapshot` the
    client's messages without those of this run, None where it has none of them. `body` is what was read.
    """

    thread_id: str
    run_id: str
    parent_run_id: str | None
    question: str
    given: tuple[HistoryItem, ...]
    tools: tuple[dict[str, Any], ...]
    answer: Answered | None
    context: RuntimeContext
    if_busy: IfBusy
    on_disconnect: OnDisconnect
    calls: dict[str, str]
    taken: frozenset[str]
    snapshot: list[dict[str, Any]] | None
    body: bytes = field(repr=False, compare=False)

    def messages_before(self) -> list[dict[str, Any]]:
        """The client's messages as they are before the run. Parsed again, since hardly any run needs them."""
        exchange_id, rank = (self.run_id, 0) if self.answer is None else (self.answer.exchange, self.answer.rank)
        return _snapshot(loads(self.body)["messages"], exchange_id, rank)


def read_input(body: bytes, max_message_chars: int) -> RunInput:
    """The input in a request's body. Unknown fields are ignored. Raises BadRequest or MessageTooLong with the field."""
    try:
        raw = loads(body)
    except InvalidJson:
        raise BadRequest("no JSON") from None
    if not isinstance(raw, dict):
        raise BadRequest("no object")
    read = _validated(_Input, raw)
    options = _options(read.forwarded)
    answer = _answer(read, max_message_chars)
    exchange_id, rank = (read.run_id, 0) if answer is None else (answer.exchange, answer.rank)
    others = [(place, one) for place, one in enumerate(read.messages) if not is_own(one.id, exchange_id, rank)]
    ids = [call.id for _, one in others for call in one.calls or ()]
    question, given = _conversation(others, read.context or (), max_message_chars, asks=answer is None)
    return RunInput(
        thread_id=read.thread_id,
        run_id=read.run_id,
        parent_run_id=read.parent_run_id,
        question=question,
        given=given,
        tools=tuple(_tool(tool) for tool in read.tools or ()),
        answer=answer,
        context=options.runtime_context,
        if_busy=options.if_busy,
        on_disconnect=options.on_disconnect,
        calls=known_calls(ids),
        taken=frozenset(ids),
        snapshot=None if len(others) == len(read.messages) else _snapshot(raw["messages"], exchange_id, rank),
        body=body,
    )


def _validated(model: type[_Model], raw: Any, at: str = "") -> _Model:
    try:
        return model.model_validate(raw, extra="ignore")
    except ValidationError as error:
        field = field_of(error.errors(include_url=False, include_input=False))
        raise BadRequest(
            "not a RunAgentInput", field=f"{at}.{field}" if at and field else field or at or None
        ) from None


def _options(forwarded: Any) -> _Options:
    """The field is the application's own: only a `turnwise` in it is ours."""
    ours = forwarded.get("turnwise") if isinstance(forwarded, dict) else None
    return _Options() if ours is None else _validated(_Options, ours, "forwardedProps.turnwise")


def _answer(read: _Input, max_message_chars: int) -> Answered | None:
    """The person's answer; None without one, and if every question was abandoned for a new one."""
    if not read.resume:
        return None
    for number, entry in enumerate(read.resume):
        if len(dumps(entry.payload)) > max_message_chars:
            raise MessageTooLong(field=f"resume[{number}].payload")
    entries = [{"interruptId": one.interrupt_id, "status": one.status, "payload": one.payload} for one in read.resume]
    answer = answered(entries)
    place = len(read.messages) - 1
    last = read.messages[place] if read.messages else None
    asks_anew = last is not None and last.role == "user" and hash_of(last.text(f"messages[{place}]")) != answer.asked
    return None if answer.abandoned and asks_anew else answer


def _conversation(
    messages: Sequence[tuple[int, _Message]], context: Sequence[_Context], max_message_chars: int, *, asks: bool
) -> tuple[str, tuple[HistoryItem, ...]]:
    """The question and what comes before it. Without `asks` nothing is asked, and neither is limited."""
    if not asks:
        return "", ()
    shown = [(place, one) for place, one in messages if one.role not in ("activity", "reasoning")]
    if not shown:
        raise BadRequest("no message", field="messages")
    place, last = shown[-1]
    question = ""
    if last.role == "user":
        question = last.text(f"messages[{place}]")
        if not question:
            raise BadRequest("no text", field=f"messages[{place}].content")
        if len(question) > max_message_chars:
            raise MessageTooLong(field=f"messages[{place}].content")
        shown.pop()
    elif last.role != "tool":
        raise BadRequest("neither a question nor a result at the end", field=f"messages[{place}].role")
    given = [_context(context)] if context else []
    answered_calls = {one.call_id for _, one in shown if one.role == "tool"}
    called: set[str] = set()
    for at, one in shown:
        item = _item(one, f"messages[{at}]", answered_calls, called)
        if item is not None:
            given.append(item)
    if not question and (not given or given[-1].role != "tool"):
        raise BadRequest("a result of no call", field=f"messages[{place}].toolCallId")
    return question, tuple(given)


def _item(one: _Message, at: str, answered_calls: set[str | None], called: set[str]) -> HistoryItem | None:
    """A message for the agent. Only calls and results that belong together are kept: models refuse others."""
    text = one.text(at)
    if one.role == "user":
        return HistoryItem("user", text) if text else None
    if one.role == "tool":
        if one.call_id is None:
            raise BadRequest("no call", field=f"{at}.toolCallId")
        return HistoryItem("tool", one.error or text, call_id=one.call_id) if one.call_id in called else None
    if one.role != "assistant":
        return HistoryItem("system", text) if text else None
    calls = [call for call in one.calls or () if call.id in answered_calls]
    called.update(call.id for call in calls)
    if not text and not calls:
        return None
    made = tuple(EarlierCall(call.id, call.function.name, call.function.arguments) for call in calls)
    return HistoryItem("assistant", text, calls=made)


def _context(context: Sequence[_Context]) -> HistoryItem:
    told = [f"{one.description}: {one.value}" if one.description else one.value for one in context]
    return HistoryItem("system", "\n".join(told))


def _tool(tool: _Tool) -> dict[str, Any]:
    parameters = tool.parameters if isinstance(tool.parameters, dict) else {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _snapshot(messages: Sequence[dict[str, Any]], exchange_id: str, rank: int) -> list[dict[str, Any]]:
    """The client's messages as they are before the run. Its reasoning stays as an empty message, since a client drops
    all messages that a snapshot lacks, except reasoning."""
    kept = []
    for message in messages:
        if not is_own(message.get("id", ""), exchange_id, rank):
            kept.append(message)
        elif message["role"] == "reasoning":
            kept.append({"id": message["id"], "role": "reasoning", "content": ""})
    return kept
