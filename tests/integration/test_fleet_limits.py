"""The limits of a user over several instances: what is let in at all of them together is what one would let in, and at
most a fifth more."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from websockets.exceptions import ConnectionClosed

from tests.agentic_backend.records import rows, until
from tests.support.agentic import start_process
from tests.support.fleet import Listener, read, text_of, two_instances
from tests.support.following import ask_frame, resume_frame
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, say

__all__ = ["start_process"]

STREAM = f"{BASE}/chatbot/query/stream"
WELL = "Well, one two three"
"""What the held model answers in these tests."""


@asynccontextmanager
async def limited(start_process, model=None, **per_user):
    """Two instances with these limits of a user; REST is asked by ann unless said otherwise."""
    sections = {} if model is None else {"ai": model.ai}
    sections |= {"security": SECURITY, "limits": {"per_user": per_user}}
    async with two_instances(start_process, token=token_of("ann"), **sections) as instances:
        yield instances


async def new_ask(service, exchange_id="e1", user="ann"):
    """An ask of the user in a session of its own."""
    body = {"agent_id": "Georges", "title": "A title"}
    async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=headers_of(user)) as response:
        assert response.status == 200
        return ask_frame((await response.json())["id"], exchange_id)


async def said(stack, *frames_at, user="ann"):
    """Say each frame at its instance, all at once; who hears what comes of each. They listen as long as the stack."""
    sockets = [await stack.enter_async_context(service.native(token_of(user))) for service, _ in frames_at]
    await asyncio.gather(*(say(socket, **frame) for socket, (_, frame) in zip(sockets, frames_at, strict=True)))
    names = [frame.get("client_exchange_id") or frame["exchange_id"] for _, frame in frames_at]
    return [Listener(socket, name) for socket, name in zip(sockets, names, strict=True)]


async def runs(client):
    """Whether the turn runs; else all that its client heard is that its user has too many."""
    frame = await client.until("delta", "error")
    if frame["type"] == "error":
        assert (frame["code"], frame["retryable"], frame["retry_after_ms"] > 0) == ("too_many_turns", True, True)
        assert client.frames == [frame]
    return frame["type"] == "delta"


async def all_run(clients):
    return all(await asyncio.gather(*(runs(client) for client in clients)))


async def texts(clients):
    """The answers of turns that end well, in full."""
    ends = await asyncio.gather(*(client.end() for client in clients))
    assert {end["type"] for end in ends} <= {"final"}, ends
    return [text_of(end) for end in ends]


async def once(attempt):
    """Return once the attempt succeeds: that something has ended at one instance no event tells at another."""
    async with asyncio.timeout(PATIENCE_S):
        while not await attempt():  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.05)


async def running(stack, service, frame):
    """Who hears this ask of ann's, which is made until it is let in."""
    let_in = []

    async def attempt():
        (client,) = await said(stack, (service, frame))
        if await runs(client):
            let_in.append(client)
        else:
            await client.socket.close()
        return let_in

    await once(attempt)
    return let_in[0]


async def refusal(service, frame):
    """Status, code and whether there is a Retry-After, where no event stream is opened; None once one has ended."""
    async with service.http.post(STREAM, json=frame) as response:
        if response.status == 200:
            assert "event: final" in await response.text()
            return None
        return response.status, (await response.json())["detail"]["code"], "Retry-After" in response.headers


async def streams(service, frame):
    """Whether the event stream is let in, and its turn ends well; else it is one too many of its user's."""
    refused = await refusal(service, frame)
    assert refused in {None, (429, "rate_limited", True)}
    return refused is None


