"""The calls of `langgraph_sdk` behind the recording, in its order, at a server under test.

    python -m tests.langgraph.recorded URL [AGENT]

says what is not as recorded there: of the reference server it finds only what depends on time.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import httpx
from langgraph_sdk.client import LangGraphClient

from tests.langgraph.compare import Difference, Exchange, differences, exchange_of
from tests.langgraph.distil import RECORDED
from tests.support.patience import PATIENCE_S

NOBODY: Final = "00000000-0000-0000-0000-000000000000"
HI: Final = {"messages": [{"role": "user", "content": "hi"}]}
LONG: Final = {"messages": [{"role": "user", "content": "long"}]}
NOT_ASKED: Final = "not asked"
"""The kind of difference of a request that the client did not make."""


@dataclass(slots=True)
class _Heard(httpx.AsyncByteStream):
    """A response's body, kept as it passes."""

    stream: httpx.AsyncByteStream
    kept: bytearray

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self.stream:
            self.kept.extend(piece)
            yield piece

    async def aclose(self) -> None:
        """Close it."""
        await self.stream.aclose()


@dataclass(slots=True)
class _Kept:
    call: str
    request: httpx.Request
    response: httpx.Response
    body: bytearray


@dataclass(slots=True)
class Listening(httpx.AsyncBaseTransport):
    """A transport that keeps what passes through it, under the name of the call that is being made."""

    inner: httpx.AsyncHTTPTransport = field(default_factory=httpx.AsyncHTTPTransport)
    call: str = ""
    kept: list[_Kept] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on. The answer comes uncompressed."""
        request.headers["Accept-Encoding"] = "identity"
        response = await self.inner.handle_async_request(request)
        body = bytearray()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        passed = httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Heard(response.stream, body),
            extensions=response.extensions,
        )
        self.kept.append(_Kept(self.call, request, response, body))
        return passed

    async def aclose(self) -> None:
        """Close what is below."""
        await self.inner.aclose()

    def exchanges(self) -> list[Exchange]:
        """The shapes of all that was kept."""
        return [
            exchange_of(
                one.call,
                one.request.method,
                one.request.url.raw_path.decode(),
                one.response.status_code,
                dict(one.response.headers),
                one.body.decode(),
            )
            for one in self.kept
        ]


@dataclass(slots=True)
class Walk:
    """The calls, and what they need of one another. `agents`: what is asked in place of the recorded ones."""

    client: LangGraphClient
    listening: Listening
    agents: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """The name of the exception that a call raised."""

    async def call(self, name: str, made: Callable[[], Awaitable[Any]]) -> Any:
        """What a call returns; None where it raised."""
        self.listening.call = name
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await made()
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises: what it was told is compared
            self.failed[name] = f"{type(error).__name__}: {error}"
        return None

    async def heard(self, name: str, stream: Callable[[], AsyncIterator[Any]]) -> list[Any]:
        """The parts of a stream."""

        async def all_of_it() -> list[Any]:
            return [part async for part in stream()]

        return await self.call(name, all_of_it) or []

    def agent(self, recorded: str) -> str:
        """What is asked in place of an agent of the recording."""
        return self.agents.get(recorded, recorded)

    async def all(self) -> None:
        """Make every call of the recording."""
        await self._assistants()
        thread = await self._thread()
        await self._streams(thread)
        await self._states(thread)
        await self._background(thread)
        second = await self._people(thread)
        await self._threads(thread, second)
        await self._store()
        await self._others(thread)

    async def _assistants(self) -> None:
        of, agent = self.client.assistants, self.agent("agent")
        found = await self.call("assistants.search", lambda: of.search(graph_id=agent, limit=5))
        assistant = found[0]["assistant_id"] if found else NOBODY
        await self.call("assistants.get", lambda: of.get(assistant))
        await self.call("assistants.get by graph name", lambda: of.get(agent))
        await self.call("assistants.get unknown", lambda: of.get(NOBODY))
        await self.call("assistants.get_schemas", lambda: of.get_schemas(agent))
        await self.call("assistants.get_graph", lambda: of.get_graph(agent))
        await self.call("assistants.get_subgraphs", lambda: of.get_subgraphs(agent))
        made = await self.call(
            "assistants.create",
            lambda: of.create(agent, {"configurable": {"x": 1}}, metadata={"k": "v"}, name="mine", description="d"),
        )
        mine = made["assistant_id"] if made else str(uuid4())
        await self.call("assistants.update", lambda: of.update(mine, metadata={"k": "w"}, name="mine2"))
        await self.call("assistants.get_versions", lambda: of.get_versions(mine))
        await self.call("assistants.set_latest", lambda: of.set_latest(mine, 1))
        await self.call("assistants.count", of.count)
        await self.call("assistants.delete", lambda: of.delete(mine))

    async def _thread(self) -> str:
        of = self.client.threads
        made = await self.call("threads.create", lambda: of.create(metadata={"user": "u"}, if_exists="do_nothing"))
        thread = made["thread_id"] if made else str(uuid4())
        await self.call("threads.get", lambda: of.get(thread))
        await self.call("threads.get unknown", lambda: of.get(NOBODY))
        await self.call("threads.get not uuid", lambda: of.get("abc"))
        await self.call("threads.get_state empty", lambda: of.get_state(thread))
        return str(thread)

    async def _streams(self, thread: str) -> None:
        of, agent = self.client.runs, self.agent("agent")
        await self.call("runs.wait", lambda: of.wait(thread, agent, input=HI))
        modes = "values updates messages-tuple messages custom events debug tasks checkpoints"
        for mode in modes.split():
            await self.heard(f"runs.stream {mode}", lambda m=mode: of.stream(thread, agent, input=HI, stream_mode=m))
        await self.heard(
            "runs.stream many modes, resumable",
            lambda: of.stream(
                thread,
                agent,
                input=HI,
                stream_mode=["values", "messages-tuple", "custom"],
                stream_subgraphs=True,
                stream_resumable=True,
            ),
        )
        await self.heard("runs.stream stateless", lambda: of.stream(None, agent, input=HI, stream_mode="updates"))
        await self.call("runs.wait stateless", lambda: of.wait(None, agent, input=HI))

    async def _states(self, thread: str) -> None:
        of = self.client.threads
        await self.call("threads.get_state", lambda: of.get_state(thread))
        states = await self.call("threads.get_history", lambda: of.get_history(thread, limit=2))
        checkpoint = states[0]["checkpoint"] if states else {"checkpoint_id": str(uuid4())}
        at = {"checkpoint_id": checkpoint["checkpoint_id"], "thread_id": thread, "checkpoint_ns": ""}
        await self.call("threads.get_state checkpoint", lambda: of.get_state(thread, checkpoint=at))
        await self.call(
            "threads.get_state checkpoint_id",
            lambda: of.get_state(thread, checkpoint_id=checkpoint["checkpoint_id"]),
        )

    async def _background(self, thread: str) -> None:
        of, agent = self.client.runs, self.agent("agent")
        modes = ["values", "messages-tuple"]
        run = await self._created("runs.create background", thread, input=HI, stream_mode=modes, stream_resumable=True)
        await self.call("runs.get", lambda: of.get(thread, run))
        await self.call("runs.join", lambda: of.join(thread, run))
        await self.heard("runs.join_stream finished", lambda: of.join_stream(thread, run, last_event_id="-1"))
        await self.call("runs.list", lambda: of.list(thread, limit=2))
        long = await self._created(
            "runs.create long", thread, input=LONG, stream_mode=["messages-tuple"], stream_resumable=True
        )
        await self.call(
            "runs.create reject while busy",
            lambda: of.create(thread, agent, input=HI, multitask_strategy="reject"),
        )
        await self.call("threads.get busy", lambda: self.client.threads.get(thread))
        await self.call("runs.get running", lambda: of.get(thread, long))
        await self.call("runs.cancel wait", lambda: of.cancel(thread, long, wait=True))
        await self.call("runs.get cancelled", lambda: of.get(thread, long))
        await self.heard("runs.join_stream cancelled", lambda: of.join_stream(thread, long, last_event_id="-1"))
        await self.call("runs.cancel finished", lambda: of.cancel(thread, long))
        await self._created("runs.create long2", thread, input=LONG)
        await self._created("runs.create interrupt", thread, input=HI, multitask_strategy="interrupt")
        last = await self._created("runs.create enqueue", thread, input=HI, multitask_strategy="enqueue")
        await self.call("runs.join enqueue", lambda: of.join(thread, last))
        select = ["run_id", "status", "multitask_strategy"]
        await self.call("runs.list statuses", lambda: of.list(thread, limit=3, select=select))
        await self.call("runs.delete", lambda: of.delete(thread, last))

    async def _created(self, name: str, thread: str, **given: Any) -> str:
        run = await self.call(name, lambda: self.client.runs.create(thread, self.agent("agent"), **given))
        return str(run["run_id"]) if run else str(uuid4())

    async def _people(self, thread: str) -> str:
        runs, threads, asker = self.client.runs, self.client.threads, self.agent("asker")
        modes = ["values", "updates", "messages-tuple"]
        first, second = [
            (await self.call(name, threads.create) or {}).get("thread_id", thread)
            for name in ("threads.create hitl", "threads.create hitl2")
        ]
        await self.heard("runs.stream interrupting", lambda: runs.stream(first, asker, input=HI, stream_mode=modes))
        await self.call("threads.get interrupted", lambda: threads.get(first))
        await self.call("threads.get_state interrupted", lambda: threads.get_state(first))
        await self.call("runs.wait resume", lambda: runs.wait(first, asker, command={"resume": "yes"}))
        await self.call("runs.wait interrupting", lambda: runs.wait(second, asker, input=HI))
        resume = {"resume": {"choice_id": "publish"}}
        await self.heard(
            "runs.stream resume",
            lambda: runs.stream(second, asker, command=resume, stream_mode=["values", "updates"]),
        )
        await self.call(
            "threads.update_state", lambda: threads.update_state(second, {"verdict": "changed"}, as_node="ask")
        )
        await self.call("threads.get_history full", lambda: threads.get_history(second))
        failing = self.agent("failing")
        await self.call("runs.wait failing", lambda: runs.wait(second, failing, input=HI))
        await self.heard("runs.stream failing", lambda: runs.stream(second, failing, input=HI, stream_mode="values"))
        await self.call("runs.wait unknown assistant", lambda: runs.wait(second, "nobody", input=HI))
        agent = self.agent("agent")
        await self.call("runs.wait unknown thread", lambda: runs.wait(NOBODY, agent, input=HI))
        new = str(uuid4())
        await self.call(
            "runs.wait if_not_exists create", lambda: runs.wait(new, agent, input=HI, if_not_exists="create")
        )
        return str(second)

    async def _threads(self, thread: str, second: str) -> None:
        of, asker = self.client.threads, self.agent("asker")
        await self.call(
            "threads.search",
            lambda: of.search(metadata={"user": "u"}, limit=2, sort_by="updated_at", sort_order="desc"),
        )
        await self.call("threads.search by graph_id", lambda: of.search(metadata={"graph_id": asker}, limit=1))
        await self.call(
            "threads.search status", lambda: of.search(status="interrupted", limit=1, select=["thread_id", "status"])
        )
        await self.call("threads.count", lambda: of.count(metadata={"user": "u"}))
        await self.call("threads.update", lambda: of.update(thread, metadata={"title": "x"}))
        await self.call("threads.copy", lambda: of.copy(second))
        await self.call("threads.delete", lambda: of.delete(second))

    async def _store(self) -> None:
        of, place = self.client.store, ["u", "mem"]
        await self.call("store.put", lambda: of.put_item(place, "k1", {"text": "likes tea"}))
        await self.call("store.get", lambda: of.get_item(place, "k1"))
        await self.call("store.get none", lambda: of.get_item(place, "k2"))
        await self.call("store.search", lambda: of.search_items(["u"], filter={"text": "likes tea"}, limit=3))
        await self.call("store.namespaces", lambda: of.list_namespaces(prefix=["u"], max_depth=2))
        await self.call("store.delete", lambda: of.delete_item(place, "k1"))

    async def _others(self, thread: str) -> None:
        agent, crons = self.agent("agent"), self.client.crons
        made = await self.call(
            "crons.create_for_thread",
            lambda: crons.create_for_thread(thread, agent, schedule="0 0 1 1 *", input=HI),
        )
        await self.call("crons.search", lambda: crons.search(limit=1))
        await self.call(
            "runs.create_batch", lambda: self.client.runs.create_batch([{"assistant_id": agent, "input": HI}])
        )
        if made:
            await self.call("", lambda: crons.delete(made["cron_id"]))


@asynccontextmanager
async def walked(url: str, headers: dict[str, str] | None = None, **agents: str) -> AsyncIterator[Walk]:
    """All calls, made at a server."""
    listening = Listening()
    timeout = httpx.Timeout(PATIENCE_S)
    async with httpx.AsyncClient(base_url=url, transport=listening, timeout=timeout, headers=headers) as http:
        walk = Walk(LangGraphClient(http), listening, agents)
        await walk.all()
        yield walk


def found(walk: Walk) -> list[Difference]:
    """What is not as recorded."""
    return list(compared(recording(), walk.listening.exchanges(), walk.agents))


def recording() -> list[Exchange]:
    """What was recorded."""
    return [Exchange.of_json(one) for one in json.loads(RECORDED.read_text())]


def compared(
    recorded: list[Exchange], ours: list[Exchange], agents: dict[str, str] | None = None
) -> Iterator[Difference]:
    """What is not as recorded, exchange by exchange: those of a call in their order."""
    for call in dict.fromkeys(one.call for one in recorded):
        was, now = ([one for one in many if one.call == call] for many in (recorded, ours))
        for number, one in enumerate(was):
            if number < len(now):
                yield from _paths(one, now[number], agents or {})
                yield from differences(one, now[number])
            else:
                yield Difference(call, NOT_ASKED, "", f"{one.method} {one.path}")
        for one in now[len(was) :]:
            yield Difference(call, "asked", "", f"{one.method} {one.path}")


def _paths(recorded: Exchange, ours: Exchange, agents: dict[str, str]) -> Iterator[Difference]:
    expected = recorded.path
    for was, now in agents.items():
        expected = expected.replace(f"/{was}", f"/{now}")
    if (recorded.method, expected) != (ours.method, ours.path):
        yield Difference(recorded.call, "request", "", f"{ours.method} {ours.path} for {recorded.method} {expected}")


async def _main() -> int:
    agents = {"agent": sys.argv[2]} if len(sys.argv) > 2 else {}
    async with walked(sys.argv[1], **agents) as walk:
        for one in found(walk):
            print(one)
        for call, error in walk.failed.items():
            print(f"!! {call}: {error[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
