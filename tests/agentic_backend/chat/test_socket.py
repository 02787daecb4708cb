import asyncio
import time
from dataclasses import replace

import pytest

from agentic_backend.chat import dialects, follow, outbox
from agentic_backend.chat.outbox import Closing
from agentic_backend.errors import Overloaded
from backend_kit.auth import AuthError, Identity
from backend_kit.http import RequestLimits
from backend_kit.wire import Code
from tests.agentic_backend.chat.told_hub import RULES, Peer, accept, cancel, delta, finish, told_hub, until
from tests.support.patience import PATIENCE_S


class Names:
    """Verifies a token that begins with `ok-` or `old-`: the rest is the user. An old one runs out as it is shown."""

    async def verify(self, token: str | None) -> Identity:
        state, _, user = (token or "").partition("-")
        if state not in ("ok", "old"):
            raise AuthError("Invalid token")
        return Identity(uid=user, username=user, expires_at=None if state == "ok" else time.time())


async def test_fragments_that_piled_up_go_out_as_one_and_lose_nothing():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        accept(turn)
        await peer.hear()
        peer.reads.clear()
        delta(turn, "one ")
        await until(lambda: peer.sending == 1)
        for text in ("two ", "three ", "four"):
            delta(turn, text)
        delta(turn, "a thought", rank=2, channel="thought")
        delta(turn, " and an answer", rank=2)
        finish(turn)
        peer.reads.set()
        heard = await peer.hear_until("final")
        assert [(f["seq"], f.get("text")) for f in heard[:-1]] == [
            (2, "one "),
            (5, "two three four"),
            (6, "a thought"),
            (7, " and an answer"),
        ]
        assert heard[-1]["seq"] == 8
        peer.leave()


