"""One real turn through the compatible protocol: the proof that the whole path works, and its warm-up."""

import asyncio

import aiohttp

from backend_kit.wire import dumps, loads
from turnwise.plan import ServicePlan

AGENT = "Georges"
QUESTION = "Hello"
TOKEN = "local"  # noqa: S105 - any token passes where users are not authenticated
TURN_S = 90.0


class FirstTurnFailed(Exception):
    """The services run, but a turn fails; `str()` says where."""


async def readiness(service: ServicePlan) -> str:
    """The status of the service's `/ready`: `ready`, or why it is not; empty if it does not answer."""
    timeout = aiohttp.ClientTimeout(total=2.0)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(f"{service.origin}{service.base_path}/ready") as answer,
        ):
            return str(loads(await answer.read())["status"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
        return ""


async def first_turn(service: ServicePlan) -> None:
    """Create a session, ask Georges or else the first agent there is, wait for `final`, delete the session.

    Raises `FirstTurnFailed`, after at most 90 s. Does nothing where there is no agent.
    """
    base = f"{service.origin}{service.base_path}/chatbot"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with asyncio.timeout(TURN_S), aiohttp.ClientSession(headers=headers, raise_for_status=True) as client:
            async with client.get(f"{service.origin}{service.base_path}/agents") as answer:
                agents = [str(agent["id"]) for agent in await answer.json() if agent["enabled"]]
            if not agents:
                return
            agent_id = AGENT if AGENT in agents else agents[0]
            body = {"agent_id": agent_id, "title": "First turn"}
            async with client.post(f"{base}/session", json=body) as answer:
                session_id = (await answer.json())["id"]
            try:
                await _ask(client, base, session_id, agent_id)
            finally:
                async with client.delete(f"{base}/session/{session_id}"):
                    pass
    except TimeoutError:
        raise FirstTurnFailed(f"no answer within {TURN_S:g} s") from None
    except aiohttp.ClientResponseError as error:
        raise FirstTurnFailed(f"{error.request_info.method} {error.request_info.url.path}: {error.status}") from None
    except (aiohttp.ClientError, KeyError, ValueError) as error:
        raise FirstTurnFailed(f"{type(error).__name__}: {error}") from None


async def _ask(client: aiohttp.ClientSession, base: str, session_id: str, agent_id: str) -> None:
    async with client.ws_connect(f"{base}/query/ws?token={TOKEN}") as socket:
        await socket.send_str(dumps({"session_id": session_id, "message": QUESTION, "agent_id": agent_id}).decode())
        async for frame in socket:
            event = loads(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else {}
            if event.get("type") == "final":
                return _check_answer(event["messages"][-1])
            if event.get("type") == "error":
                raise FirstTurnFailed(f"the service answered {event.get('code')}: {event.get('content')}")
        raise FirstTurnFailed(f"the socket was closed with {socket.close_code}")


def _check_answer(answer: dict[str, object]) -> None:
    """Raise if the answer carries an error code: a turn that fails midway still ends with `final`."""
    metadata = answer.get("metadata")
    extras = metadata.get("extras") if isinstance(metadata, dict) else None
    if isinstance(extras, dict) and extras.get("error"):
        raise FirstTurnFailed(str(extras["error"]))
