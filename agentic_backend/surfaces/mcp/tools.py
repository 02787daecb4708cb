"""One tool for each agent: its name, and what a call of it does from the question to the answer."""

import asyncio
import hashlib
import math
import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from string import ascii_letters, digits
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agentic_backend.chat.handshake import first_language, traceparent_of
from agentic_backend.errors import MessageTooLong, SessionLimitReached
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import OpenQuestion, open_question
from agentic_backend.session.stream import (
    Ask,
    Awaiting,
    Cancelled,
    CustomPart,
    Failed,
    HumanAnswer,
    Payload,
    Restarted,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.session.stream import (
    Final as Answered,
)
from agentic_backend.surfaces.follow import Following
from agentic_backend.surfaces.mcp.people import Question, answer_in, answer_of, form_of, in_words, takes_forms
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import KeyScope
from backend_kit.http import request_id
from backend_kit.mcp import Answer, Context, arguments_of, caller_of, detail, expect_scope, language_of, refused
from backend_kit.wire import Code, dumps, loads, storable

_PREFIX: Final = "ask_"
_NAME_CHARS: Final = frozenset(ascii_letters + digits + "_-")
_MAX_NAME: Final = 64
"""The protocol allows 128; clients hand names to models, which take 64."""
_MAX_ROUNDS: Final = 10
"""Questions to a person within one call."""
_PERSON_S: Final = 600.0
"""How long a call waits for a person; after that the question is its result, and the next call may answer it."""
_PROGRESS_S: Final = 0.2
"""Seconds between two progress notifications at least."""
_MAX_PROGRESS_CHARS: Final = 2000
_FORM: Final = "answer"
_ARGUMENT_OF: Final = {"message": "question"}
"""Fields of an ask, by the names of the tool's arguments."""


Storable = Annotated[str, AfterValidator(storable)]


class _Shape(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)


class AskArguments(_Shape):
    """Arguments of every tool."""

    question: Annotated[
        Storable, Field(min_length=1, description="What to ask the agent, or the reply to its question.")
    ]
    session_id: Annotated[
        Storable | None,
        Field(
            max_length=128,
            description="`session_id` of an earlier answer, to go on in that conversation; without it: a new one.",
        ),
    ] = None


class Source(_Shape):
    """A passage that the answer may cite; `[2]` in its text is the source with number 2."""

    number: int
    title: str
    url: str
    document_id: str
    section: str | None = None
    page: int | None = None


class ToolReply(_Shape):
    """What a tool returns. With `awaiting_human` the agent asks its user: `answer` is the question, `question` all that
    is known of it, and the next call with this `session_id` replies."""

    status: Literal["final", "awaiting_human", "cancelled"]
    answer: str
    session_id: str
    exchange_id: str
    sources: list[Source] = []
    question: dict[str, Any] | None = None


# Made once: the SDK lists the tools at each call, and making them takes longer than the rest of it.
_ARGUMENTS: Final = AskArguments.model_json_schema()
_REPLY: Final = ToolReply.model_json_schema()


class AgentTools:
    """What the tools do, for the sender of the request."""

    def __init__(self, services: DoorServices) -> None:
        self._services = services

    async def list_tools(self, ctx: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """A tool for each agent that the caller may ask."""
        return ListToolsResult(tools=[_tool(agent) for agent in self._agents(ctx)])

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> Answer:
        """Ask an agent. Raises MCPError for one that does not exist, and `ServiceError`."""
        catalog, caller = self._services.catalog, caller_of(ctx)
        agent_id = next((one for one in catalog.ids() if tool_name(one) == params.name and caller.may_ask(one)), None)
        if agent_id is None:
            raise MCPError(INVALID_PARAMS, "Unknown tool.")
        expect_scope(ctx, KeyScope.ASK)
        wanted = arguments_of(AskArguments, params.arguments)
        if len(wanted.question) > self._services.max_message_chars:
            self._services.limit_hit("max_message_chars")
            raise MessageTooLong(field="question")
        ask = self._ask(ctx, agent_id, wanted)
        continued = await self._continued(ask, params, wanted)
        if isinstance(continued, CallToolResult):
            return continued
        return await self._run(ctx, continued)

    def _agents(self, ctx: Context) -> list[dict[str, Any]]:
        caller = caller_of(ctx)
        catalog = self._services.catalog
        return [agent for agent in catalog.list() if agent["id"] in catalog and caller.may_ask(agent["id"])]

    def _ask(self, ctx: Context, agent_id: str, wanted: AskArguments) -> Ask:
        request = ctx.request
        assert request is not None  # every message comes over HTTP
        return Ask(
            session_id=wanted.session_id or "",
            agent_id=agent_id,
            message=wanted.question,
            exchange_id=str(uuid4()),
            user_id=caller_of(ctx).uid,
            received_at=time.perf_counter(),
            language=first_language(language_of(ctx)),
            # Calls in one conversation are answered in their order.
            if_busy="queue",
            on_disconnect="cancel",
            request_id=request_id(request.scope),
            credentials=request.state.credentials,
            traceparent=traceparent_of(request),
        )

    async def _continued(self, ask: Ask, params: CallToolRequestParams, wanted: AskArguments) -> Ask | CallToolResult:
        """The ask in its session: a new one, or the reply to the question with which the session waits."""
        if params.request_state is not None:
            return await self._filled(ask, params)
        if wanted.session_id is None:
            return await self._in_new_session(ask)
        waiting = await self._waiting(ask)
        if waiting is None:
            return ask
        reply = answer_of(waiting.question, ask.message)
        if reply is None:
            return _asked(ask.session_id, waiting.exchange_id, waiting.question)
        return _resumed(ask, waiting.exchange_id, reply)

    async def _in_new_session(self, ask: Ask) -> Ask | CallToolResult:
        try:
            with self._services.kpi.phase("session_write"):
                session = await self._services.sessions.make(Session.new(ask.user_id, ask.agent_id, ""))
        except SessionLimitReached as limit:
            message = f"You have {limit.most} conversations already: delete one, or pass the session_id of one."
            return refused({**detail(limit.code, ask.language), "message": message})
        return replace(ask, session_id=session.id)

    async def _filled(self, ask: Ask, params: CallToolRequestParams) -> Ask | CallToolResult:
        """The ask of a call that is sent again with the form that it had asked for. What the client says of the session
        is trusted no more than an argument: the session must be its user's, and be waiting with this question."""
        session_id, checkpoint_id = _named_in(params.request_state or "")
        waiting = await self._waiting(replace(ask, session_id=session_id)) if session_id else None
        if waiting is None or waiting.question["checkpoint_id"] != checkpoint_id:
            raise MCPError(INVALID_PARAMS, "Unknown requestState.")
        form = (params.input_responses or {}).get(_FORM)
        reply = answer_in(waiting.question, form if isinstance(form, ElicitResult) else None)
        if reply is None:
            return _asked(session_id, waiting.exchange_id, waiting.question)
        return _resumed(replace(ask, session_id=session_id), waiting.exchange_id, reply)

    async def _waiting(self, ask: Ask) -> OpenQuestion | None:
        """What the session waits for its user with; None where it does not wait, or with another agent."""
        if not self._services.catalog.get(ask.agent_id).asks_people:
            return None
        with self._services.kpi.phase("history_get"):
            waiting = await open_question(self._services.store, ask.session_id, ask.user_id)
        return waiting if waiting is not None and waiting.agent_id == ask.agent_id else None

    async def _run(self, ctx: Context, ask: Ask) -> Answer:
        """Run a turn, and further ones while the user answers the agent's questions in forms."""
        for _ in range(_MAX_ROUNDS):
            end = await self._turn(ctx, ask)
            if not isinstance(end, Awaiting) or not takes_forms(ctx.session.client_capabilities):
                break
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return _form_wanted(ask, end.payload)
            reply = await _answer_to(ctx, end.payload) if ctx.session.can_send_request else None
            if reply is None:
                break
            ask = _resumed(replace(ask, received_at=time.perf_counter()), ask.exchange_id, reply)
        return self._result(ctx, ask, end)

    async def _turn(self, ctx: Context, ask: Ask) -> Payload:
        """Follow a turn to its end; leaving early stops it."""
        progress = _Progress(ctx)
        pace_s = _PROGRESS_S if progress.wanted else math.inf
        with Following(self._services.registry.submit(ask), pace_s=pace_s) as events:
            async for event in events:
                if event.terminal:
                    return event.payload
                await progress.note(event.payload)
        raise RuntimeError("a turn without an end")

    def _result(self, ctx: Context, ask: Ask, end: Payload) -> CallToolResult:
        if isinstance(end, Awaiting):
            return _asked(ask.session_id, ask.exchange_id, end.payload)
        if isinstance(end, Answered):
            message = end.messages[-1]
            page = self._page(ctx)
            links = [part for part in message.parts if part.get("type") == "link" and part.get("kind") == "citation"]
            answer = ToolReply(
                status="final",
                answer=message.text,
                session_id=ask.session_id,
                exchange_id=ask.exchange_id,
                sources=[
                    _source(number, hit, page) for number, hit in enumerate(message.metadata.get("sources") or (), 1)
                ],
            )
            return _shown(answer, [_link(part, page) for part in links])
        if isinstance(end, Cancelled):
            text = end.messages[-1].text if end.messages and end.messages[-1].role == "assistant" else ""
            return _shown(
                ToolReply(status="cancelled", answer=text, session_id=ask.session_id, exchange_id=ask.exchange_id)
            )
        assert isinstance(end, Failed)
        after_s = None if end.retry_after_ms is None else end.retry_after_ms / 1000
        field = "session_id" if end.code is Code.SESSION_NOT_FOUND else _ARGUMENT_OF.get(end.field or "", end.field)
        return refused(detail(end.code, ask.language, field=field, retry_after_s=after_s))

    def _page(self, ctx: Context) -> str:
        """The origin at which people open passages: as configured, else the address to which the request was sent."""
        request = ctx.request
        assert request is not None
        configured = self._services.public_url
        return configured or f"{request.scope['scheme']}://{request.headers.get('host', 'localhost')}"


class _Progress:
    """Sends a client that wants it what an agent says. One that reads slowly gets it less often, more at a time."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.wanted = ctx.meta is not None and "progress_token" in ctx.meta
        self._done = 0

    async def note(self, payload: Payload) -> None:
        """Report an event."""
        if not self.wanted:
            return
        if isinstance(payload, TextDelta):
            self._done += len(payload.text)
            await self._report_progress(payload.text)
        elif (event := _progress_of(payload)) is not None:
            self._done += 1
            await self._report_progress(event)

    async def _report_progress(self, said: str) -> None:
        await self._ctx.session.report_progress(float(self._done), message=said[:_MAX_PROGRESS_CHARS])


@lru_cache(maxsize=1024)
def tool_name(agent_id: str) -> str:
    """The name of an agent's tool: at most 64 characters that clients and models allow, and unique. It stays the same
    whichever other agents there are."""
    plain = "".join(char if char in _NAME_CHARS else "_" for char in agent_id)
    if plain == agent_id and len(_PREFIX) + len(plain) <= _MAX_NAME:
        return _PREFIX + plain
    mark = hashlib.sha256(agent_id.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_PREFIX}{plain[: _MAX_NAME - len(_PREFIX) - len(mark) - 1]}_{mark}"


def _tool(agent: dict[str, Any]) -> Tool:
    tuning = agent["tuning"]
    told = [text for text in (tuning["role"], tuning["description"]) if text]
    return Tool(
        name=tool_name(agent["id"]),
        title=agent["name"],
        description=". ".join([f"Ask the agent {agent['name']}", *told]),
        input_schema=_ARGUMENTS,
        output_schema=_REPLY,
        annotations=ToolAnnotations(destructive_hint=False, open_world_hint=True),
    )


def _resumed(ask: Ask, exchange_id: str, reply: dict[str, Any]) -> Ask:
    return replace(ask, exchange_id=exchange_id, message="", human=HumanAnswer(reply), if_busy="reject")


async def _answer_to(ctx: Context, question: Question) -> dict[str, Any] | None:
    """What the user answers in a form of their client's; None if they do not answer in time."""
    message, schema = form_of(question)
    with suppress(TimeoutError, MCPError):  # MCPError: the client could not ask
        async with asyncio.timeout(_PERSON_S):
            return answer_in(question, await ctx.session.elicit_form(message, schema, ctx.request_id))
    return None


def _form_wanted(ask: Ask, question: Question) -> InputRequiredResult:
    message, schema = form_of(question)
    form = ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))
    state = dumps([ask.session_id, question["checkpoint_id"]]).decode()
    return InputRequiredResult(input_requests={_FORM: form}, request_state=state)


