"""What each column of the table promises of a door, and, where a cell says no, what its clients get instead."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.agentic_backend.knowledge.fake import fake_knowledge, hit
from tests.agentic_backend.llm.scripted import scripted
from tests.doors.talk import Event, Heard, Talk, Wire, hear, spent, text_of, told, values
from tests.integration.test_cancel import stats
from tests.integration.test_channels import told_something
from tests.integration.test_human import DONE, NOTES, sections, used
from tests.integration.test_rico import PASSAGE, QUESTION, rico_on
from tests.support.held_model import held_model
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService, StartService
from tests.support.telling_agent import ANSWER, SECRET, telling
from tests.support.tool_server import ToolServer

CUT = "mock;tokens=8;gap=25"
WHOLE = "zeroone two three"
"""What a held model says that begins with `zero`."""


@dataclass(frozen=True, slots=True)
class Lab:
    """What a case is given. `wire` has all that its conversations sent and got."""

    start: StartService
    tools: ToolServer
    model: MockModel
    wire: Wire = field(default_factory=Wire)

    async def open(self, door: type[Talk], service: RunningService, agent: str = "Georges") -> Talk:
        """A new conversation."""
        talk = door(service, agent, self.wire)
        await talk.begin()
        return talk


Case = Callable[[type[Talk], Lab], Awaitable[None]]


@asynccontextmanager
async def held(lab: Lab, door: type[Talk], **settings: Any) -> AsyncIterator[tuple[Talk, asyncio.Event]]:
    """A conversation whose model says `zero`, waits for the event, and ends the answer."""
    async with held_model("zero") as model, lab.start(ai=model.ai, **settings) as service:
        yield await lab.open(door, service), model.go


async def until(events: AsyncIterator[Event], text: str, heard: list[Event]) -> None:
    """Hear until this text is there."""
    async with asyncio.timeout(PATIENCE_S):
        while text not in text_of(heard):
            heard.append(await anext(events))


async def stream(door: type[Talk], lab: Lab) -> None:
    """The text comes while the model speaks."""
    async with held(lab, door) as (talk, go):
        heard: list[Event] = []
        events = talk.ask("Hello")
        await until(events, "zero", heard)
        assert not go.is_set()
        go.set()
        heard += [event async for event in events]
        assert text_of(heard) == WHOLE
        assert values(heard, "end") == ["stop"]
        assert text_in(await talk.answer()) == WHOLE


def text_in(message: dict[str, Any]) -> str:
    """The text of a message in history."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


async def resume(door: type[Talk], lab: Lab) -> None:
    """Cut at every event, a client ends up with what an uncut one has, of one call of the model."""
    async with lab.start(CUT) as service:
        talk = await lab.open(door, service)
        before = (await stats(service, lab.model))["requests"]["chat"]
        count = len(await hear(talk.ask("Hello")))
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(_cut_at(await lab.open(door, service), number))
        assert (await stats(service, lab.model))["requests"]["chat"] - before == 1 + count


async def _cut_at(talk: Talk, number: int) -> None:
    first = await hear(talk.ask("Hello"), most=number)
    ended = bool(values(first, "end"))
    rest = [] if ended else await hear(talk.again(first))
    uncut = await hear(talk.again([]))
    whole = rest if talk.from_the_beginning and not ended else first + rest
    assert values(whole, "refusal") == [], (number, whole)
    assert told(whole) == told(uncut), number
    assert text_of(whole) == text_in(await talk.answer())
    assert values(whole, "end") == ["stop"]


async def cancel(door: type[Talk], lab: Lab) -> None:
    """The turn ends, its model's stream with it, and what was said until then is kept."""
    async with held(lab, door) as (talk, _):
        events = talk.ask("Hello")
        heard = [await anext(events)]
        if not text_of(heard):
            await told_something(talk.service, talk.exchange)
        await talk.cancel()
        if door.hears_the_end:
            heard += [event async for event in events]
            assert values(heard, "end") == ["cancelled"]
        else:
            await events.aclose()  # type: ignore[attr-defined]
        await stopped(talk)


async def stopped(talk: Talk) -> None:
    """The turn of a conversation has ended without an end of its answer, and history has what there was."""
    await idle(talk.service)
    answer = await talk.answer()
    assert (text_in(answer), answer["metadata"]["finish_reason"]) == ("zero", "cancelled")


