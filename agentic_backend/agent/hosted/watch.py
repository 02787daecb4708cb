"""Watches one run of a graph by LangChain's callbacks: its nodes, its models' calls, what they say, why they fail."""

import asyncio
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from threading import get_ident
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.constants import TAG_HIDDEN, TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from langgraph.pregel._messages import StreamMessagesHandler

from agentic_backend.agent.hosted.messages import messages_in
from agentic_backend.agent.hosted.speech import Speech, SpokenAt
from agentic_backend.errors import LlmTimeout, TurnFailed
from agentic_backend.llm.observer import METERED, CallStatus, LlmObserver, TokenUse
from agentic_backend.llm.providers.faults import failure_of
from agentic_backend.llm.providers.reading import reason_in, text_in, use_in
from backend_kit.kpi import phase

NS_SEP: Final = "|"
"""Between the parts of a namespace of LangGraph's."""
GRAPH: Final = "graph"
"""The phase of a turn in which no node runs: LangGraph itself, with its reads and writes of the state."""
_STEP_TAG: Final = "graph:step:"
_Method = TypeVar("_Method", bound=Callable[..., None])
_NOT_OF_A_NAME: Final = re.compile(r"[^a-z0-9_]+")


def node_phase(node: str) -> str:
    """The phase of a node: its name in lower case, in the characters that a phase may have."""
    name = _NOT_OF_A_NAME.sub("_", node.lower()).strip("_")[:40]
    return name if name[:1].isalpha() else f"node_{name}"


class _Call:
    """A call of a model that is under way."""

    __slots__ = ("began", "begun", "message_id", "metered", "model", "place", "quiet", "timer")

    def __init__(self, model: str, place: SpokenAt, *, metered: bool, quiet: bool) -> None:
        self.model = model
        self.place = place
        self.metered = metered
        self.quiet = quiet
        self.message_id = ""
        self.begun = False
        self.began = perf_counter()
        self.timer = phase("llm_invoke")


class _FailedCall(NamedTuple):
    """A call of a model that failed; `begun` says whether its answer had begun."""

    error: BaseException
    begun: bool


class _RunOver(BaseException):  # an Exception would be an answer to a tool, and tried again by a model's retries
    """Ends a thread's call of a model whose run is over: nobody waits for it, and a thread cannot be cancelled."""


def _on_loop(method: _Method) -> _Method:
    """A method that a node in a thread of LangGraph's calls, too: it then runs on the loop, before the node's own end
    does."""

    @wraps(method)
    def call(self: "Watch", *args: Any, **kwargs: Any) -> None:
        if get_ident() == self.thread:
            method(self, *args, **kwargs)
        elif self.over:
            raise _RunOver
        else:
            self.loop.call_soon_threadsafe(partial(method, self, *args, **kwargs))

    return cast(_Method, call)