@pytest.mark.parametrize(("limit", "most"), [(4, 4), (10, 12)])
async def test_of_turns_begun_at_both_at_once_as_many_run_as_the_limit_says(start_process, limit, most):
    async with held_model(begins="Well, ") as model, limited(start_process, model, turns=limit) as instances:
        asks = [(service, await new_ask(service, f"e{n}")) for n in range(limit) for service in instances]
        async with AsyncExitStack() as stack:
            clients = await said(stack, *asks)
            let_in = await asyncio.gather(*(runs(client) for client in clients))
            assert limit <= sum(let_in) <= most
            others = [(service, await new_ask(service, f"b{n}", "bob")) for n, service in enumerate(instances)]
            others = await said(stack, *others, user="bob")
            assert await all_run(others)
            model.go.set()
            ran = [client for client, ran in zip(clients, let_in, strict=True) if ran]
            assert set(await texts(ran + others)) == {WELL}
        # What was refused had not begun, and may be asked again.
        async with AsyncExitStack() as stack:
            refused = [ask for ask, ran in zip(asks, let_in, strict=True) if not ran]
            again = await asyncio.gather(*(running(stack, *ask) for ask in refused))
            assert set(await texts(again)) == {WELL}


async def test_the_end_of_a_turn_at_one_lets_another_begin_at_either(start_process):
    async with held_model(begins="Well, ") as model, limited(start_process, model, turns=2) as (one, other):
        asks = [await new_ask(one, f"e{n}") for n in range(5)]
        async with AsyncExitStack() as stack:
            first, second = await said(stack, (one, asks[0]), (one, asks[1]))
            assert await all_run([first, second])
            for service in (other, one):
                (refused,) = await said(stack, (service, asks[2]))
                assert not await runs(refused)
            await say(first.socket, type="cancel", exchange_id="e0")
            assert (await first.end())["type"] == "cancelled"
            third = await running(stack, other, asks[2])
            for service in (one, other):
                (refused,) = await said(stack, (service, asks[3]))
                assert not await runs(refused)
            await say(third.socket, type="cancel", exchange_id="e2")
            assert (await third.end())["type"] == "cancelled"
            fourth = await running(stack, one, asks[3])
            model.go.set()
            assert await texts([second, fourth]) == [WELL] * 2
            fifth = await running(stack, other, asks[4])
            assert await texts([fifth]) == [WELL]


