"""A model of the native protocol, and what a client may do to it: the rules of a stateful test.

The rules send frames on two sockets in any order, cut them, come back; the model keeps what was heard of each exchange.
Which rule comes next depends on what was sent alone: what was heard is a matter of time, and would not come again.
What must hold whatever happened:

- every frame is valid by the published schema, every code of the closed list;
- an event has one content wherever and however often it is told, and its session is that of its ask;
- numbers are dense from 1 (only a `delta` may stand for several), and the terminal event is the last and the only one;
- every accepted ask ends in one, and the history has its messages, ranks dense from 0;
- a bad frame is answered with its code, and the third in ten seconds closes with 1008.
"""

import contextlib
import itertools
import json
import time
import uuid
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import Any

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from backend_kit.wire import CODES
from tests.support.following import resume_frame
from tests.support.patience import PATIENCE_S
from tests.support.people import headers_of, token_of
from tests.support.schema import validate_native
from tests.support.service import BASE
from tests.support.standing import Standing

TERMINAL = {"final", "error", "cancelled", "awaiting_human"}
BAD_FRAMES = ("{", "[]", "null", '{"type":"ask"}', '{"type":"ping","extra":1}', '{"type":"ping","type":"ping"}', '"x"')
SOCKETS = st.integers(0, 1)


@dataclass(slots=True)
class Exchange:
    """What is known of one ask: its numbered events as they were first told, and how it was refused."""

    session_id: str
    text: str
    asked: int = 0
    events: dict[int, dict[str, Any]] = field(default_factory=dict)
    refusals: int = 0

    @property
    def end(self) -> int:
        """The number of the terminal event, 0 while there is none."""
        return max((seq for seq, event in self.events.items() if event["type"] in TERMINAL), default=0)

    @property
    def accepted(self) -> bool:
        """Whether the ask became a turn."""
        return bool(self.events)

    def hear(self, event: dict[str, Any]) -> None:
        """Enter one numbered event."""
        seq, known = event["seq"], self.events.get(event["seq"])
        assert event["session_id"] == self.session_id, "an event of another session"
        assert not self.end or seq <= self.end, "an event after the terminal one"
        if event["type"] == "delta":
            return  # fragments are joined as each reader keeps up
        assert known is None or known == event, "one number, two events"
        assert not (event["type"] in TERMINAL and self.end not in (0, seq)), "two terminal events"
        self.events[seq] = event


class Socket:
    """A native socket of the user, with the model behind it."""

    def __init__(self, dialled: AbstractContextManager[ClientConnection], machine: "NativeMachine") -> None:
        self._open = ExitStack()
        self._connection = self._open.enter_context(dialled)
        self._machine = machine
        self.bad_at: list[float] = []

    def send(self, frame: dict[str, Any] | str) -> list[dict[str, Any]]:
        """Send a frame, and hear what comes until it was surely read: up to the pong behind it."""
        self._connection.send(frame if isinstance(frame, str) else json.dumps(frame))
        self._connection.send('{"type":"ping"}')
        return self.hear_until(lambda heard: heard["type"] == "pong")

    def hear_until(self, enough: Any) -> list[dict[str, Any]]:
        """Frames up to the first that is enough, each entered in the model. Raises ConnectionClosed."""
        direct = []
        while True:
            heard = json.loads(self._connection.recv(timeout=PATIENCE_S))
            self._machine.enter(heard)
            if "seq" not in heard:
                direct.append(heard)
            if enough(heard):
                return direct

    def close(self, code: int) -> None:
        """The closing handshake."""
        self._connection.close(code)
        self._open.close()

    def vanish(self) -> None:
        """Cut the connection without a word."""
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(SHUT_RDWR)
        self._open.close()


