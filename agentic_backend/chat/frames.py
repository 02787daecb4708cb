"""Client frames: text in, typed frames out, for both protocols, and how fast they may come. No socket here.

A frame that cannot be read raises BadRequest, UnknownType or MessageTooLong, whose texts quote none of it.
"""

import json
import math
import re
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn
from uuid import uuid4

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from agentic_backend.errors import BadRequest, MessageTooLong, RateLimited, UnknownType
from agentic_backend.session.stream import MOST_IMAGES, Ask, HumanAnswer
from backend_kit.auth import Credentials
from backend_kit.wire import dumps, field_of, storable

MAX_DEPTH: Final = 32
"""Levels of nesting in a client's JSON that is stored or passed on; our encoder refuses 255, no client needs 32."""
_INT_BITS: Final = 63
MAX_RANK: Final = 2**31 - 2
"""Of a message behind which an exchange may begin: its own question has a rank, too."""
FRAMES_PER_S = 500.0
BURST = 500.0


def storable_json(value: Any) -> Any:
    """The value, checked. Raises ValueError for what JSON, UTF-8 or Postgres cannot carry, or below depth 32."""
    _check_json(value, MAX_DEPTH)
    return value


def _check_json(value: Any, depth: int) -> None:
    if isinstance(value, str):
        storable(value)
    elif isinstance(value, dict | list):
        if not depth:
            raise ValueError("nested too deeply")
        if isinstance(value, dict):
            for key in value:
                storable(key)
        for item in value.values() if isinstance(value, dict) else value:
            _check_json(item, depth - 1)
    elif isinstance(value, int):
        if value.bit_length() > _INT_BITS:
            raise ValueError("a whole number of more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number of JSON")


CleanText = Annotated[str, AfterValidator(storable)]
Identifier = Annotated[CleanText, Field(min_length=1, max_length=128)]
Said = Annotated[dict[str, Any] | str, AfterValidator(storable_json)]


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


class RuntimeContext(_Frame):
    """The context that a client may send with an ask. It never contains the user, who is known by the token."""

    language: CleanText | None = None
    session_id: CleanText | None = None
    selected_document_libraries_ids: list[Identifier] | None = None
    selected_document_uids: list[Identifier] | None = None
    selected_chat_context_ids: list[Identifier] | None = None
    search_policy: Literal["hybrid", "semantic", "strict"] | None = None
    attachments_markdown: CleanText | None = None
    search_rag_scope: Literal["corpus_only", "hybrid", "general_only"] | None = None
    deep_search: bool | None = None
    include_session_scope: bool | None = None
    include_corpus_scope: bool | None = None
    model: Identifier | None = None

    def given(self) -> dict[str, Any]:
        """The keys that were sent, as a dict, without the model, which is chosen before the agent runs."""
        return self.model_dump(exclude_none=True, exclude={"model"})


class CompatibleContext(RuntimeContext):
    """The context in the compatible protocol: unknown keys, claimed identities and tokens are dropped."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)

    @field_validator("model", mode="wrap")
    @classmethod
    def _no_model_where_unreadable(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        # The protocol has no such key, so a value that means something else to its clients is not refused.
        try:
            return read(value)
        except ValidationError:
            return None


class NativeAsk(_Frame):
    """A question in the native protocol, or with `regenerate` in place of a message that of an earlier exchange."""

    type: Literal["ask"]
    session_id: Identifier
    agent_id: Identifier
    message: CleanText = ""
    client_exchange_id: Identifier | None = None
    runtime_context: RuntimeContext = RuntimeContext()
    if_busy: Literal["reject", "queue", "replace"] = "reject"
    on_disconnect: Literal["continue", "cancel"] = "continue"
    after_rank: Annotated[int, Field(ge=-1, le=MAX_RANK)] | None = None
    regenerate: Identifier | None = None
    any_branch: bool = False
    images: Annotated[list[Identifier], Field(max_length=MOST_IMAGES)] = []


@dataclass(frozen=True, slots=True)
class Asker:
    """The user who asks, and what is passed to the services that the agent calls on their behalf."""

    user_id: str
    credentials: Credentials | None
    traceparent: str | None


class Cancel(_Frame):
    """Stop a turn."""

    type: Literal["cancel"]
    exchange_id: Identifier


class Resume(_Frame):
    """Continue receiving a turn after the last event that the client has."""

    type: Literal["resume"]
    session_id: Identifier
    exchange_id: Identifier
    after_seq: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


class HumanResume(_Frame):
    """A person's answer to the question of an exchange that waits for it."""

    type: Literal["human_resume"]
    session_id: Identifier
    exchange_id: Identifier
    agent_id: Identifier
    payload: Said
    runtime_context: RuntimeContext = RuntimeContext()


