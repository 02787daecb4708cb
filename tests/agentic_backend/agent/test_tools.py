import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AGENT_PHASES, Agent, AgentKit, Catalog
from agentic_backend.agent.toolbox import Offer, Tool, ToolAnswer, ToolCaller
from agentic_backend.agent.tools import STOPPED, WITHOUT_TOOLS
from agentic_backend.errors import LlmUnavailable
from agentic_backend.events import Delta, Step
from agentic_backend.llm import ModelPool
from agentic_backend.session.turn_report import NUMBERED
from agentic_backend.settings import AgentSettings, AgentTuning, McpServerRef
from backend_kit.kpi import Kpi, Ledger, phase
from tests.agentic_backend.agent.helpers import Turn, kit_for
from tests.agentic_backend.llm.scripted import ScriptedModel, scripted, status
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.servers

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def offered(name: str, *, needs_approval: bool = False) -> Tool:
    return Tool(name, "s", name, f"About {name}.", SCHEMA, needs_approval)


class Box:
    """A toolbox that answers with what it was called with."""

    def __init__(self, *tools: Tool, missing: tuple[str, ...] = ()) -> None:
        self.given = Offer(tools, missing)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.at_once = 0
        self.most_at_once = 0

    async def offer(self, server_ids: Sequence[str], _caller: ToolCaller) -> Offer:
        assert server_ids == ("s",)
        return self.given

    async def call(self, tool: Tool, arguments: dict[str, Any], _caller: ToolCaller) -> ToolAnswer:
        self.calls.append((tool.name, arguments))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return ToolAnswer(f"{tool.name} said {arguments.get('a')}", ok=arguments.get("a") != "bad")


ANSWER = says("It is ", "3.")


def sammy(pool: ModelPool, server: ScriptedModel, box: Box | None, recursion_limit: int = 40) -> Agent:
    kit = kit_for(pool, server.base_url)
    kit = AgentKit(kit.chat_model, kit.model_name, None, box)
    tuning = AgentTuning(mcp_servers=(McpServerRef(id="s"),))
    settings = AgentSettings(id="Sammy", name="Sammy", class_path="agentic_backend.agent.tools", tuning=tuning)
    return Catalog([settings], kit, recursion_limit=recursion_limit).get("Sammy")


def shown(turn: Turn) -> list[tuple[str, Any]]:
    """What the turn emitted, in short."""
    told: list[tuple[str, Any]] = []
    for one in turn.events:
        if isinstance(one, Step):
            part = one.parts[0]
            told.append((one.channel, part["name"] if "name" in part else (part["ok"], part["content"])))
        elif isinstance(one, Delta):
            told.append(("text", one.text))
    return told


async def test_calls_a_tool_and_answers_from_what_it_said(pool: ModelPool) -> None:
    box = Box(offered("add"))
    async with scripted(wants(("c1", "add", '{"a": 1}')), ANSWER) as server:
        turn = Turn("What is it?")
        answer = await sammy(pool, server, box).run(turn.run)
    assert box.calls == [("add", {"a": 1})]
    assert shown(turn) == [
        ("tool_call", "add"),
        ("tool_result", (True, "add said 1")),
        ("text", "It is "),
        ("text", "3."),
    ]
    assert answer.text == "It is 3."
    assert answer.metadata["token_usage"] == {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39}
    assert answer.warnings == []
    first, second = (request.body for request in server.requests)
    assert [one["function"]["name"] for one in first["tools"]] == ["add"]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][2]["tool_calls"][0]["id"] == second["messages"][3]["tool_call_id"] == "c1"
    assert second["messages"][3]["content"] == "add said 1"
    call, result = (one.parts[0] for one in turn.events if isinstance(one, Step))
    assert call == {"type": "tool_call", "call_id": "c1", "name": "add", "args": {"a": 1}}
    assert (result["call_id"], result["ok"], type(result["latency_ms"])) == ("c1", True, int)


async def test_the_ledger_names_all_of_a_tool_turn_and_numbers_its_calls(pool: ModelPool) -> None:
    ledger = Ledger(Kpi(CollectorRegistry(), service="t", phases=AGENT_PHASES), numbered=NUMBERED)
    async with scripted(wants(("c1", "add", '{"a": 1}')), ANSWER) as server:
        agent = sammy(pool, server, Box(offered("add")))
        with ledger.activate(), phase("stream_agent_response"):
            await agent.run(Turn("What is it?").run)
    outer, *rows = ledger.rows()
    assert outer["phase"] == "stream_agent_response"
    assert [row["call"] for row in rows if row["phase"] == "llm_invoke"] == [1, 2]
    own = [row for row in rows if row["depth"] == 1]
    assert [row["phase"] for row in own] == ["graph", "llm_invoke", "graph", "llm_invoke", "graph"]
    for earlier, later in pairwise(own):  # one follows the other, but for what is too short for a row
        assert later["start_ms"] - (earlier["start_ms"] + earlier["ms"]) < 0.06