async def test_a_frame_of_joined_fragments_is_bounded():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        peer.reads.clear()
        accept(turn)
        await until(lambda: peer.sending == 1)
        half = "x" * (follow._DELTA_CHARS // 2)
        for _ in range(5):
            delta(turn, half)
        finish(turn)
        peer.reads.set()
        heard = await peer.hear_until("final")
        assert [len(f["text"]) for f in heard if f["type"] == "delta"] == [2 * len(half), 2 * len(half), len(half)]
        peer.leave()


async def test_a_slow_reader_delays_nobody_who_follows_the_same_turn():
    async with told_hub() as it:
        slow, quick = await it.opened(), await it.opened()
        turn = await it.asked(slow, "e1")
        it.turns.same = turn  # the same ask again, from another socket
        quick.say(type="ask", session_id="s", agent_id="Georges", message="Hello", client_exchange_id="e1")
        slow.reads.clear()
        accept(turn)
        delta(turn, "text")
        finish(turn)
        assert [f["seq"] for f in await quick.hear_until("final")] == [1, 2, 3]
        assert slow.sending == 1
        slow.reads.set()
        assert [f["seq"] for f in await slow.hear_until("final")] == [1, 2, 3]
        slow.leave()
        quick.leave()


async def test_a_peer_that_never_reads_is_aborted_at_the_send_deadline_and_its_turn_goes_on():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        peer.reads.clear()
        accept(turn)
        await until(lambda: peer.sending == 1)
        (sock,) = it.hub._sockets
        await it.hub.tick(sock.clock.since + RULES.send_s - 0.1)
        assert peer.aborted == 0
        await it.hub.tick(sock.clock.since + RULES.send_s + 0.1)
        assert peer.aborted == 1
        await until(lambda: len(it.hub) == 0)
        assert not turn.cancel_requested
        assert not turn.followed
        finish(turn)


async def test_a_peer_that_lets_answers_pile_up_is_aborted():
    async with told_hub() as it:
        peer = await it.opened()
        peer.reads.clear()
        for _ in range(outbox._MAX_FRAMES + 2):
            peer.say(type="ping")
        await until(lambda: peer.aborted > 0)
        await until(lambda: len(it.hub) == 0)


async def test_a_peer_that_vanishes_while_it_is_written_to_ends_its_socket():
    async with told_hub() as it:
        for close in (False, True):
            peer = await it.opened()
            turn = await it.asked(peer, f"e{close}")
            peer.gone = True
            if close:
                finish(turn)
                (sock,) = it.hub._sockets
                sock.outbox.close(Closing(1012))
            else:
                accept(turn)
            # The write fails first; with which code it left, the server says a moment later.
            await asyncio.sleep(0)
            peer.leave(4000)
            await until(lambda: len(it.hub) == 0)
            assert peer.closed_with is None
            assert turn.cancel_requested is not turn.ended


async def test_a_socket_that_closes_may_lose_its_peer_meanwhile():
    async with told_hub() as it:
        peer = await it.opened()
        (sock,) = it.hub._sockets
        peer.gone = True
        sock.outbox.close(Closing(1012))
        peer.leave(1006)
        await until(lambda: len(it.hub) == 0)


async def test_what_comes_while_a_socket_closes_at_once_leaves_its_code(caplog):
    async with told_hub(replace(RULES, sockets_per_user=1)) as it:
        first = await it.opened()
        (sock,) = it.hub._sockets
        first.reads.clear()
        second = await it.opened()
        third = await it.opened()
        assert await second.close_code() == 4409
        await it.hub.tick(sock.clock.last_received + 2 * RULES.idle_s)
        assert await third.close_code() == 4408
        it.hub.begin_drain()
        first.reads.set()
        assert await first.close_code() == 4409
        await until(lambda: len(it.hub) == 0)
        assert it.registry.get_sample_value("app_limit_hits_total", {"limit": "per_user_sockets"}) == 2
        assert "socket failed" not in caplog.text


@pytest.mark.parametrize("token", ["old-ann", "down-ann"])
async def test_a_compatible_ask_whose_token_is_verified_while_the_hub_closes_changes_nothing(token, caplog):
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow(Names):
        async def verify(self, shown: str | None) -> Identity:
            if shown == token:
                asked.set()
                await answer.wait()
                if token == "down-ann":
                    raise Overloaded
            return await super().verify(shown)

    async with told_hub(verifier=Slow()) as it:
        peer = await it.opened(native=False, token="ok-ann")
        (sock,) = it.hub._sockets
        peer.say(session_id="s", agent_id="Georges", message="Hello", access_token=token)
        await asked.wait()
        sock.outbox.close(Closing(4409))
        assert await peer.close_code() == 4409
        answer.set()
        await until(lambda: len(it.hub) == 0)
        assert "socket failed" not in caplog.text
        assert peer._frames.empty()
        assert not it.turns.turns


async def test_a_refusal_that_is_sent_while_the_hub_closes_leaves_its_code(caplog):
    async with told_hub() as it:
        it.turns.refusal = Code.OVERLOADED
        peer = await it.opened(native=False)
        (sock,) = it.hub._sockets
        peer.reads.clear()
        await it.asked(peer, "e1")
        await until(lambda: peer.sending == 1)
        sock.outbox.close(Closing(4409))
        peer.reads.set()
        assert (await peer.hear())["code"] == "overloaded"
        assert await peer.close_code() == 4409
        await until(lambda: len(it.hub) == 0)
        assert "socket failed" not in caplog.text


async def test_a_final_frame_comes_after_the_answers_to_what_was_asked_before_it():
    async with told_hub() as it:
        peer = await it.opened(native=False)
        (sock,) = it.hub._sockets
        first = await it.asked(peer, "e1")
        peer.say(session_id="s", agent_id="Georges", message="Hello", client_exchange_id="e2")
        peer.say_raw(text="{")
        await until(lambda: sock.outbox.closing is not None)
        finish(first)
        finish(await it.turns.asked("e2"))
        heard = await peer.hear_until("error")
        assert [frame["type"] for frame in heard] == ["stream", "final", "stream", "final", "error"]
        assert await peer.close_code() == 1011


async def test_a_close_while_the_final_frame_is_sent_has_its_own_code():
    async with told_hub() as it:
        peer = await it.opened(native=False)
        (sock,) = it.hub._sockets
        peer.reads.clear()
        peer.say_raw(text="{")
        await until(lambda: peer.sending == 1)
        sock.outbox.close(Closing(4409))
        peer.reads.set()
        assert (await peer.hear())["code"] == "bad_request"
        assert await peer.close_code() == 4409


async def test_a_failure_of_the_socket_is_logged_and_closes_with_1011(caplog):
    async with told_hub() as it:
        it.turns.failure = ZeroDivisionError("in submit")
        peer = await it.opened()
        peer.say(type="ask", session_id="s", agent_id="Georges", message="Hello")
        assert await peer.close_code() == 1011
        assert "socket failed" in caplog.text
        assert "in submit" in caplog.text

        it.turns.failure = None
        torn = await it.opened()
        turn = await it.asked(torn, "e1")
        accept(turn)
        await torn.hear()
        delta(turn, "one", rank="no number")
        delta(turn, "two")
        assert await torn.close_code() == 1011

        it.turns.failure = ZeroDivisionError("in submit")
        vanished = await it.opened()
        vanished.gone = True
        vanished.say(type="ask", session_id="s", agent_id="Georges", message="Hello")
        await until(lambda: vanished.aborted == 1)


async def test_a_binary_frame_closes_with_1003_at_once_and_the_turn_goes_on():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        peer.say_raw(bytes=b"\x00")
        peer.say(type="cancel", exchange_id="e1")
        assert await peer.close_code() == 1003
        await until(lambda: len(it.hub) == 0)
        assert not turn.cancel_requested
        finish(turn)


async def test_4000_cancels_every_followed_turn_and_another_code_none():
    async with told_hub() as it:
        for code in (4000, 1001, 4001):
            peer = await it.opened()
            turns = [await it.asked(peer, f"{code}-{number}") for number in range(2)]
            peer.leave(code)
            await until(lambda: len(it.hub) == 0)
            assert [turn.cancel_requested for turn in turns] == [code == 4000] * 2


async def test_on_disconnect_cancel_holds_only_when_nobody_else_listens():
    async with told_hub() as it:
        one = await it.opened()
        turn = await it.asked(one, "e1", on_disconnect="cancel")
        turn.follow(wake := lambda: None)
        one.leave()
        await until(lambda: len(it.hub) == 0)
        assert not turn.cancel_requested
        turn.unfollow(wake)
        two = await it.opened()
        turn = await it.asked(two, "e2", on_disconnect="cancel")
        two.leave()
        await until(lambda: len(it.hub) == 0)
        assert turn.cancel_requested


async def test_a_socket_follows_so_many_turns_and_no_more():
    async with told_hub() as it:
        peer = await it.opened()
        turns = [await it.asked(peer, f"e{number}") for number in range(dialects._FOLLOWED_TURNS)]
        peer.say(type="ask", session_id="s", agent_id="Georges", message="Hello")
        error = await peer.hear()
        assert (error["code"], error["retry_after_ms"]) == ("rate_limited", 1000)
        for turn in turns:
            finish(turn)
        peer.leave()


async def test_a_compatible_socket_asks_the_next_only_after_the_end_of_the_one_before():
    async with told_hub() as it:
        peer = await it.opened(native=False)
        first = await it.asked(peer, "e1")
        for number in (2, 3):
            peer.say(session_id="s", agent_id="Georges", message="Hello", client_exchange_id=f"e{number}")
        accept(first)
        await until(lambda: not peer._to_app.qsize())
        assert list(it.turns.turns) == ["e1"]
        finish(first, "first")
        second = await it.turns.asked("e2")
        assert list(it.turns.turns) == ["e1", "e2"]
        cancel(second)
        finish(await it.turns.asked("e3"), "third")
        finals = [(await peer.hear_until("final"))[-1] for _ in range(3)]
        assert [final["messages"][-1]["parts"][0]["text"] if final["messages"] else None for final in finals] == [
            "first",
            None,
            "third",
        ]
        peer.leave()


async def test_a_compatible_socket_that_leaves_drops_the_asks_that_wait():
    async with told_hub() as it:
        peer = await it.opened(native=False)
        first = await it.asked(peer, "e1")
        peer.say(session_id="s", agent_id="Georges", message="Hello", client_exchange_id="e2")
        await until(lambda: not peer._to_app.qsize())
        peer.leave()
        await until(lambda: len(it.hub) == 0)
        finish(first)
        assert list(it.turns.turns) == ["e1"]


async def test_a_refusal_ends_a_compatible_socket_and_not_a_native_one():
    async with told_hub() as it:
        it.turns.refusal = Code.OVERLOADED
        compatible = await it.opened(native=False)
        await it.asked(compatible, "e1")
        error = await compatible.hear()
        assert (error["type"], error["code"], error["session_id"]) == ("error", "overloaded", "s")
        assert await compatible.close_code() == 1011
        native = await it.opened()
        await it.asked(native, "e2")
        assert (await native.hear())["code"] == "overloaded"
        native.say(type="ping")
        assert (await native.hear())["type"] == "pong"
        native.leave()


async def test_a_token_renews_the_same_user_only():
    async with told_hub(verifier=Names()) as it:
        native = await it.opened(token="ok-ann")
        for token, code in (("ok-ann", None), ("ok-bob", "unauthenticated"), ("bad", "unauthenticated")):
            native.say(type="auth", access_token=token)
            native.say(type="ping")
            assert (await native.hear()).get("code") == code
            if code:
                assert (await native.hear())["type"] == "pong"
        native.leave()
        compatible = await it.opened(native=False, token="ok-ann")
        for number, token in enumerate(("ok-ann", "ok-bob", "bad")):
            turn = await it.asked(compatible, f"e{number}", access_token=token)
            assert turn.ask.user_id == "ann"
            finish(turn)
            await compatible.hear_until("final")
        compatible.leave()


async def test_turns_that_run_have_the_newest_token_of_their_socket():
    async with told_hub(verifier=Names()) as it:
        peer = await it.opened(token="ok-ann")
        turn = await it.asked(peer, "e1")
        before = turn.ask.credentials.reveal()
        peer.say(type="auth", access_token="ok-ann-newer")
        peer.say(type="ping")
        assert (await peer.hear())["code"] == "unauthenticated"  # it is another user's
        assert turn.ask.credentials.reveal() == before == "ok-ann"
        peer.say(type="auth", access_token="old-ann")
        peer.say(type="ping")
        assert [(await peer.hear())["type"] for _ in range(2)] == ["pong", "pong"]
        assert turn.ask.credentials.reveal() == "old-ann"
        peer.leave()


@pytest.mark.parametrize("native", [True, False])
async def test_a_socket_without_a_turn_ends_with_its_token(native):
    async with told_hub(verifier=Names()) as it:
        late, lasting = await it.opened(native=native, token="old-ann"), await it.opened(native=native, token="ok-ann")
        await it.hub.tick(time.monotonic())
        assert await late.close_code() == 4401
        assert lasting.closed_with is None
        lasting.leave()


async def test_a_turn_ends_before_its_socket_does_and_nothing_new_begins():
    async with told_hub(verifier=Names()) as it:
        peer = await it.opened(token="ok-ann")
        turn = await it.asked(peer, "e1")
        peer.say(type="auth", access_token="old-ann")
        ask = {"session_id": "s", "agent_id": "Georges", "message": "Hello"}
        for frame in (
            {"type": "ask", **ask, "client_exchange_id": "e2"},
            {"type": "cancel", "exchange_id": "e1"},
            {"type": "resume", "session_id": "s", "exchange_id": "e1", "after_seq": 0},
            {"type": "human_resume", "session_id": "s", "exchange_id": "e1", "agent_id": "Georges", "payload": {}},
        ):
            peer.say(**frame)
            assert (await peer.hear())["code"] == "unauthenticated"
        await it.hub.tick(time.monotonic())
        finish(turn)
        await peer.hear_until("final")
        assert peer.closed_with is None
        await it.hub.tick(time.monotonic())
        assert await peer.close_code() == 4401
        assert set(it.turns.turns) == {"e1"}


async def test_a_newer_token_keeps_a_socket_whose_turn_outlived_the_older_one():
    async with told_hub(verifier=Names()) as it:
        peer = await it.opened(token="old-ann")
        peer.say(type="ping")
        assert (await peer.hear())["type"] == "pong"
        peer.say(type="auth", access_token="ok-ann")
        turn = await it.asked(peer, "e1")
        await it.hub.tick(time.monotonic())
        finish(turn)
        await peer.hear_until("final")
        assert peer.closed_with is None
        peer.leave()


async def test_the_compatible_socket_ends_with_4401_in_place_of_a_further_answer():
    async with told_hub(verifier=Names()) as it:
        waiting = await it.opened(native=False, token="ok-ann")
        turn = await it.asked(waiting, "e1")
        ask = {"session_id": "s", "agent_id": "Georges", "message": "Hello"}
        waiting.say(type="ask", **ask, client_exchange_id="e2")
        waiting.say(type="ask", **ask, client_exchange_id="e3", access_token="old-ann")
        (sock,) = it.hub._sockets
        await until(lambda: sock.principal.identity.ended())  # noqa: PLW0108 - the identity is replaced
        finish(turn)
        await waiting.hear_until("final")
        assert await waiting.close_code() == 4401
        late = await it.opened(native=False, token="old-ann")
        late.say(type="ask", **ask, client_exchange_id="e4")
        assert await late.close_code() == 4401
        renewed = await it.opened(native=False, token="old-ann")
        finish(await it.asked(renewed, "e5", access_token="ok-ann"))
        await renewed.hear_until("final")
        renewed.leave()
        assert set(it.turns.turns) == {"e1", "e5"}


async def test_the_hub_speaks_up_in_silence_and_closes_who_says_nothing():
    async with told_hub(replace(RULES, idle_s=100.0, heartbeat_s=15.0)) as it:
        idle, busy, old = await it.opened(), await it.opened(), await it.opened(native=False)
        turn = await it.asked(busy, "e1")
        now = max(sock.clock.last_sent for sock in it.hub._sockets)
        await it.hub.tick(now + 14.0)
        assert await idle.hear() == {"type": "heartbeat"}
        assert await busy.hear() == {"type": "heartbeat"}
        await it.hub.tick(now + 200.0)
        assert await idle.close_code() == 4408
        assert await old.close_code() == 4408
        assert busy.closed_with is None
        finish(turn)
        assert (await busy.hear_until("final"))[-1]["type"] == "final"
        busy.leave()
        await until(lambda: len(it.hub) == 0)
        await it.hub.tick(now + 400.0)


async def test_a_tick_lets_turns_go_on_before_it_has_looked_at_everyone():
    async with told_hub(replace(RULES, heartbeat_s=15.0)) as it:
        peers = [await it.opened() for _ in range(250)]
        now = max(sock.clock.last_sent for sock in it.hub._sockets)
        tick = asyncio.ensure_future(it.hub.tick(now + 14.0))
        assert await peers[0].hear() == {"type": "heartbeat"}
        assert not tick.done()
        await tick
        assert [await peer.hear() for peer in peers[1:]] == [{"type": "heartbeat"}] * 249
        for peer in peers:
            peer.leave()


async def test_a_drain_closes_idle_sockets_at_once_and_busy_ones_after_their_turn():
    async with told_hub() as it:
        idle, busy = await it.opened(), await it.opened()
        turn = await it.asked(busy, "e1")
        accept(turn)
        assert it.hub.begin_drain() == 1
        assert await idle.close_code() == 1012
        late = it.connect()
        await until(lambda: late.denied is not None)
        assert late.denied == 503
        assert busy.closed_with is None
        finish(turn)
        assert [f["type"] for f in await busy.hear_until("final")] == ["accepted", "final"]
        assert await busy.close_code() == 1012
        assert await it.hub.wait_empty(PATIENCE_S) == 0


async def test_sockets_that_do_not_leave_a_drain_are_cut():
    async with told_hub() as it:
        peer = await it.opened()
        await it.asked(peer, "e1")
        it.hub.begin_drain()
        assert await it.hub.wait_empty(0.01) == 1
        assert peer.aborted == 1


async def test_a_handshake_that_was_accepted_while_the_drain_began_is_closed():
    async with told_hub() as it:
        peer = it.connect()
        peer.reads.clear()
        await until(lambda: peer.sending == 1)
        it.hub.begin_drain()
        peer.reads.set()
        assert await peer.close_code() == 1012


async def test_an_accept_that_fails_leaves_nothing_behind():
    async with told_hub() as it:
        peer = Peer()
        peer.gone = True
        with pytest.raises(OSError, match="gone"):  # the server's own sign of it, which it takes back
            await it.hub.serve(peer.websocket(), it.turns)
        assert not it.hub._addresses
        assert len(it.hub) == 0


async def test_credentials_that_do_not_verify_close_with_4401():
    async with told_hub(verifier=Names()) as it:
        for token in ("bad", ""):
            for native in (True, False):
                assert await it.connect(native=native, token=token).close_code() == 4401


async def test_sockets_over_the_limits_are_refused_before_they_open():
    limits = replace(RULES, max_sockets=3, sockets_per_address=2)
    async with told_hub(limits) as it:
        peers = [await it.opened(host=host) for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2")]
        for host, status in (("10.0.0.1", 503), ("10.0.0.3", 503)):
            late = it.connect(host=host)
            await until(lambda late=late: late.denied is not None)
            assert late.denied == status
            assert not late.accepted
        peers[2].leave()
        await until(lambda: len(it.hub) == 2)
        late = it.connect(host="10.0.0.1")
        await until(lambda: late.denied is not None)
        assert late.denied == 429
        foreign = it.connect(origin="https://evil.example")
        await until(lambda: foreign.denied is not None)
        assert foreign.denied == 403
        for peer in peers[:2]:
            peer.leave()


async def test_no_more_sockets_get_in_while_their_credentials_are_looked_at():
    """Keys that must be fetched take a while: whoever waits for them is in already."""

    class Waiting(Names):
        async def verify(self, token: str | None) -> Identity:
            await keys.wait()
            return await super().verify(token)

    keys = asyncio.Event()
    async with told_hub(replace(RULES, max_sockets=3), Waiting()) as it:
        peers = [it.connect(token=f"ok-{number}") for number in range(20)]
        await until(lambda: sum(peer.denied == 503 for peer in peers) == 17)
        keys.set()
        await until(lambda: len(it.hub) == 3)
        assert [peer.accepted for peer in peers] == [True] * 3 + [False] * 17
        for peer in peers[:3]:
            peer.leave()


@pytest.mark.parametrize("token", ["ok-ann", "stranger"])
async def test_who_opens_sockets_too_fast_waits_before_they_are_accepted(token: str):
    """A client in a loop opens the next one as soon as one is accepted, whatever becomes of it."""
    waits: list[float] = []
    go_on = asyncio.Event()

    async def pause(seconds: float) -> None:
        waits.append(seconds)
        await go_on.wait()

    limits = RequestLimits(per_s=20.0, burst=100)
    rules = replace(RULES, max_sockets=300, sockets_per_user=300, sockets_per_address=300)
    async with told_hub(rules, Names(), limits=limits, pause=pause, clock=lambda: 0.0) as it:
        peers = [it.connect(token=token) for _ in range(120)]
        await until(lambda: len(waits) == 20)
        assert sum(peer.accepted for peer in peers) == 100
        go_on.set()
        await until(lambda: all(peer.accepted for peer in peers))
        for peer in peers:
            peer.leave()


async def test_the_newest_socket_of_a_user_wins():
    async with told_hub(replace(RULES, sockets_per_user=2), Names()) as it:
        first = await it.opened(token="ok-ann")
        other = await it.opened(token="ok-bob")
        second = await it.opened(token="ok-ann")
        third = it.connect(token="ok-ann")
        assert await first.close_code() == 4409
        await until(lambda: len(it.hub) == 3)
        for peer in (other, second, third):
            assert peer.closed_with is None
            peer.leave()


async def test_the_outbox_is_measured():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        peer.reads.clear()
        accept(turn)
        await until(lambda: peer.sending == 1)
        (sock,) = it.hub._sockets
        assert 50 < sock.outbox_bytes < 150  # what is being sent waits as well
        delta(turn, "é" * 30_000)
        assert 60_000 < sock.outbox_bytes < 60_500
        finish(turn)
        peer.reads.set()
        await peer.hear_until("final")
        await until(lambda: sock.outbox_bytes == 0)
        peer.leave()
        async with asyncio.timeout(PATIENCE_S):
            assert await it.hub.wait_empty(PATIENCE_S) == 0


async def test_the_outbox_of_the_compatible_protocol_has_no_text_that_it_does_not_send():
    async with told_hub() as it:
        peer = await it.opened(native=False)
        turn = await it.asked(peer, "e1", type="ask")
        (sock,) = it.hub._sockets
        accept(turn)
        peer.reads.clear()
        delta(turn, "x" * 60_000)
        assert sock.outbox_bytes == 0
        finish(turn, "x" * 60_000)
        assert 120_000 < sock.outbox_bytes < 122_000  # the answer, and all messages again with the end
        await until(lambda: peer.sending == 1)
        assert 120_000 < sock.outbox_bytes < 122_000
        peer.reads.set()
        await until(lambda: sock.outbox_bytes == 0)
        peer.leave()


async def test_the_outbox_of_a_socket_that_closes_has_no_more_of_its_turns():
    async with told_hub() as it:
        peer = await it.opened()
        turn = await it.asked(peer, "e1")
        accept(turn)
        await peer.hear_until("accepted")
        peer.reads.clear()
        (sock,) = it.hub._sockets
        for _ in range(2):
            delta(turn, "x" * 60_000)
            await until(lambda: peer.sending == 1)
        assert 120_000 < sock.outbox_bytes < 121_000
        sock.outbox.close(Closing(4409))
        assert 60_000 < sock.outbox_bytes < 60_500
        peer.reads.set()
        assert await peer.close_code() == 4409
        finish(turn)


async def test_a_handshake_whose_key_cannot_be_looked_up_now_is_told_to_come_again():
    class Away(Names):
        async def verify(self, token: str | None) -> Identity:  # noqa: ARG002 - the shape of Verifier
            raise Overloaded

    async with told_hub(verifier=Away()) as it:
        assert await it.connect(token="tw_x").close_code() == 1011