def _named_in(state: str) -> tuple[str, str]:
    """The session and the question that a `requestState` names, "" if it is not one of ours."""
    try:
        session_id, checkpoint_id = loads(state)
        return AskArguments(question="-", session_id=session_id).session_id or "", str(checkpoint_id)
    except (TypeError, ValueError):
        return "", ""


def _asked(session_id: str, exchange_id: str, question: Question) -> CallToolResult:
    """A question to the user as the result of a call."""
    return _shown(
        ToolReply(
            status="awaiting_human",
            answer=in_words(question),
            session_id=session_id,
            exchange_id=exchange_id,
            question=dict(question),
        ),
        after=f"The agent waits for its user: ask again with session_id {session_id} and the reply as question.",
    )


def _shown(answer: ToolReply, links: list[ResourceLink] | None = None, *, after: str = "") -> CallToolResult:
    content: list[ContentBlock] = [TextContent(text=answer.answer)]
    if after:
        content.append(TextContent(text=after))
    return CallToolResult(content=[*content, *(links or ())], structured_content=answer.model_dump(mode="json"))


def _source(number: int, hit: dict[str, Any], page: str) -> Source:
    return Source(
        number=number,
        title=str(hit.get("title") or hit.get("file_name") or hit["uid"]),
        url=_url(str(hit.get("citation_url") or ""), page),
        document_id=str(hit["uid"]),
        section=hit.get("section"),
        page=hit.get("page"),
    )


def _link(part: dict[str, Any], page: str) -> ResourceLink:
    title = str(part.get("title") or "Source")
    return ResourceLink(
        uri=_url(str(part.get("href") or ""), page), name=title, title=title, mime_type=part.get("mime")
    )


def _url(href: str, page: str) -> str:
    return page + href if href.startswith("/") else href


def _progress_of(payload: Payload) -> str | None:
    """The progress text for an event that is not text of the answer; None if the event is not reported."""
    if isinstance(payload, ThoughtDelta):
        return "Thinking"
    if isinstance(payload, Restarted):
        return "Starts again"
    if isinstance(payload, Whole) and payload.message.role == "assistant":
        calls = [part["name"] for part in payload.message.parts if part.get("type") == "tool_call"]
        return f"Calls {', '.join(map(str, calls))}" if calls else None
    if isinstance(payload, CustomPart):
        said = loads(payload.json)
        return said if isinstance(said, str) else None
    return None