class NativeMachine(RuleBasedStateMachine):
    """One user with two sessions and up to two sockets. `standing` is the service, set by whoever runs the machine."""

    standing: Standing

    @initialize()
    def begin(self) -> None:
        """A user and sessions of their own."""
        self.user = f"user-{uuid.uuid4().hex[:12]}"
        base_url = f"http://127.0.0.1:{self.standing.port}{BASE}"
        self.http = httpx.Client(base_url=base_url, headers=headers_of(self.user), timeout=PATIENCE_S)
        created = [self.http.post("/chatbot/session", json={"agent_id": "Georges", "title": "T"}) for _ in range(2)]
        self.sessions: list[str] = [answer.json()["id"] for answer in created]
        self.sockets: list[Socket | None] = [None, None]
        self.exchanges: dict[str, Exchange] = {}
        self.numbers = itertools.count()

    # What is heard

    def enter(self, heard: dict[str, Any]) -> None:
        """Enter a frame of the server."""
        validate_native(heard)
        if heard["type"] == "error":
            assert heard["code"] in CODES
            assert heard["code"] != "internal"
        exchange = self.exchanges.get(heard.get("exchange_id", ""))
        if "seq" in heard:
            assert exchange is not None, "an event of nobody's ask"
            exchange.hear(heard)
        elif exchange is not None and heard["type"] == "error":
            exchange.refusals += 1

    def socket(self, which: int) -> Socket:
        """The socket, opened where it is not."""
        found = self.sockets[which]
        if found is None:
            found = self.sockets[which] = Socket(self.dial(), self)
        return found

    def dial(self) -> AbstractContextManager[ClientConnection]:
        """A native socket, once entered."""
        protocols = [Subprotocol("turnwise.v1")]
        url = f"ws://127.0.0.1:{self.standing.port}{BASE}/chatbot/query/ws"
        headers = {"Authorization": f"Bearer {token_of(self.user)}"}
        return connect(url, subprotocols=protocols, additional_headers=headers, compression=None, max_size=2**22)

    def known(self, data: st.DataObject) -> str:
        """The id of an exchange, now and then of none."""
        return str(data.draw(st.sampled_from([*self.exchanges, "nothing"]), label="exchange"))

    # What a client does

    @rule(
        which=SOCKETS,
        session=st.integers(0, 1),
        if_busy=st.sampled_from(["reject", "queue", "replace"]),
        on_disconnect=st.sampled_from(["continue", "cancel"]),
    )
    def ask(self, which: int, session: int, if_busy: str, on_disconnect: str) -> None:
        """A new question."""
        exchange_id = f"{self.user}-{next(self.numbers)}"
        exchange = self.exchanges[exchange_id] = Exchange(self.sessions[session], f"Question {exchange_id}?")
        self._ask(which, exchange_id, exchange.text, if_busy=if_busy, on_disconnect=on_disconnect)
        exchange.asked += 1

    @precondition(lambda self: self.exchanges)
    @rule(which=SOCKETS, data=st.data(), same=st.booleans())
    def ask_again(self, which: int, data: st.DataObject, same: bool) -> None:
        """A question under an id that was a turn: the same one is that turn, another one is refused."""
        exchange_id = data.draw(st.sampled_from(list(self.exchanges)), label="exchange")
        exchange = self.exchanges[exchange_id]
        if not self._began(exchange):
            return
        before = exchange.refusals
        self._ask(which, exchange_id, exchange.text if same else "Something else?")
        if not same:
            self._hear_refusal(which, exchange, before)

    def _hear_refusal(self, which: int, exchange: Exchange, before: int) -> None:
        if exchange.refusals == before:
            self.socket(which).hear_until(lambda _: exchange.refusals > before)

    @staticmethod
    def _began(exchange: Exchange) -> bool:
        """Whether it is a turn for good: one that was stopped or refused in the queue may be asked anew."""
        return any(event["type"] == "message" for event in exchange.events.values())

    def _ask(self, which: int, exchange_id: str, text: str, **more: str) -> None:
        frame = {"type": "ask", "session_id": self.exchanges[exchange_id].session_id, "agent_id": "Georges"}
        self.socket(which).send({**frame, "message": text, "client_exchange_id": exchange_id, **more})

    @rule(which=SOCKETS, data=st.data())
    def cancel(self, which: int, data: st.DataObject) -> None:
        """Stop a turn, or what is none."""
        exchange_id = self.known(data)
        ended = exchange_id == "nothing" or bool(self.exchanges[exchange_id].end)
        direct = self.socket(which).send({"type": "cancel", "exchange_id": exchange_id})
        if ended:
            assert ("exchange_not_found", exchange_id) in [(one.get("code"), one.get("exchange_id")) for one in direct]

    @rule(which=SOCKETS, data=st.data(), after_seq=st.integers(0, 12))
    def resume(self, which: int, data: st.DataObject, after_seq: int) -> None:
        """Follow a turn from some event on."""
        exchange_id = self.known(data)
        exchange = self.exchanges.get(exchange_id)
        session_id = exchange.session_id if exchange else self.sessions[0]
        self.socket(which).send(resume_frame(session_id, exchange_id, after_seq))

    @rule(which=SOCKETS, data=st.data())
    def human_resume(self, which: int, data: st.DataObject) -> None:
        """Answer what nobody asked."""
        exchange_id = self.known(data)
        if exchange_id in self.exchanges and not self._began(self.exchanges[exchange_id]):
            return  # an ask of that id may be on its way, and whichever comes first is the exchange
        session_id = self.exchanges[exchange_id].session_id if exchange_id != "nothing" else self.sessions[1]
        frame = {"type": "human_resume", "session_id": session_id, "exchange_id": exchange_id, "agent_id": "Georges"}
        before = self.exchanges[exchange_id].refusals if exchange_id != "nothing" else 0
        self.socket(which).send({**frame, "payload": {"choice_id": "allow", "checkpoint_id": "none"}})
        if exchange_id != "nothing":
            # Now: one that came later would be taken for the answer to what is sent next.
            self._hear_refusal(which, self.exchanges[exchange_id], before)

    @rule(which=SOCKETS, good=st.booleans())
    def auth(self, which: int, good: bool) -> None:
        """Renew the token, or try to with another's."""
        token = token_of(self.user if good else "somebody-else")
        direct = self.socket(which).send({"type": "auth", "access_token": token})
        codes = [frame["code"] for frame in direct if frame["type"] == "error" and "exchange_id" not in frame]
        assert codes == ([] if good else ["unauthenticated"])

    @rule(which=SOCKETS)
    def unknown_type(self, which: int) -> None:
        """A frame of another protocol."""
        direct = self.socket(which).send({"type": "subscribe"})
        assert "unknown_type" in [frame.get("code") for frame in direct]

    @rule(which=SOCKETS, text=st.sampled_from(BAD_FRAMES))
    def bad_frame(self, which: int, text: str) -> None:
        """What cannot be read is answered; three times in ten seconds, and the socket ends."""
        socket = self.socket(which)
        socket.bad_at.append(time.monotonic())
        lately = [at for at in socket.bad_at if at > time.monotonic() - 8.0]
        closed = 0
        try:
            direct = socket.send(text)
        except ConnectionClosed as end:
            closed = end.rcvd.code if end.rcvd else 1006
            self.sockets[which] = None
            socket.vanish()
        if closed:
            assert (closed, len(socket.bad_at) >= 3) == (1008, True)
        else:
            assert "bad_request" in [frame.get("code") for frame in direct]
            assert len(lately) < 3, "the third bad frame closes"

    @rule(which=SOCKETS, how=st.sampled_from([1000, 1001, 4000, 0]))
    def leave(self, which: int, how: int) -> None:
        """Close with a code, or vanish."""
        socket = self.sockets[which]
        if socket is not None:
            self.sockets[which] = None
            socket.vanish() if how == 0 else socket.close(how)

    @precondition(lambda self: self.exchanges)
    @rule(which=SOCKETS, data=st.data())
    def wait(self, which: int, data: st.DataObject) -> None:
        """Follow a turn to its end."""
        self._to_its_end(self.socket(which), data.draw(st.sampled_from(list(self.exchanges)), label="exchange"))

    # What must hold at the end

    def teardown(self) -> None:
        """Every exchange is followed to its end on a fresh socket, and the history is what was told."""
        if not hasattr(self, "http"):
            return
        for socket in self.sockets:
            if socket is not None:
                socket.close(1000)
        with contextlib.closing(self.http):
            fresh = Socket(self.dial(), self)
            for exchange_id in self.exchanges:
                self._to_its_end(fresh, exchange_id)
            for exchange in self.exchanges.values():
                self._expect_dense(exchange)
            for session_id in self.sessions:
                self._expect_history(session_id)
            fresh.close(1000)

    def _to_its_end(self, socket: Socket, exchange_id: str) -> None:
        """Hear the whole exchange from its first event, or that there is none."""
        exchange = self.exchanges[exchange_id]
        heard: list[dict[str, Any]] = []

        def enough(frame: dict[str, Any]) -> bool:
            if frame.get("exchange_id") != exchange_id:
                return False
            heard.append(frame)
            return frame["type"] in TERMINAL

        before = exchange.refusals
        socket.send(resume_frame(exchange.session_id, exchange_id))
        if not exchange.end and exchange.refusals == before:
            socket.hear_until(enough)
        assert exchange.end or not exchange.accepted or not self._began(exchange), "accepted, and no terminal event"

    def _expect_dense(self, exchange: Exchange) -> None:
        if not exchange.accepted:
            assert exchange.asked <= exchange.refusals + 1
            return
        assert sum(event["type"] in TERMINAL for event in exchange.events.values()) == 1
        assert max(exchange.events) == exchange.end
        # What is missing between two events are fragments, which a delta may join: only before the end of a stream.
        first = [seq for seq in range(1, exchange.end) if seq not in exchange.events]
        assert 1 not in first, "the first event is `accepted`"

    def _expect_history(self, session_id: str) -> None:
        messages = self.http.get(f"/chatbot/session/{session_id}/history").json()
        assert [message["rank"] for message in messages] == list(range(len(messages)))
        told = {
            message["rank"]: message
            for exchange in self.exchanges.values()
            if exchange.session_id == session_id and exchange.end
            for message in exchange.events[exchange.end].get("messages", [])
        }
        assert {message["rank"]: message for message in messages} == told
        asked = [message["exchange_id"] for message in messages if message["role"] == "user"]
        assert len(asked) == len(set(asked)), "an ask was run twice"
