"""Several models as one: the endpoints of a model, and those that stand in for it."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, PrivateAttr

from agentic_backend import settings
from agentic_backend.errors import LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.llm.chunks import Ending
from agentic_backend.llm.guard import first_token_by
from agentic_backend.llm.langchain import AsyncOnlyChatModel
from agentic_backend.llm.models import StreamingChatModel
from agentic_backend.llm.observer import METERED
from agentic_backend.llm.providers import GuardedChatModel, Models
from backend_kit.aio.retry import QuietLog

Piece = TypeVar("Piece")

_PASSING: Final = (LlmUnavailable, LlmRateLimited, LlmTimeout)
"""After these another one is asked: whatever else a model says about a request, the next one would say as well."""
_UNHEARD: Final[RunnableConfig] = {"callbacks": []}
"""For the call of a member: its handlers have heard of that of the group."""
_TOOLS_WITH: Final = "tools_with"


class Member:
    """One endpoint of a model. It may stand in several groups. `name` is the one of the model in figures and answers,
    `outstanding` the number of its calls now."""

    __slots__ = ("chat_model", "name", "outstanding")

    def __init__(self, chat_model: BaseChatModel, name: str) -> None:
        self.chat_model = chat_model
        self.name = name
        self.outstanding = 0

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Count a call."""
        self.outstanding += 1
        try:
            yield
        finally:
            self.outstanding -= 1


class _Attempt(NamedTuple):
    """Whom to ask, by when its first token must have come, whether nobody is left after it, and whether who is left is
    of other models."""

    member: Member
    by: float
    last: bool
    last_of_model: bool


def _uncounted(_model: str, _cause: str) -> None:
    """The default of `on_fallback`: do not count."""


