from contextlib import aclosing
from dataclasses import replace

import pytest

from agentic_backend.agent import AgentUnusable, Catalog
from agentic_backend.errors import AgentNotFound, TurnFailed
from agentic_backend.events import Delta, Step, text_part
from agentic_backend.knowledge import KnowledgeClient, KnowledgeEndpoint
from agentic_backend.llm import ModelPool
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec
from backend_kit.wire import Code
from tests.agentic_backend.agent.helpers import Turn, kit_for, settings_for
from tests.agentic_backend.agent.hosted import opened

AUTHORED = "tests.agentic_backend.agent.authored"


def catalog_of(pool: ModelPool, *agents: AgentSettings, lookups: list[bool] | None = None, **more: int) -> Catalog:
    on_lookup = None if lookups is None else lookups.append
    return Catalog(agents, kit_for(pool, "http://127.0.0.1:1/v1"), on_lookup=on_lookup, **more)


def authored(mode: str) -> AgentSettings:
    return AgentSettings(
        id="Loud", name="Loud", class_path=AUTHORED, tuning=AgentTuning(fields=(FieldSpec(key="mode", default=mode),))
    )


async def test_a_graph_is_compiled_once_and_look_ups_are_counted(pool: ModelPool) -> None:
    lookups: list[bool] = []
    catalog = catalog_of(pool, settings_for("A"), settings_for("B"), lookups=lookups)
    assert catalog.get("A") is catalog.get("A")
    assert catalog.get("B") is not catalog.get("A")
    assert lookups == [False, True, False, True]


async def test_the_least_used_graph_goes_when_there_are_too_many(pool: ModelPool) -> None:
    lookups: list[bool] = []
    catalog = catalog_of(pool, *(settings_for(name) for name in "ABC"), lookups=lookups, max_graphs=2)
    for name in "ABACAB":
        assert catalog.get(name).id == name
    assert lookups == [False, False, True, False, True, False]


async def test_an_unknown_and_a_disabled_agent_are_not_found(pool: ModelPool) -> None:
    catalog = catalog_of(pool, settings_for("Off", enabled=False), settings_for("On"))
    for name in ("Off", "Nobody", ""):
        with pytest.raises(AgentNotFound) as raised:
            catalog.get(name)
        assert raised.value.code == Code.AGENT_NOT_FOUND
        assert name not in catalog
    assert "On" in catalog
    assert catalog.ids() == ["On"]


async def test_the_list_is_agent_settings_of_the_wire(pool: ModelPool) -> None:
    catalog = catalog_of(pool, settings_for("Georges", prompt="x"), settings_for("Off", enabled=False))
    georges, off = catalog.list()
    assert (georges["id"], georges["enabled"], off["enabled"]) == ("Georges", True, False)
    keys = {"id", "name", "enabled", "class_path", "type", "model", "further_models", "starters"}
    keys |= {"tuning", "chat_options", "graph", "durability", "restart", "client_tools", "images"}
    assert set(georges) == keys | {"model_choices"}
    assert georges["tuning"]["fields"][0]["default"] == "x"


@pytest.mark.parametrize(
    ("class_path", "restart", "uses_credentials"),
    [
        (None, "from_question", False),
        ("agentic_backend.agent.plain", "from_question", False),
        ("agentic_backend.agent.rag", "from_question", True),
        ("agentic_backend.agent.tools", "never", True),
        (AUTHORED, "never", True),
        ("tests.agentic_backend.agent.restartable", "from_question", False),
    ],
)
async def test_what_becomes_of_cut_off_turns_is_as_the_module_declares_or_as_configured(
    pool: ModelPool, class_path: str | None, restart: str, uses_credentials: bool
) -> None:
    made = settings_for("A", class_path=class_path)
    async with aclosing(KnowledgeClient(KnowledgeEndpoint("http://127.0.0.1:1"))) as knowledge:
        kit = replace(kit_for(pool, "http://127.0.0.1:1/v1"), knowledge=knowledge)
        agent = Catalog([made], kit).get("A")
        assert (agent.restart, agent.uses_credentials) == (restart, uses_credentials)
        for wanted in ("never", "from_question"):
            assert Catalog([made.model_copy(update={"restart": wanted})], kit).get("A").restart == wanted


