"""States of graphs as clients of LangGraph's API see them, from Postgres."""

from typing import Any

import pytest

from agentic_backend.agent import AgentKit, Catalog, GraphInput, StateChange
from agentic_backend.agent.hosted import Hosting
from agentic_backend.errors import HistoryUnavailable
from agentic_backend.persist.checkpoints import PostgresGraphState
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import graph_state_of
from agentic_backend.session.stream import Final
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import USER, FakeModel, MemoryStorage, TurnProcess
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.persist.test_graph_pool import graph_pool
from tests.agentic_backend.records import new_session
from tests.agentic_backend.session.gated_turns import ended
from tests.support.postgres import Database


def question(text: str) -> dict[str, Any]:
    return {"input": {"messages": [{"role": "user", "content": text}]}}


async def test_states_are_read_changed_and_begun_from(
    persistence: Persistence, database: Database, tasks: TaskRegistry
) -> None:
    session = await new_session(persistence)
    settings = AgentSettings(id="Desk", name="Desk", graph="tests.agentic_backend.agent.hosted.desk:dealing")
    async with graph_pool(database) as pool:
        hosting, kit = Hosting(PostgresGraphState(pool)), AgentKit(FakeModel(), "fake")
        catalog = Catalog([settings], kit, hosting=hosting)
        agent: Any = catalog.get("Desk")
        process = TurnProcess(MemoryStorage(session), tasks, catalog)

        async def ask(exchange_id: str, **given: Any) -> str:
            more = {"session_id": session.id, "user_id": session.user_id, "graph": GraphInput(**given)}
            end = await ended(process.ask(exchange_id, exchange_id, "Desk", **more))
            assert isinstance(end, Final), end
            return graph_state_of(end.messages[-1], "Desk")

        first = await ask("A", **question("A"))
        state = await agent.state(session.id, USER, first)
        assert state["values"]["cards"] == [{"title": "A", "tags": ["new"]}]
        assert state["created_at"].endswith("+00:00")
        second = await ask("B", **question("B"))
        changed = await ask("C", change=StateChange(question("C")["input"], "__start__"))
        listed = await agent.states(session.id, USER, changed, limit=100)
        assert [one["metadata"]["run_id"] for one in listed] == ["C", "B", "B", "A", "A", "A"]
        assert listed[0]["metadata"]["source"] == "update"
        assert listed[1] == await agent.state(session.id, USER, second)
        page = await agent.states(session.id, USER, changed, limit=2, before=listed[2]["checkpoint_id"])
        assert page == listed[3:5]
        for at, titles in (
            (await ask("D", continues=True), "ABC"),
            (await ask("E", **question("E"), checkpoint=first), "AE"),
        ):
            cards = (await agent.state(session.id, USER, at))["values"]["cards"]
            assert [card["title"] for card in cards] == list(titles)
    with pytest.raises(HistoryUnavailable):
        await agent.state(session.id, USER, first)