class Auth(_Frame):
    """Renew the socket's credentials."""

    type: Literal["auth"]
    access_token: CleanText


class Ping(_Frame):
    """Ask for a pong."""

    type: Literal["ping"]


class CompatibleHumanResume(_Lenient):
    """`HumanResume` in the compatible protocol, where unknown keys are dropped."""

    type: Literal["human_resume"]
    session_id: Identifier
    exchange_id: Identifier
    agent_id: Identifier
    payload: Said
    runtime_context: CompatibleContext | None = None


class CompatibleAsk(_Lenient):
    """A question in the compatible protocol: `type` may be absent, unknown keys are dropped."""

    type: Literal["ask"] = "ask"
    session_id: Identifier
    agent_id: Identifier
    message: Annotated[CleanText, Field(min_length=1)]
    client_exchange_id: Identifier | None = None
    runtime_context: CompatibleContext | None = None
    access_token: CleanText | None = Field(default=None, repr=False)


CompatibleFrame = CompatibleAsk | CompatibleHumanResume
NativeFrame = NativeAsk | HumanResume | Cancel | Resume | Auth | Ping
_NATIVE: TypeAdapter[NativeFrame] = TypeAdapter(Annotated[NativeFrame, Field(discriminator="type")])


def parse_native(text: str, max_message_chars: int, *, unknown: Literal["forbid", "ignore"] = "forbid") -> NativeFrame:
    """Parse a native frame; `unknown` is the treatment of unknown keys.

    Raises BadRequest, UnknownType or MessageTooLong.
    """
    value = _load(text)
    if not isinstance(value, dict):
        raise BadRequest
    try:
        frame = _NATIVE.validate_python(value, extra=unknown)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        kind = problems[0]["type"]
        if kind == "union_tag_invalid":
            raise UnknownType(field="type") from None
        field = "type" if kind == "union_tag_not_found" else field_of(problems, skip=1)
        raise BadRequest(field=field) from None
    if isinstance(frame, NativeAsk):
        _check_question(frame)
    _check_length(frame, max_message_chars)
    return frame


def _check_question(frame: NativeAsk) -> None:
    """Raise BadRequest where an ask has no question, or two, or two places for it."""
    if bool(frame.message) == (frame.regenerate is not None):
        raise BadRequest(field="message")
    if frame.regenerate is not None and frame.after_rank is not None:
        raise BadRequest(field="after_rank")
    if frame.regenerate is not None and frame.images:
        raise BadRequest(field="images")


def parse_compatible(text: str, max_message_chars: int) -> CompatibleFrame:
    """Parse a frame of the compatible protocol. Raises BadRequest, UnknownType or MessageTooLong."""
    value = _load(text)
    if not isinstance(value, dict):
        raise BadRequest
    kind = value.get("type", "ask")
    if kind not in ("ask", "human_resume"):
        raise UnknownType(field="type")
    model = CompatibleAsk if kind == "ask" else CompatibleHumanResume
    try:
        frame: CompatibleFrame = model.model_validate(value)
    except ValidationError as error:
        raise BadRequest(field=field_of(error.errors(include_url=False, include_input=False))) from None
    _check_length(frame, max_message_chars)
    return frame