@pytest.mark.parametrize("class_path", [None, "agentic_backend.agent.tools", AUTHORED])
async def test_from_checkpoint_is_refused_where_the_graph_keeps_none(pool: ModelPool, class_path: str | None) -> None:
    settings = settings_for("A", class_path=class_path).model_copy(update={"restart": "from_checkpoint"})
    with pytest.raises(AgentUnusable, match=r"agent A: restart: from_checkpoint needs a graph that keeps checkpoints"):
        catalog_of(pool, settings)


async def test_a_module_that_declares_nonsense_is_refused(pool: ModelPool) -> None:
    settings = settings_for("A", class_path="tests.agentic_backend.agent.unsure")
    with pytest.raises(AgentUnusable, match=r"agent A: RESTART of module .*unsure is none of"):
        catalog_of(pool, settings)


async def test_an_empty_catalog_has_no_agent(pool: ModelPool) -> None:
    assert catalog_of(pool).ids() == []
    assert catalog_of(pool).list() == []


@pytest.mark.parametrize("path", ["agentic_backend.agents.generalist.generalist_expert.Georges", "anything.Georges"])
async def test_the_class_path_of_an_existing_configuration_finds_georges(pool: ModelPool, path: str) -> None:
    assert catalog_of(pool, settings_for(class_path=path)).get("Georges").name == "Georges"


@pytest.mark.parametrize("path", ["no.such.module", "json", "..", "agentic_backend.errors"])
async def test_a_class_path_to_nothing_is_refused_at_the_start(pool: ModelPool, path: str) -> None:
    with pytest.raises(AgentUnusable, match="Bad"):
        catalog_of(pool, settings_for("Bad", class_path=path))
    catalog_of(pool, settings_for("Bad", class_path=path, enabled=False))


async def test_an_authors_agent_runs(pool: ModelPool) -> None:
    turn = Turn("hello", user="ada")
    answer = await catalog_of(pool, authored("once")).get("Loud").run(turn.run)
    assert turn.events == [Step("assistant", "thought", [text_part("loudly")]), Delta("HELLO")]
    assert (answer.text, answer.metadata) == ("HELLO", {"user": "ada"})


@pytest.mark.parametrize("mode", ["loop", "silent"])
async def test_an_agent_that_never_answers_fails_the_turn(pool: ModelPool, mode: str) -> None:
    agent = catalog_of(pool, authored(mode), recursion_limit=7).get("Loud")
    with pytest.raises(TurnFailed):
        await agent.run(Turn().run)


async def test_closing_forgets_the_graphs(pool: ModelPool) -> None:
    lookups: list[bool] = []
    catalog = catalog_of(pool, settings_for("A"), lookups=lookups)
    catalog.get("A")
    await catalog.aclose()
    catalog.get("A")
    assert lookups == [False, False]


async def test_what_the_builder_of_a_graph_opens_is_open_from_the_start_to_the_end(pool: ModelPool) -> None:
    hosted = "tests.agentic_backend.agent.hosted.opened"
    catalog = catalog_of(pool, AgentSettings(id="A", name="A", graph=f"{hosted}:graph"))
    await catalog.start()
    assert opened.log == ["opened"]
    await catalog.aclose()
    assert opened.log == ["opened", "closed"]
    catalog = catalog_of(pool, AgentSettings(id="B", name="B", graph=f"{hosted}:broken"))
    with pytest.raises(AgentUnusable, match=r"agent B: .*opened\.py:\d+: ConnectionError: nobody answers"):
        await catalog.start()
