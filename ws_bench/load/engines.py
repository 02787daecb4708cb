"""What a run speaks: how it connects, what it asks with, and who reads the answer."""

from collections import deque
from typing import Protocol

from ws_bench.config.flags import RunConfig
from ws_bench.config.runflags import NATIVE_SUBPROTOCOL
from ws_bench.load.client import Connector, WebsocketsConnector
from ws_bench.load.streams import RunConnector, StreamConnector
from ws_bench.record.chat_stream import ChatTurn
from ws_bench.record.dialects import CompatibleTurn, NativeTurn, TurnReader, ask_frame, completion_frame, run_frame
from ws_bench.record.run_stream import RunTurn

_KEPT_EXCHANGES = 10


class Speaker(Protocol):
    """Asks as one client does."""

    def ask(self, session_id: str, exchange_id: str, message: str, /) -> tuple[str, TurnReader]:
        """The frame of an ask, and what reads its answer."""

    def answered(self, message: str, answer: str) -> None:
        """The turn ended well."""


class _Agent:
    """Asks a service that has the session: in its own protocols, or for a run of LangGraph's API."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def ask(self, session_id: str, exchange_id: str, message: str, /) -> tuple[str, TurnReader]:
        config = self._config
        if config.protocol == "langgraph":
            return run_frame(session_id, config.agent, message, config.stream_mode), RunTurn()
        frame = ask_frame(session_id, exchange_id, message, config.agent, config.runtime_context)
        native = config.native or config.protocol == "sse"
        return frame, NativeTurn(exchange_id) if native else CompatibleTurn(session_id, exchange_id)

    def answered(self, message: str, answer: str) -> None:
        """Nothing to remember: the service has the session."""


class _Completions:
    """Chat completions, whose client sends the conversation along: the last ten exchanges of it."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._said: deque[dict[str, str]] = deque(maxlen=2 * _KEPT_EXCHANGES)

    def ask(self, session_id: str, _exchange_id: str, message: str, /) -> tuple[str, TurnReader]:
        messages = [*self._said, {"role": "user", "content": message}]
        return completion_frame(session_id, self._config.agent, messages), ChatTurn()

    def answered(self, message: str, answer: str) -> None:
        self._said += [{"role": "user", "content": message}, {"role": "assistant", "content": answer}]


def speaker_of(config: RunConfig) -> Speaker:
    """How a client of this run asks."""
    return _Completions(config) if config.protocol == "openai" else _Agent(config)


def connector_of(config: RunConfig) -> Connector:
    """How a client of this run connects."""
    if config.protocol == "ws":
        return WebsocketsConnector(
            config.dial_url,
            {} if config.token_in_query else config.auth_headers,
            subprotocol=NATIVE_SUBPROTOCOL if config.native else "",
            max_size=config.read_limit_bytes,
            insecure=config.insecure,
            deflate=config.deflate,
        )
    headers, size = config.auth_headers, config.read_limit_bytes
    connects = RunConnector if config.protocol == "langgraph" else StreamConnector
    return connects(config.dial_url, headers, max_size=size, insecure=config.insecure)