def _check_length(frame: NativeFrame | CompatibleFrame, max_message_chars: int) -> None:
    """Raise MessageTooLong for a long message or a person's long answer, as text or as JSON."""
    said: Any = ""
    field = "message"
    if isinstance(frame, NativeAsk | CompatibleAsk):
        said = frame.message
    elif isinstance(frame, HumanResume | CompatibleHumanResume):
        said, field = frame.payload, "payload"
    if len(said if isinstance(said, str) else dumps(said)) > max_message_chars:
        raise MessageTooLong(field=field)


def ask_of(frame: NativeAsk | CompatibleAsk, asker: Asker, request_id: str) -> Ask:
    """The ask in a frame that arrives now. In the compatible protocol, which answers in order, it queues."""
    context = frame.runtime_context or CompatibleContext()
    return Ask(
        session_id=frame.session_id,
        agent_id=frame.agent_id,
        message=frame.message,
        exchange_id=frame.client_exchange_id or str(uuid4()),
        user_id=asker.user_id,
        received_at=time.perf_counter(),
        runtime_context=context.given(),
        language=context.language,
        if_busy="queue" if isinstance(frame, CompatibleAsk) else frame.if_busy,
        on_disconnect="continue" if isinstance(frame, CompatibleAsk) else frame.on_disconnect,
        request_id=request_id,
        credentials=asker.credentials,
        traceparent=asker.traceparent,
        model=context.model,
        lenient=isinstance(frame, CompatibleAsk),
        after_rank=None if isinstance(frame, CompatibleAsk) else frame.after_rank,
        regenerate=None if isinstance(frame, CompatibleAsk) else frame.regenerate,
        any_branch=isinstance(frame, NativeAsk) and frame.any_branch,
        images=() if isinstance(frame, CompatibleAsk) else tuple(dict.fromkeys(frame.images)),
    )


def human_answer_of(frame: HumanResume | CompatibleHumanResume, asker: Asker, request_id: str) -> Ask:
    """The ask that continues a waiting exchange, arriving now."""
    context = frame.runtime_context or CompatibleContext()
    return Ask(
        session_id=frame.session_id,
        agent_id=frame.agent_id,
        message="",
        exchange_id=frame.exchange_id,
        user_id=asker.user_id,
        received_at=time.perf_counter(),
        runtime_context=context.given(),
        language=context.language,
        if_busy="queue" if isinstance(frame, CompatibleHumanResume) else "reject",
        request_id=request_id,
        credentials=asker.credentials,
        traceparent=asker.traceparent,
        human=HumanAnswer(frame.payload),
        model=context.model,
        lenient=isinstance(frame, CompatibleHumanResume),
    )


def session_id_of(text: str) -> str:
    """The session id of a broken compatible frame if it can be read, else `unknown-session`."""
    try:
        value = _load(text)
    except BadRequest:
        return "unknown-session"
    claimed = value.get("session_id") if isinstance(value, dict) else None
    return claimed if isinstance(claimed, str) and re.fullmatch(r"[\w-]{1,64}", claimed) else "unknown-session"


def _load(text: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no number without end, no nesting or integer that the parser refuses."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadRequest from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        # It would be stored as null, which is not what was sent.
        raise ValueError("a number out of range")
    return number


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("not a JSON number")


class FrameRateLimit:
    """A bucket of `BURST` frames that fills up again at `FRAMES_PER_S`; one second of the fastest client that means it.

    Every frame takes one, even if refused: a client that keeps this rate for another second is `flooding`.
    """

    def __init__(self) -> None:
        self._level = BURST
        self._at = 0.0

    @property
    def flooding(self) -> bool:
        """Whether this client keeps sending far too fast."""
        return self._level <= -BURST

    def take(self, now: float) -> None:
        """Count a frame received at `now` (monotonic clock, seconds). Raises RateLimited if it came too early."""
        self._level = min(BURST, self._level + (now - self._at) * FRAMES_PER_S) - 1.0
        self._at = now
        if self._level < 0.0:
            raise RateLimited(retry_after_s=-self._level / FRAMES_PER_S)
