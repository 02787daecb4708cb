"""Agents that fail in ways nobody foresaw, and the ends that a baseline call can have: each is one event."""

import asyncio

import pytest

from agentic_backend.agent import DirectAnswer
from agentic_backend.app import Parts
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.stream import Ask, HumanAnswer
from tests.support.odd_agent import odd
from tests.support.patience import PATIENCE_S
from tests.support.service import hear, hear_until, say


def ask(session_id, agent_id="Georges", **more):
    return {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Hello", **more}


@pytest.fixture
async def odd_service(start_service):
    async with start_service(ai={"agents": [odd("raise"), odd("unbuildable")]}) as service:
        yield service


async def test_an_agent_that_raises_ends_its_turn_as_internal_and_is_logged(odd_service, caplog):
    session_id = await odd_service.create_session(agent_id="raise")
    async with odd_service.native() as socket:
        await say(socket, **ask(session_id, "raise"))
        error = (await hear_until(socket, "error"))[-1]
        assert (error["code"], error["partial"]) == ("internal", False)
        assert "ZeroDivision" not in str(error)
        await say(socket, type="ping")
        assert (await hear(socket))["type"] == "pong"
    assert "in the agent's node" in caplog.text
    async with odd_service.compatible() as socket:
        await say(socket, **ask(session_id, "raise"))
        answer = (await hear_until(socket, "final"))[-1]["messages"][1]
        assert answer["metadata"]["extras"]["error"] == "internal"
    ranks = [message["rank"] for message in await odd_service.history(session_id)]
    assert ranks == [0, 1, 2, 3]


async def test_an_agent_that_cannot_be_built_ends_its_turns_as_internal(odd_service, caplog):
    # The session is made with another agent: making one already needs the graph.
    session_id = await odd_service.create_session(agent_id="raise")
    async with odd_service.native() as socket:
        await say(socket, **ask(session_id, "unbuildable"))
        error = await hear(socket)
        assert (error["type"], error["code"]) == ("error", "internal")
        assert "seq" not in error
        await say(socket, **ask(session_id, "raise"))
        await hear_until(socket, "error")
    assert "in the agent's build" in caplog.text


async def baseline_answer(service, **more):
    async with service.compatible("-baseline") as socket:
        await say(socket, **ask("anything", **more))
        return (await hear_until(socket, "final"))[-1]["messages"][-1]


async def test_a_baseline_call_that_fails_says_its_code(start_service):
    once = {"default_chat_model": {"settings": {"max_retries": 0}}}
    async with start_service("mock;status=500", ai=once) as service:
        answer = await baseline_answer(service)
        assert answer["metadata"]["extras"]["error"] == "llm_unavailable"
    async with start_service("mock;ttft=600000", deadlines={"turn_s": 0.2}) as service:
        answer = await baseline_answer(service)
        assert answer["metadata"]["extras"]["error"] == "turn_deadline"


class FailingAnswer(DirectAnswer):
    async def run(self, _run):
        raise ZeroDivisionError("in the call")


async def test_a_baseline_call_fails_as_internal_where_nobody_foresaw_it(start_service, caplog):
    async with start_service(parts=Parts(direct=FailingAnswer)) as service:
        answer = await baseline_answer(service)
    assert answer["metadata"]["extras"]["error"] == "internal"
    assert "in the call" in caplog.text


@pytest.mark.one_instance("looks into one process")
async def test_a_baseline_call_is_stopped_by_4000_and_by_cancel(start_service):
    async with start_service("mock;ttft=600000") as service:
        baseline = service.service.running.baseline
        async with service.compatible("-baseline") as socket:
            await say(socket, **ask("anything", client_exchange_id="e1"))
            await hear(socket)
            turn = baseline.find("e1", "admin")
            await socket.close(4000)
        async with asyncio.timeout(PATIENCE_S):
            await turn.wait_ended()
        assert baseline.find("e1", "admin") is None


@pytest.mark.one_instance("looks into one process")
async def test_nothing_is_known_of_a_baseline_call_that_has_ended(service):
    baseline = service.service.running.baseline
    async with service.compatible("-baseline") as socket:
        for _ in range(2):
            await say(socket, **ask("anything", client_exchange_id="e1"))
            final = (await hear_until(socket, "final"))[-1]
            assert [message["rank"] for message in final["messages"]] == [0, 1]
    goes_on = Ask("anything", "Georges", "", "e1", "admin", 0.0, human=HumanAnswer({}))
    for told in (baseline.resume("anything", "e1", "admin"), baseline.submit(goes_on)):
        async with asyncio.timeout(PATIENCE_S):
            await told.wait_ended()
        assert told.events[-1].payload.code == "exchange_not_found"


@pytest.mark.one_instance("its process drains")
async def test_a_drain_ends_a_baseline_call_at_its_deadline(start_service):
    async with start_service("mock;ttft=600000", deadlines={"drain_s": 0.1}) as service:
        async with service.compatible("-baseline") as socket:
            await say(socket, **ask("anything", client_exchange_id="e1"))
            await hear(socket)
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                group.create_task(service.service.drain())
                assert (await hear(socket))["type"] == "final"
        assert service.service.running.baseline.running == 0


@pytest.mark.one_instance("its process drains")
async def test_a_baseline_call_during_a_drain_is_refused(service):
    async with service.compatible("-baseline") as socket:
        service.service.running.baseline.draining = True
        await say(socket, **ask("anything"))
        assert (await hear(socket))["code"] == "draining"


async def test_an_ask_that_waits_for_a_slot_can_be_cancelled(start_service):
    async with start_service("mock;ttft=600000", limits={"max_turns": 1, "queue_deadline_s": 600}) as service:
        first, second = [await service.create_session() for _ in range(2)]
        async with service.native() as socket:
            await say(socket, **ask(first, client_exchange_id="e1"))
            await hear_until(socket, "message")
            await say(socket, **ask(second, client_exchange_id="e2"))
            assert (await hear(socket))["queue_position"] == 1
            await say(socket, type="cancel", exchange_id="e2")
            cancelled = await hear(socket)
            assert (cancelled["type"], cancelled["exchange_id"], cancelled["messages"]) == ("cancelled", "e2", [])
            await say(socket, type="cancel", exchange_id="e1")
            await hear_until(socket, "cancelled")
        assert await service.history(second) == []


class SlowLog:
    """A log that takes finished turns when the test says so."""

    def __init__(self, log):
        self._log = log
        self.has_room, self.begin, self.take_over = log.has_room, log.begin, log.take_over
        self.recording, self.go_on = asyncio.Event(), asyncio.Event()

    async def append(self, record):
        self.recording.set()
        await self.go_on.wait()
        return await self._log.append(record)


class SlowPersistence(Persistence):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.log = SlowLog(self.log)


@pytest.mark.one_instance("holds the log of one process")
async def test_a_stop_while_a_turn_is_being_recorded_comes_too_late(start_service):
    async with start_service(parts=Parts(persistence=SlowPersistence)) as service, service.native() as socket:
        log = service.service.running.persistence.log
        session_id = await service.create_session()
        await say(socket, **ask(session_id, client_exchange_id="e1"))
        await hear_until(socket, "delta")
        async with asyncio.timeout(PATIENCE_S):
            await log.recording.wait()
        await say(socket, type="cancel", exchange_id="e1")
        await say(socket, type="ping")
        await hear_until(socket, "pong")
        log.go_on.set()
        await hear_until(socket, "final")
        await say(socket, **ask(session_id, client_exchange_id="e2"))
        await hear_until(socket, "final")
        assert [message["rank"] for message in await service.history(session_id)] == [0, 1, 2, 3]
