"""From a request in one of OpenAI's shapes to the ask of a turn: which session, which agent, what is refused.

Shared by chat completions and responses.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from starlette.requests import Request

from agentic_backend.agent import Catalog
from agentic_backend.chat.handshake import first_language, traceparent_of
from agentic_backend.chat.hub import RETRY_S
from agentic_backend.errors import AgentNotFound, BadRequest, Draining, Forbidden, MessageTooLong
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.past_exchanges import OpenQuestion, open_question
from agentic_backend.session.stream import Ask, HumanAnswer, OnDisconnect, Turn
from agentic_backend.surfaces.openai.answer_reader import End
from agentic_backend.surfaces.openai.asked import Named, named
from agentic_backend.surfaces.openai.messages import Conversation, with_results
from agentic_backend.surfaces.openai.people import answer_of, in_words, was_asked
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.http import request_id

WARNING_HEADER: Final = "X-Turnwise-Warning"
SESSION_HEADER: Final = "X-Turnwise-Session-Id"
EXCHANGE_HEADER: Final = "X-Turnwise-Exchange-Id"
DISCONNECT_HEADER: Final = "x-turnwise-on-disconnect"
_ONE_OF_THEM: Final = "Please answer with one of the choices."


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request of either shape asks for. `history` is what the agent sees before the question. `ignored` is what
    has no effect; `turn_s` a deadline of its own. A turn that `stays` does not end with its client's connection."""

    model: str
    conversation: Conversation
    history: tuple[HistoryItem, ...]
    tools: tuple[dict[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()
    turn_s: float | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a wish became: the call that begins its turn and the headers of the response, or `instead`, a text answer
    that needs no turn."""

    begin: Callable[[], Turn]
    headers: Mapping[str, str]
    instead: str | None = None


async def prepare(
    services: DoorServices, request: Request, identity: Identity, wish: Wish, session_id: str | None
) -> Prepared:
    """Build the ask of a wish, and open the session that it belongs to, if it is kept. Raises ServiceError."""
    expect_page(services, request)
    ask, headers = ask_of(services, request, identity, wish, session_id)
    if session_id is None:
        return Prepared(lambda: services.unkept.submit(ask), headers)
    headers[SESSION_HEADER] = session_id
    await open_session(services, ask)
    waiting = await find_waiting(services, ask)
    if waiting is None:
        return Prepared(lambda: services.registry.submit(ask), headers)
    headers[EXCHANGE_HEADER] = quote(waiting.exchange_id)  # another client may have named it, by any text
    resumed = answer_to(waiting, ask)
    if resumed is None:
        return Prepared(lambda: services.registry.submit(ask), headers, asked_again(waiting))
    return Prepared(lambda: services.registry.submit(resumed), headers)


def ask_of(
    services: DoorServices,
    request: Request,
    identity: Identity,
    wish: Wish,
    session_id: str | None,
    note: dict[str, Any] | None = None,
) -> tuple[Ask, dict[str, str]]:
    """The ask of a wish (without a session: in one of its own) and the headers of its response. Raises MessageTooLong
    or AgentNotFound."""
    check_length(services, wish.conversation)
    target = target_of(services.catalog, wish.model, identity.may_ask)
    agent = services.catalog.get(target.agent_id)
    ignored = wish.ignored if agent.client_tools or not wish.tools else (*wish.ignored, "tools")
    headers = {WARNING_HEADER: f"ignored: {', '.join(ignored)}"} if ignored else {}
    ask = _ask(request, identity, target, wish, session_id or str(uuid4()), note)
    headers[EXCHANGE_HEADER] = ask.exchange_id
    return ask, headers


async def open_session(services: DoorServices, ask: Ask) -> None:
    """Create the session of an ask if it is new. Raises ServiceError."""
    if services.registry.session_of(ask.session_id, ask.user_id) is not None:
        return
    with services.kpi.phase("session_write"):
        # With nothing before it, it is a conversation's first question.
        await services.sessions.open(ask.session_id, ask.user_id, ask.agent_id, likely_new=not ask.given)


def answer_to(waiting: OpenQuestion, ask: Ask) -> Ask | None:
    """The ask as the answer to the question of an exchange that waits; None if its text is not an answer."""
    answer = answer_of(waiting.question, ask.message)
    if answer is None:
        return None
    return replace(
        ask,
        exchange_id=waiting.exchange_id,
        message="",
        human=HumanAnswer(answer),
        given=None,
        client_tools=(),
        if_busy="reject",
    )


def asked_again(waiting: OpenQuestion) -> str:
    """The reply to a text that must be one of the choices and is not."""
    return f"{_ONE_OF_THEM}\n\n{in_words(waiting.question)}"


def expect_page(services: DoorServices, request: Request) -> None:
    """Raise Forbidden for a page that may not call. Streams are refused for it anyway; this covers all other
    responses."""
    if services.hub.is_foreign(request):
        raise Forbidden


async def run_task(services: DoorServices, request: Request, identity: Identity, conversation: Conversation) -> End:
    """What the language model answers to a front end's task. Raises ServiceError: `TurnFailed`, `RateLimited`,
    `Draining`, or where the request may not ask."""
    expect_page(services, request)
    check_length(services, conversation)
    if services.registry.draining:
        raise Draining(retry_after_s=RETRY_S)
    await services.admit_task(identity.uid)
    messages = [{"role": item.role, "content": item.text} for item in conversation.history]
    told = await services.answer_task([*messages, {"role": "user", "content": conversation.question}])
    return End(told.text, told.text, spent=told.usage or None)


def check_length(services: DoorServices, conversation: Conversation) -> None:
    """Raise MessageTooLong for a question above the service's limit."""
    if len(conversation.question) > services.max_message_chars:
        services.limit_hit("max_message_chars")
        raise MessageTooLong(field=conversation.at)


def target_of(catalog: Catalog, model: str, may_ask: Callable[[str], bool]) -> Named:
    """The agent and the model of a name. Raises AgentNotFound, also for a model that the agent does not offer, and for
    an agent that the caller may not ask."""
    target = named(model, catalog)
    if not may_ask(target.agent_id):
        raise AgentNotFound(field="model")
    try:
        catalog.get(target.agent_id).model_of(target.model)
    except BadRequest:
        raise AgentNotFound(field="model") from None
    return target


def _ask(
    request: Request, identity: Identity, target: Named, wish: Wish, session_id: str, note: dict[str, Any] | None
) -> Ask:
    """The ask of a wish. Asks of one session are answered in their order."""
    stays = request.headers.get(DISCONNECT_HEADER, "").strip().lower() == "continue"
    on_disconnect: OnDisconnect = "continue" if stays or wish.stays else "cancel"
    return Ask(
        session_id=session_id,
        agent_id=target.agent_id,
        message=wish.conversation.question,
        exchange_id=str(uuid4()),
        user_id=identity.uid,
        received_at=time.perf_counter(),
        language=first_language(request.headers.get("accept-language")),
        if_busy="queue",
        on_disconnect=on_disconnect,
        request_id=request_id(request.scope),
        credentials=request.state.credentials,
        traceparent=traceparent_of(request),
        model=target.model,
        given=with_results(wish.history),
        client_tools=wish.tools,
        turn_s=wish.turn_s,
        note=note,
    )


async def find_waiting(services: DoorServices, ask: Ask) -> OpenQuestion | None:
    """The exchange whose question the user's message answers; None if the message is a new question.

    The exchange must wait with this agent, and the client must show it as the newest answer: else its user has moved
    on, or gone back.
    """
    history = ask.given or ()
    if not ask.message or not history or history[-1].role != "assistant":
        return None
    if not services.catalog.get(ask.agent_id).asks_people:
        return None
    with services.kpi.phase("history_get"):
        waiting = await open_question(services.store, ask.session_id, ask.user_id)
    if waiting is None or waiting.agent_id != ask.agent_id:
        return None
    return waiting if was_asked(waiting.question, history) else None