class Watch(StreamMessagesHandler):
    """The callback handler of one run. What it hears of happens in the run's tasks, on the loop, where it never waits;
    or in a thread, where a node is not asynchronous.

    It stands where LangGraph's own handler stands for the stream of messages, so that models stream which a node merely
    invokes, those of subgraphs too. A token comes here by one call, where that stream would wake a task for it
    (docs/libraries.md#langgraphs-streaming).
    """

    run_inline = True
    raise_error = True

    def __init__(
        self, speech: Speech, observer: LlmObserver, phases: Mapping[str, str], use: Callable[[TokenUse], None]
    ) -> None:
        """`phases` are the names under which nodes are timed; `use` takes the tokens of each call."""
        super().__init__(_nobody, subgraphs=True)
        self.speech = speech
        self._observer = observer
        self._phases = phases
        self._use = use
        self._nodes: dict[UUID, tuple[Any, SpokenAt]] = {}
        self._calls: dict[UUID, _Call] = {}
        self._graph: Any = None
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.over = False
        self.model = ""
        self.finish_reason = ""
        self._failed: list[_FailedCall] = []

    def begin(self) -> None:
        """The run begins."""
        self._graph = phase(GRAPH)
        self._graph.__enter__()

    def end(self) -> None:
        """The run is over, however it ended. What was open is closed."""
        self.over = True
        for call in self._calls.values():
            call.timer.__exit__(GeneratorExit, None, None)
            if not call.metered:
                self._observer.llm_request(call.model, "cancelled", perf_counter() - call.began)
        for timer, _ in self._nodes.values():
            timer.__exit__(GeneratorExit, None, None)
        self._calls.clear()
        self._nodes.clear()
        if self._graph is not None:
            self._graph.__exit__(None, None, None)
            self._graph = None

    def model_failure(self, failure: BaseException) -> TurnFailed | None:
        """The error of a run that ended with `failure`, if that came of one of its failed model calls; else None.

        Of the exceptions' texts nothing is kept: they may repeat the prompt.
        """
        found = ((one, call.begun) for one in _chain(failure) for call in self._failed if call.error is one)
        cause, begun = next(found, (None, False))
        if cause is None or isinstance(cause, TurnFailed):
            return cause
        if isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__:
            return LlmTimeout(type(cause).__name__)
        return failure_of(cause, begun=begun).take() if isinstance(cause, Exception) else None

    # Signatures below are LangChain's; what it passes beyond them is in `_more`.

    @_on_loop
    def on_chain_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - LangChain's signature
        inputs: Any,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        if self.over or not tags or TAG_HIDDEN in tags or not any(tag.startswith(_STEP_TAG) for tag in tags):
            return
        place = _place_in(metadata or {})
        if not self._nodes and self._graph is not None:
            self._graph.__exit__(None, None, None)
            self._graph = None
        for message in messages_in(inputs):
            self.speech.know(message)
        timer = phase(self._phases.get(place.node) or node_phase(place.node))
        timer.__enter__()
        self._nodes[run_id] = timer, place

    @_on_loop
    def on_chain_end(  # type: ignore[override] # passed by place
        self, response: Any, *, run_id: UUID, **_more: Any
    ) -> None:
        if (place := self._left(run_id, None)) is not None:
            for message in messages_in(response):
                self.speech.take(message, place)

    @_on_loop
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_more: Any) -> None:
        # To ask a person, or to go on in another graph, is no failure.
        self._left(run_id, None if isinstance(error, GraphBubbleUp) else error)

    @_on_loop
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],  # noqa: ARG002 - LangChain's signature
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        self.on_llm_start(serialized, [], run_id=run_id, tags=tags, metadata=metadata)

    @_on_loop
    def on_llm_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - LangChain's signature
        prompts: list[str],  # noqa: ARG002 - LangChain's signature
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        if self.over:
            return
        about = metadata or {}
        model = str(about.get("ls_model_name") or "unknown")
        call = _Call(model, _place_in(about), metered=bool(about.get(METERED)), quiet=TAG_NOSTREAM in (tags or ()))
        self._calls[run_id] = call
        call.timer.__enter__()

    @_on_loop
    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_more: Any) -> None:  # noqa: ARG002 - LangChain's signature
        call = self._calls.get(run_id)
        if call is None:
            return
        if not call.begun:
            call.begun = True
            if not call.metered:
                self._observer.llm_first_chunk(call.model, perf_counter() - call.began)
        message = getattr(chunk, "message", None)
        if call.quiet or not isinstance(message, AIMessageChunk):
            return
        if message.id and not call.message_id:
            call.message_id = message.id
        self.speech.take_fragment(call.message_id or str(run_id), text_in(message), call.place)

    @_on_loop
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        message = _message_of(response)
        try:
            if message is not None:
                self._note(call, message)
            self._account(call, "ok", message)  # in its phase: a trace finds by that whose tokens they are
        finally:
            call.timer.__exit__(None, None, None)
        if call.quiet:
            return
        if not call.begun and isinstance(message, AIMessage):
            call.message_id = message.id or str(run_id)
            self.speech.take_fragment(call.message_id, text_in(message), call.place)
        self.speech.ended(call.message_id or str(run_id), message.id if message is not None else None)

    @_on_loop
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        call.timer.__exit__(type(error), None, None)
        self._failed.append(_FailedCall(error, call.begun))
        self._account(call, _status(error), None)
        self.speech.ended(call.message_id or str(run_id))

    def _left(self, run_id: UUID, error: BaseException | None) -> SpokenAt | None:
        """A node is left, which is in this place; None where it was no node."""
        timer, place = self._nodes.pop(run_id, (None, None))
        if timer is None:
            return None
        timer.__exit__(type(error) if error is not None else None, None, None)
        if not self._nodes and self._graph is None:
            self.begin()
        return place

    def _note(self, call: _Call, message: AIMessage) -> None:
        about = message.response_metadata
        self.model = str(about.get("model_name") or about.get("model") or call.model)
        self.finish_reason = reason_in(message) or ""

    def _account(self, call: _Call, status: CallStatus, message: AIMessage | None) -> None:
        use = use_in(message) if message is not None else None
        if use is not None:
            self._use(use)
        if call.metered:
            return
        self._observer.llm_request(call.model, status, perf_counter() - call.began)
        if use is not None:
            self._observer.llm_tokens(call.model, use)


def _nobody(_chunk: Any) -> None:
    """Nothing goes into LangGraph's stream."""


def _place_in(metadata: Mapping[str, Any]) -> SpokenAt:
    """Where in the graph LangGraph's metadata of a call says it is."""
    namespace = str(metadata.get("langgraph_checkpoint_ns", "")).split(NS_SEP)[:-1]
    step = metadata.get("langgraph_step", 0)
    return SpokenAt(str(metadata.get("langgraph_node", "")), step if type(step) is int else 0, tuple(namespace))


def _status(error: BaseException) -> CallStatus:
    """How a call ended that raised this."""
    if isinstance(error, CancelledError | GeneratorExit):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__ else "error"


def _message_of(response: LLMResult) -> AIMessage | None:
    for generations in response.generations:
        for generation in generations:
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                return generation.message
    return None


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """A failure, what it was raised from, and the parts of a group."""
    seen: set[int] = set()
    waiting: list[BaseException] = [failure]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