async def idle(service: RunningService) -> None:
    """Return once no turn runs."""
    async with asyncio.timeout(PATIENCE_S):
        while service.turns.running:  # noqa: ASYNC110 - a registry tells nobody
            await asyncio.sleep(0.01)


async def question(door: type[Talk], lab: Lab) -> None:
    """The agent's question is shown, nothing is done before the answer, and the answer through the door is taken."""
    async with scripted(NOTES, DONE) as model, lab.start(**sections(model, lab.tools)) as service:
        talk = await lab.open(door, service, "Sammy")
        noted = await used(lab.tools, "note")
        (asked,) = values(await hear(talk.ask("Note milk")), "question")
        assert "Sammy wants to call note of notes." in asked
        assert await used(lab.tools, "note") == noted
        heard = await hear(talk.allow())
        assert (text_of(heard), values(heard, "question")) == ("I noted milk.", [])
        assert await used(lab.tools, "note") == noted + 1


async def citations(door: type[Talk], lab: Lab) -> None:
    """The source that the answer cites is named, with the address that opens it."""
    async with fake_knowledge(hit("spool", PASSAGE)) as knowledge, lab.start(**rico_on(knowledge)) as service:
        talk = await lab.open(door, service, "Rico")
        heard = await hear(talk.ask(QUESTION))
        assert text_of(heard) == f"{PASSAGE} [1]"
        (address,) = values(heard, "citation")
        assert address.removeprefix(f"http://127.0.0.1:{service.port}") == "/documents/spool#chunk=spool-1"


async def reasoning(door: type[Talk], lab: Lab) -> None:
    """What models reason is told apart from the answer."""
    async with lab.start(ai={"agents": [telling()]}) as service:
        talk = await lab.open(door, service, "Teller")
        heard = await hear(talk.ask("tell"))
        assert f"I look for {SECRET}." in text_of(heard, "reasoning")
        assert text_of(heard) == ANSWER


async def usage(door: type[Talk], lab: Lab) -> None:
    """The tokens are those that history has."""
    async with lab.start() as service:
        talk = await lab.open(door, service)
        (tokens,) = values(await hear(talk.ask("Hello")), "usage")
        assert tokens == spent(await talk.answer())
        assert min(tokens) > 0


async def errors(door: type[Talk], lab: Lab) -> None:
    """What is wrong with a request, or fails in a turn, has its code, and its field where the door names one."""
    async with lab.start("mock;tokens=9;truncate=3", limits={"max_message_chars": 20}) as service:
        expected = door.refusals
        cases = {"Nobody": ("Hello", expected.unknown_agent), "Georges": ("x" * 21, expected.too_long)}
        for agent, (text, wanted) in cases.items():
            talk = await lab.open(door, service, agent)
            heard = await hear(talk.ask(text))
            assert told(heard) == [Heard("refusal", wanted)], told(heard)
        talk = await lab.open(door, service)
        heard = await hear(talk.ask("Hello"))
        assert values(heard, "refusal") == [expected.broken]
        assert (await talk.answer())["metadata"]["extras"]["error"] == expected.broken.code


async def limits(door: type[Talk], lab: Lab) -> None:
    """An ask too many in a minute is refused, and so is a connection too many, or it ends the user's oldest."""
    async with lab.start(limits={"per_user": {"asks_per_min": 1, "burst": 1}}) as service:
        first = await lab.open(door, service)
        second = await lab.open(door, service)
        assert values(await hear(first.ask("Hello")), "end") == ["stop"]
        assert told(await hear(second.ask("Hello"))) == [Heard("refusal", door.refusals.too_many_asks)]
    crowded = door.refusals.too_many_open
    if crowded is None:
        return
    async with held(lab, door, limits={"per_user": {"sockets": 1}}) as (first, go):
        second = await lab.open(door, first.service)
        async with aclosing(first.ask("Hello")) as older, aclosing(second.ask("Hello")) as newer:  # type: ignore[type-var]
            heard = [await anext(older)]
            refused = values([await anext(newer)], "refusal")
            if door.newest_wins:
                heard += [event async for event in older]
                assert (values(heard, "refusal"), refused) == ([crowded], [])
            else:
                assert refused == [crowded]
        go.set()


COLUMNS: dict[str, Case] = {
    "stream": stream,
    "resume": resume,
    "cancel": cancel,
    "question to a person": question,
    "citations": citations,
    "reasoning": reasoning,
    "usage": usage,
    "errors": errors,
    "limits": limits,
}