@pytest.mark.parametrize("limit", [1, 10])
async def test_at_the_limit_a_turn_of_the_other_instance_is_followed_all_the_same(start_process, limit):
    async with held_model(begins="Well, ") as model, limited(start_process, model, turns=limit) as (one, other):
        asks = [await new_ask(one, f"e{n}") for n in range(1, 2 + limit * 6 // 5)]
        ask, *more = asks
        async with AsyncExitStack() as stack:
            (asker,) = await said(stack, (one, ask))
            assert await runs(asker)
            full = await said(stack, *((other, frame) for frame in more))
            let_in = await asyncio.gather(*(runs(client) for client in full))
            assert limit - 1 <= sum(let_in) < len(more)
            resumes = resume_frame(ask["session_id"])
            followers = await said(stack, (other, ask), (other, resumes), (one, ask), (one, resumes))
            assert await all_run(followers)
            model.go.set()
            ends = await asyncio.gather(*(client.end() for client in [asker, *followers]))
            assert (ends[0]["type"], text_of(ends[0])) == ("final", WELL)
            assert ends == ends[:1] * 5
            assert set(await texts(client for client, ran in zip(full, let_in, strict=True) if ran)) <= {WELL}


async def test_what_a_killed_instance_held_is_taken_over_and_then_counts_no_more(start_process):
    """It waits until an instance counts as dead, which takes as long as in production."""
    limits = {"turns": 2, "sockets": 8}
    async with held_model(begins="Well, ") as model, limited(start_process, model, **limits) as (one, other):
        asks = [await new_ask(one, f"e{n}") for n in range(2)]
        further = [await new_ask(other, f"f{n}") for n in range(2)]
        async with AsyncExitStack() as bobs:
            for _ in range(8):
                await opened(bobs, one, "bob")
            async with AsyncExitStack() as stack:
                clients = await said(stack, *((one, ask) for ask in asks))
                assert await all_run(clients)
                (refused,) = await said(stack, (other, further[0]))
                assert not await runs(refused)
            await one.process.until(one.process.kill)
        async with AsyncExitStack() as stack:
            resumes = [resume_frame(ask["session_id"], ask["client_exchange_id"]) for ask in asks]
            clients = await said(stack, *((other, resume) for resume in resumes))
            await asyncio.gather(*(client.until("restarted") for client in clients))
            assert await all_run(clients)
            (refused,) = await said(stack, (other, further[0]))
            assert not await runs(refused)
            model.go.set()
            assert await texts(clients) == [WELL] * 2
            model.go.clear()
        async with AsyncExitStack() as stack:
            clients = [await running(stack, other, ask) for ask in further]
            model.go.set()
            assert await texts(clients) == [WELL] * 2
        async with AsyncExitStack() as stack:
            await filled(stack, other, [], 8, "bob")


async def test_of_asks_at_both_at_once_as_many_are_accepted_as_may_come_at_once(start_process):
    """The bucket fills up by one a minute: the test is over before."""
    async with limited(start_process, asks_per_min=1, burst=10) as instances, AsyncExitStack() as stack:
        asks = [(service, await new_ask(service, f"e{n}")) for n in range(15) for service in instances]
        clients = await said(stack, *asks)
        ends = await asyncio.gather(*(client.until("final", "error") for client in clients))
        refused = [client for client, end in zip(clients, ends, strict=True) if end["type"] == "error"]
        assert 10 <= len(asks) - len(refused) <= 12
        for client in refused:
            (error,) = client.frames
            assert (error["code"], error["retryable"], error["retry_after_ms"] > 0) == ("rate_limited", True, True)
        for n, service in enumerate(instances):
            assert await refusal(service, await new_ask(service, f"s{n}")) == (429, "rate_limited", True)
        others = [(service, await new_ask(service, f"b{n}", "bob")) for n, service in enumerate(instances)]
        assert len(await texts(await said(stack, *others, user="bob"))) == 2


async def opened(stack, service, user="ann"):
    """A socket of the user's that the service knows of."""
    socket = await stack.enter_async_context(service.native(token_of(user)))
    await read(socket)
    return socket


async def is_open(socket):
    try:
        await read(socket)
    except ConnectionClosed:
        assert socket.close_code == 4409
        return False
    return True


async def replaced(socket):
    """Return once the service has closed the socket in favour of a newer one."""
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    assert socket.close_code == 4409


async def later(database):
    """Return after two seconds of Postgres' clock: instances know what of theirs is older up to a statement's time."""
    (now,) = rows(database.dsn, "SELECT clock_timestamp() + interval '2 s'")[0]
    await until(lambda: rows(database.dsn, "SELECT clock_timestamp()")[0][0] > now)


async def filled(stack, service, sockets, limit, user="ann"):
    """The user's open sockets once there are as many as the limit says, all at this instance: these and further ones.

    As long as closed ones of another instance still count, a further one closes the oldest.
    """
    sockets = list(sockets)

    async def full():
        sockets[:] = [socket for socket in sockets if await is_open(socket)]
        if len(sockets) < limit:
            sockets.append(await opened(stack, service, user))
            return False  # some may be about to close
        return True

    await once(full)
    return sockets


@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["at both", "at one"])
async def test_of_a_users_sockets_the_newest_stay_wherever_they_are(start_process, database, places):
    async with limited(start_process, sockets=4) as instances, AsyncExitStack() as stack:
        one, other = instances
        asks = [await new_ask(service, f"e{n}") for n, service in enumerate(instances)]
        others = [await opened(stack, service, "bob") for service in instances]
        mine = [(place, await opened(stack, instances[place])) for place in places * 2]
        await later(database)
        mine += [(place, await opened(stack, instances[place])) for place in places * 2]
        for _, socket in mine[:4]:
            await replaced(socket)
        for service, ask in zip(instances, asks, strict=True):
            assert await refusal(service, ask) == (429, "rate_limited", True)
        for socket in [*(socket for _, socket in mine[4:]), *others]:
            await read(socket)
        for place, socket in mine[4:]:
            if place == 0:
                await socket.close()
        await once(lambda: streams(other, asks[1]))
        stay = await filled(stack, other, [socket for place, socket in mine[4:] if place == 1], 4)
        await later(database)
        stay = await filled(stack, other, stay, 4)
        assert await refusal(one, asks[0]) == (429, "rate_limited", True)
        newest = await opened(stack, one)
        await replaced(stay[0])
        for socket in [newest, *stay[1:], *others]:
            await read(socket)