class ModelGroup(AsyncOnlyChatModel):
    """Asks the endpoints of a model, the one with the fewest calls first, then those of each of its fallbacks.

    The next one is asked where one is unavailable, limits its rate, has an open circuit or is silent, and only before
    the first token: shown text is never shown twice. Any other failure is the call's. All attempts share the deadline
    of the first token: each has half of what is left of it, the last one all. Async only.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    models: tuple[tuple[Member, ...], ...]
    """The endpoints of the model, and of each of its fallbacks."""
    first_token_s: float
    """Seconds from the call to its first token, whichever member it comes from."""
    on_fallback: Callable[[str, str], None] = _uncounted
    """Gets the name of a model and the code of its failure each time that another model is asked instead."""

    _numbers: Iterator[int] = PrivateAttr(default_factory=itertools.count)
    _log: QuietLog = PrivateAttr(default_factory=lambda: QuietLog(logging.getLogger(__name__)))

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools, in any form that LangChain takes: each member is given them as it wants them."""
        offered = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=offered, **{_TOOLS_WITH: choice | kwargs})

    async def astream_text(
        self,
        messages: Sequence[BaseMessage],
        on_text: Callable[[str], None],
        on_thought: Callable[[str], None] | None = None,
        **options: Any,
    ) -> AsyncIterator[Ending | AIMessageChunk]:
        """`StreamingChatModel.astream_text` of the member that answers. `tools` are named as in a chat completions
        request."""
        begun = False

        def take(text: str) -> None:
            nonlocal begun
            begun = True
            on_text(text)

        def think(text: str) -> None:
            nonlocal begun
            begun = True
            if on_thought is not None:
                on_thought(text)

        def texts(member: Member) -> AsyncIterator[Ending | AIMessageChunk]:
            model = member.chat_model
            if isinstance(model, StreamingChatModel | GuardedChatModel):
                return model.astream_text(messages, take, think, **options)
            return model.astream(list(messages), **self._bound(model, options))

        async with aclosing(self._first_that_answers(texts, lambda: begun)) as pieces:
            async for member, piece in pieces:
                yield _signed(piece, member)

    @property
    def _llm_type(self) -> str:
        return "group"

    async def _chunks_of_whole(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: AsyncCallbackManagerForLLMRun | None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        kwargs.pop("stream", None)
        async for chunk in self._astream(messages, stop, **kwargs):
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 - langchain calls its handlers
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        def chunks(member: Member) -> AsyncIterator[AIMessageChunk]:
            bound = self._bound(member.chat_model, kwargs)
            return member.chat_model.astream(messages, config=_UNHEARD, stop=stop, **bound)

        async with aclosing(self._first_that_answers(chunks, lambda: False)) as pieces:
            async for member, chunk in pieces:
                yield ChatGenerationChunk(message=_signed(chunk, member))

    async def _first_that_answers(
        self, stream: Callable[[Member], AsyncIterator[Piece]], begun: Callable[[], bool]
    ) -> AsyncGenerator[tuple[Member, Piece]]:
        """The pieces of the first stream that has any. `begun` says whether one has already produced something beside
        them."""
        for attempt in self._attempts():
            member = attempt.member
            yielded = False
            with member.asked():
                pieces = stream(member)
                try:
                    piece = await self._first(pieces, attempt)
                    while piece is not None:
                        yielded = True
                        yield member, piece
                        piece = await anext(pieces, None)
                    return
                except _PASSING as failure:
                    if attempt.last or yielded or begun():
                        raise
                    self._pass_over(attempt, failure)
                finally:
                    await pieces.aclose()  # type: ignore[attr-defined] # an async generator, as langchain's are

    async def _first(self, pieces: AsyncIterator[Piece], attempt: _Attempt) -> Piece | None:
        """The first piece, within the deadline of the attempt. Our own models keep it themselves, and know whether a
        token has come that is in no piece; None at the end."""
        with first_token_by(attempt.by):
            if isinstance(attempt.member.chat_model, StreamingChatModel | GuardedChatModel):
                return await anext(pieces, None)
            try:
                async with asyncio.timeout_at(attempt.by):
                    return await anext(pieces, None)
            except TimeoutError:
                raise LlmTimeout("no first token") from None

    def _attempts(self) -> Iterator[_Attempt]:
        """Who is asked, in order; the deadline of each is reckoned when it comes up."""
        clock = asyncio.get_running_loop().time
        until = clock() + self.first_token_s
        for endpoints in self.models:
            order = self._by_load(endpoints)
            for member in order:
                last_of_model = member is order[-1]
                last = last_of_model and endpoints is self.models[-1]
                now = clock()
                yield _Attempt(member, until if last else now + (until - now) / 2, last, last_of_model)

    def _by_load(self, endpoints: tuple[Member, ...]) -> Sequence[Member]:
        """The fewest calls first, those with as many in turn."""
        if len(endpoints) == 1:
            return endpoints
        first = next(self._numbers) % len(endpoints)
        return sorted(endpoints[first:] + endpoints[:first], key=lambda member: member.outstanding)

    def _pass_over(self, attempt: _Attempt, failure: TurnFailed) -> None:
        name = attempt.member.name
        self._log.warning(name, "model %s did not answer (%s), the next is asked", name, failure.code.value)
        if attempt.last_of_model:
            self.on_fallback(name, failure.code.value)

    @staticmethod
    def _bound(model: BaseChatModel, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call, with tools as the model wants them."""
        options = dict(options)
        given = options.pop(_TOOLS_WITH, {})
        tools = options.pop("tools", None)
        if not tools:
            return options
        if (choice := options.pop("tool_choice", None)) is not None:
            given = {**given, "tool_choice": choice}
        bound = model.bind_tools(tools, **given)
        assert isinstance(bound, RunnableBinding), "bind_tools binds"
        return {**options, **bound.kwargs}


def _signed(piece: Any, member: Member) -> Any:
    """The piece that says why an answer ended, with the name of who gave it where it says none."""
    if isinstance(piece, Ending):
        return piece if piece.model or not piece.finish_reason else piece._replace(model=member.name)
    if "finish_reason" in piece.response_metadata:
        piece.response_metadata.setdefault("model_name", member.name)
    return piece


class ModelGroups:
    """Makes the chat models of a process from settings: with all their endpoints, and those that stand in for them.

    An endpoint is the same member in however many groups it stands. `on_fallback` is that of the groups.
    """

    def __init__(self, models: Models, deadlines: settings.Deadlines, on_fallback: Callable[[str, str], None]) -> None:
        self._models = models
        self._deadlines = deadlines
        self._on_fallback = on_fallback
        self._members: dict[int, Member] = {}

    def prepare(self, called: Iterable[settings.ChatModel]) -> None:
        """`Models.prepare` for all endpoints."""
        self._models.prepare([at for one in called for at in one.endpoints], self._deadlines)

    def of(self, *called: settings.ChatModel) -> BaseChatModel:
        """A model, and after it its fallbacks, as one; itself where that is one endpoint alone."""
        models = tuple(tuple(self._member(at) for at in one.endpoints) for one in called)
        if len(models) == len(models[0]) == 1:
            return models[0][0].chat_model
        return ModelGroup(
            models=models,
            first_token_s=self._deadlines.first_token_s,
            on_fallback=self._on_fallback,
            metadata={METERED: True},
            cache=False,
        )

    def _member(self, at: settings.ChatModel) -> Member:
        model = self._models.model_of(at, self._deadlines)
        return self._members.setdefault(id(model), Member(model, at.name))