async def test_calls_that_only_read_run_side_by_side_and_answer_in_their_order(pool: ModelPool) -> None:
    box = Box(offered("one"), offered("two"))
    async with scripted(wants(("c1", "one", "{}"), ("c2", "two", '{"a": "bad"}')), ANSWER) as server:
        turn = Turn()
        await sammy(pool, server, box).run(turn.run)
    assert box.most_at_once == 2
    told = server.requests[1].body["messages"][-2:]
    assert [(message["tool_call_id"], message["content"]) for message in told] == [
        ("c1", "one said None"),
        ("c2", "two said bad"),
    ]
    assert [one[0] for one in shown(turn)][:4] == ["tool_call", "tool_call", "tool_result", "tool_result"]


async def test_text_before_a_call_is_emitted_as_it_comes(pool: ModelPool) -> None:
    async with scripted(wants(("c1", "add", "{}"), text="Let me see."), ANSWER) as server:
        turn = Turn()
        answer = await sammy(pool, server, Box(offered("add"))).run(turn.run)
    assert shown(turn)[:2] == [("text", "Let me see."), ("tool_call", "add")]
    assert answer.text == "It is 3."


@pytest.mark.parametrize(
    ("wanted", "reply"),
    [
        (("c1", "rm", "{}"), "There is no tool of this name."),
        (("c1", "add", '{"a": '), "The arguments were not a JSON object."),
        (("c1", "add", "[1]"), "The arguments were not a JSON object."),
        (("c1", "", "{}"), "There is no tool of this name."),
    ],
)
async def test_a_call_that_cannot_be_made_is_answered(
    pool: ModelPool, wanted: tuple[str, str, str], reply: str
) -> None:
    box = Box(offered("add"))
    async with scripted(wants(wanted), ANSWER) as server:
        turn = Turn()
        answer = await sammy(pool, server, box).run(turn.run)
    assert box.calls == []
    assert ("tool_result", (False, reply)) in shown(turn)
    assert answer.text == "It is 3."


async def test_calls_without_ids_of_their_own_get_some(pool: ModelPool) -> None:
    async with scripted(wants(("same", "add", "{}"), ("same", "add", "{}")), ANSWER) as server:
        turn = Turn()
        await sammy(pool, server, Box(offered("add"))).run(turn.run)
    ids = [one.parts[0]["call_id"] for one in turn.events if isinstance(one, Step) and one.channel == "tool_call"]
    assert len(set(ids)) == 2


async def test_answers_without_tools_where_there_are_none(pool: ModelPool) -> None:
    async with scripted(ANSWER) as server:
        answer = await sammy(pool, server, None).run(Turn().run)
    assert answer.text == "It is 3."
    assert "tools" not in server.requests[0].body


async def test_says_which_tools_were_missing(pool: ModelPool) -> None:
    async with scripted(ANSWER) as server:
        answer = await sammy(pool, server, Box(offered("add"), missing=("down",))).run(Turn().run)
    assert answer.warnings == [WITHOUT_TOOLS]
    assert answer.metadata["extras"] == {"warnings": [WITHOUT_TOOLS]}
    assert "cannot be reached" in server.requests[0].body["messages"][0]["content"]


async def test_ends_safely_at_the_recursion_limit(pool: ModelPool) -> None:
    box = Box(offered("add"))
    async with scripted(wants(("c1", "add", "{}"))) as server:
        turn = Turn()
        answer = await sammy(pool, server, box, recursion_limit=9).run(turn.run)
    assert answer.warnings == [STOPPED]
    assert answer.text == turn.text == "I stopped here: the question needs more steps than I may take."
    assert 1 <= len(box.calls) <= 4
    assert "tools" not in server.requests[-1].body
    assert "tools" in server.requests[-2].body


async def test_fails_as_the_model_fails(pool: ModelPool) -> None:
    box = Box(offered("add"))
    async with scripted(wants(("c1", "add", "{}")), status(503)) as server:
        with pytest.raises(LlmUnavailable):
            await sammy(pool, server, box).run(Turn().run)
    assert len(box.calls) == 1
