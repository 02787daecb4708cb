"""What is OpenSearch's own: the shape of its index, the graph, many documents it has not followed, its faults."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from backend_kit.wire import dumps, loads
from knowledge_flow_backend.engines.opensearch.body import Shape, index_body
from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterRules
from knowledge_flow_backend.engines.opensearch.index import OpenSearchChunks, OpenSearchRules
from knowledge_flow_backend.engines.opensearch.writer import OpenSearchWriter
from knowledge_flow_backend.engines.scheduling import ThrottleRules, WriteThrottle
from knowledge_flow_backend.errors import Conflict, IndexUnavailable, SchemaMismatch
from knowledge_flow_backend.settings import OpenSearch
from tests.knowledge_flow_backend.corpus import POLICIES, SPOOL, Corpus, filled, found
from tests.knowledge_flow_backend.engines.opensearch.faulty import FaultyOpenSearch, holds, says
from tests.support.opensearch import OpenSearchIndex
from tests.support.postgres import Database

pytestmark = pytest.mark.java


@pytest.fixture
async def corpus(database: Database, opensearch: OpenSearchIndex) -> AsyncIterator[Corpus]:
    """An index without documents in OpenSearch."""
    async with Corpus.on_opensearch(database, opensearch) as made:
        yield made


@pytest.fixture
async def faulty(opensearch: OpenSearchIndex) -> AsyncIterator[FaultyOpenSearch]:
    """A proxy before the node."""
    async with FaultyOpenSearch(opensearch.url) as proxy:
        yield proxy


@pytest.fixture
async def through(corpus: Corpus, faulty: FaultyOpenSearch) -> AsyncIterator[Corpus]:
    """The same corpus, asked and written through the proxy. Deadlines are long: only a fault may be met."""
    rules = ClusterRules(connections=2, search_s=30.0, write_s=30.0, longest_backoff_s=0.05)
    async with reached(corpus, faulty, rules):
        yield corpus


@asynccontextmanager
async def reached(
    corpus: Corpus, faulty: FaultyOpenSearch, rules: ClusterRules, throttle: WriteThrottle | None = None
) -> AsyncIterator[None]:
    """The corpus reaches its cluster through the proxy, by these rules."""
    cluster = proxied(faulty, rules, throttle)
    corpus.index = OpenSearchChunks(corpus.database, cluster, model="mock", kpi=corpus.kpi)
    corpus.writer = OpenSearchWriter(corpus.database, cluster, model="mock", bulk_size=2)
    corpus.follower = None
    yield
    await cluster.aclose()


def proxied(faulty: FaultyOpenSearch, rules: ClusterRules, throttle: WriteThrottle | None = None) -> Cluster:
    return Cluster(OpenSearch.model_validate({"host": faulty.url, "secure": False}), rules, throttle)


def on(corpus: Corpus) -> Cluster:
    assert corpus.cluster is not None
    return corpus.cluster


async def test_the_first_write_makes_an_index_that_fits(corpus: Corpus) -> None:
    name = corpus.database.index
    assert await on(corpus).mappings(name) == {}
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(corpus.put(f"doc{number}", "text"))
    assert list(await on(corpus).mappings(name)) == [f"{name}-000001"]
    assert corpus.sql("SELECT embedding_model, dimension, engine FROM index_info") == [("mock", 384, "opensearch")]
    # No graph in Postgres: its vectors are for rebuilding the index and for reranks alone.
    assert corpus.sql("SELECT count(*) FROM pg_indexes WHERE indexname = 'chunks_embedding'") == [(0,)]
    await corpus.index.check(384)


async def test_what_has_no_alias_any_more_is_left_alone(corpus: Corpus) -> None:
    name = corpus.database.index
    await on(corpus).create(f"{name}-000004", None, index_body(Shape("mock", 384, "token")))
    await corpus.put("doc", SPOOL)
    assert list(await on(corpus).mappings(name)) == [f"{name}-000005"]
    assert found(await corpus.search("spool")) == ["doc"]


async def test_a_service_without_documents_needs_the_cluster_but_no_index(corpus: Corpus) -> None:
    await corpus.index.check()
    assert await corpus.search("anything") == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"engine": "faiss"}, "its vectors are for faiss, only hnsw of lucene is used"),
        ({"engine": "lucene", "space_type": "l2"}, "its vectors are compared by l2"),
    ],
)
async def test_an_index_that_somebody_else_made_is_refused(corpus: Corpus, engine: dict[str, str], words: str) -> None:
    name = corpus.database.index
    body = index_body(Shape("mock", 384, "token"))
    method = {**body["mappings"]["properties"]["vector_field"]["method"], **engine}
    body["mappings"]["properties"]["vector_field"]["method"] = method
    await on(corpus).create(f"{name}-000001", name, body)
    with pytest.raises(SchemaMismatch, match=words):
        await corpus.put("doc", "text")
    assert corpus.sql("SELECT uid FROM documents") == []


async def test_another_embedder_database_or_name_is_refused(corpus: Corpus) -> None:
    await filled(corpus)
    other = OpenSearchChunks(corpus.database, on(corpus), model="other", kpi=corpus.kpi)
    with pytest.raises(SchemaMismatch, match=r"holds vectors of mock \(384 numbers\).*those of other"):
        await other.check()
    with pytest.raises(SchemaMismatch, match=r"makes those of mock \(3\)"):
        await corpus.index.check(3)
    token = corpus.sql("UPDATE index_identity SET token = 'x' || token RETURNING token")
    with pytest.raises(SchemaMismatch, match="holds the chunks of another database"):
        await corpus.index.check()
    corpus.sql("UPDATE index_identity SET token = substr(token, 2)")
    assert token
    await on(corpus).drop(f"{corpus.database.index}-000001")
    with pytest.raises(SchemaMismatch, match="run `knowledge-flow reindex`"):
        await corpus.index.check()


async def test_the_graph_finds_what_comparing_each_finds(database: Database, opensearch: OpenSearchIndex) -> None:
    async with Corpus.on_opensearch(database, opensearch, exact_up_to=0) as corpus:
        await corpus.put("needle", "nothing alike at all")
        await corpus.put("hay", *(f"the spool and passage {number}" for number in range(200)))
        exact = OpenSearchChunks(
            corpus.database, on(corpus), model="mock", kpi=corpus.kpi, rules=OpenSearchRules(exact_up_to=10**6)
        )
        by_graph = await corpus.search("the spool and passage 7", "semantic")
        corpus.index = exact
        by_comparing = await corpus.search("the spool and passage 7", "semantic")
        assert by_graph[0].content == by_comparing[0].content == "the spool and passage 7"
        assert by_graph[0].score == pytest.approx(1.0, abs=1e-3)
        # Their scores and not their ids: of many passages that are equally near, each may take others.
        assert [hit.score for hit in by_graph] == pytest.approx([hit.score for hit in by_comparing], abs=1e-3)
        # A filter down to one chunk, which the graph alone would not reach.
        assert found(await corpus.search("the spool", "semantic", documents=("needle",))) == ["needle"]


async def test_more_changes_than_a_query_names_hide_nothing_and_leak_nothing(
    database: Database, opensearch: OpenSearchIndex
) -> None:
    async with Corpus.on_opensearch(database, opensearch, most_pending=1) as corpus:
        for number in range(4):
            await corpus.put(f"gone{number}", *("the spool" for _ in range(12)))
        await corpus.put("left", "among many other words a spool is named here once")
        await corpus.follow()
        corpus.follower = None
        corpus.sql("DELETE FROM documents WHERE uid LIKE 'gone%'")
        for policy in POLICIES:
            assert found(await corpus.search("the spool", policy, limit=3, candidates=100)) == ["left"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_or_red_cluster_is_asked_once_more_and_then_given_up(
    through: Corpus, faulty: FaultyOpenSearch, status: int
) -> None:
    await filled(through)
    faulty.answer = says(status)
    before = faulty.count("_search")
    with pytest.raises(IndexUnavailable, match=rf"^opensearch: status={status}$"):
        await through.search("spool", "strict")
    assert faulty.count("_search") - before == 2
    faulty.answer = None
    assert found(await through.search("spool", "strict")) == ["spool"]


@pytest.mark.parametrize(("status", "words"), [(400, "status=400"), (401, "credentials"), (500, "status=500")])
async def test_what_will_not_change_is_not_asked_again(
    through: Corpus, faulty: FaultyOpenSearch, status: int, words: str
) -> None:
    await filled(through)
    faulty.answer = says(status)
    before = faulty.count("_search")
    with pytest.raises(IndexUnavailable, match=words) as failure:
        await through.search("spool", "strict")
    assert faulty.count("_search") - before == 1
    assert "canary" not in str(failure.value)


async def test_a_black_hole_ends_at_the_deadline_and_is_asked_once(through: Corpus, faulty: FaultyOpenSearch) -> None:
    await filled(through)
    hurried = proxied(faulty, ClusterRules(search_s=2.0))
    through.index = OpenSearchChunks(through.database, hurried, model="mock", kpi=through.kpi)
    faulty.answer, let = holds()
    before = faulty.count("_search")
    with pytest.raises(IndexUnavailable, match="no answer in time"):
        await through.search("spool", "semantic")
    assert faulty.count("_search") - before == 1
    let.set()
    await hurried.aclose()


async def test_a_refused_connection_is_unavailable(through: Corpus, faulty: FaultyOpenSearch) -> None:
    await filled(through)
    faulty.refuse = True
    for policy in POLICIES:
        with pytest.raises(IndexUnavailable, match="no connection"):
            await through.search("spool", policy)
    with pytest.raises(IndexUnavailable, match="no connection"):
        await through.put("new", "text")
    assert through.sql("SELECT uid FROM documents WHERE uid = 'new'") == []
    faulty.refuse = False
    assert found(await through.search("spool"))[0] == "spool"


async def test_an_answer_without_some_shards_or_without_sense_is_a_failure(
    through: Corpus, faulty: FaultyOpenSearch
) -> None:
    await filled(through)

    async def late(request: web.Request) -> web.Response | None:
        body = dumps({"timed_out": True, "hits": {"hits": []}})
        return web.Response(body=body, content_type="application/json") if "_search" in request.path else None

    async def nonsense(request: web.Request) -> web.Response | None:
        return web.Response(text="<html>", content_type="application/json") if "_search" in request.path else None

    for faulty.answer in (late, nonsense):
        with pytest.raises(IndexUnavailable):
            await through.search("spool", "strict")


ANSWERS = [
    b"{}",
    b"[]",
    b'"words"',
    b'{"hits": {}}',
    b'{"hits": {"hits": [{}]}}',
    b'{"hits": {"hits": [{"_id": "a-1", "_score": null}]}}',
]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/html"])
async def test_whatever_stands_before_a_cluster_and_says_yes_to_all_is_a_failure(
    through: Corpus, faulty: FaultyOpenSearch, kind: str
) -> None:
    await filled(through)

    for body in ANSWERS:

        async def agreeable(_request: web.Request, body: bytes = body) -> web.Response:
            return web.Response(body=body, content_type=kind)

        faulty.answer = agreeable
        for policy in POLICIES:
            with pytest.raises(IndexUnavailable, match="its answer cannot be read"):
                await through.search("spool", policy)
        with pytest.raises(IndexUnavailable, match="its answer cannot be read"):
            await through.put("new", "text")
    faulty.answer = None
    assert through.sql("SELECT uid FROM documents WHERE uid = 'new'") == []
    assert found(await through.search("spool"))[0] == "spool"


async def test_no_more_connections_than_allowed_are_open(through: Corpus, faulty: FaultyOpenSearch) -> None:
    await filled(through)
    faulty.answer, let = holds()
    faulty.most_at_once = 0
    async with asyncio.TaskGroup() as tasks:
        searches = [tasks.create_task(through.search("spool", "strict")) for _ in range(12)]
        await faulty.asked(faulty.count("_search") + 2, "_search")
        let.set()
    assert all(found(search.result()) == ["spool"] for search in searches)
    assert faulty.most_at_once == 2


async def test_few_bulks_are_in_flight_and_what_was_too_busy_is_sent_again(
    through: Corpus, faulty: FaultyOpenSearch
) -> None:
    await through.put("first", "text")
    refused = 0
    running = most = 0
    two = asyncio.Event()

    async def busy(request: web.Request) -> web.Response | None:
        nonlocal refused, running, most
        if "_bulk" not in request.path:
            return None
        running += 1
        most = max(most, running)
        if running == 2:
            two.set()
        await two.wait()
        try:
            if refused < 2:
                refused += 1
                return web.Response(status=429, body=b'{"error": {"type": "rejected"}, "status": 429}')
            if refused < 4 and (await request.read()).count(b"\n") == 4:
                refused += 1
                return await _half(faulty, request)
            return await faulty.ask_node(request)
        finally:
            running -= 1

    faulty.answer = busy
    await through.put("doc", *(f"the spool, passage {number}" for number in range(12)))
    faulty.answer = None
    assert (refused, most) == (4, 2)
    assert len(await through.search("spool passage", "strict", limit=50)) == 12


async def test_writes_rest_where_somebody_searches_and_nowhere_else(corpus: Corpus, faulty: FaultyOpenSearch) -> None:
    rests, pieces = [], []
    running = most = 0

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await asyncio.sleep(0)

    async def searched(request: web.Request) -> web.Response | None:
        nonlocal running, most
        if "_bulk" in request.path:
            running += 1
            most = max(most, running)
            pieces.append((await request.read()).count(b"\n") // 2)
            assert found(await corpus.search("text", "strict")) == ["first"]
            running -= 1
        return None

    rules = ClusterRules(search_s=30.0, write_s=30.0)
    throttle = WriteThrottle(ThrottleRules(lately_s=1000.0, piece=1, longest_rest_s=0.05), sleep=rest)
    async with reached(corpus, faulty, rules, throttle):
        await corpus.put("first", "text")
        await corpus.put("alone", *(f"passage {number}" for number in range(6)))
        assert rests == []
        faulty.answer = searched
        assert found(await corpus.search("text", "strict")) == ["first"]
        writes = [corpus.put(name, *(f"passage {number}" for number in range(6))) for name in ("beside", "beside too")]
        await asyncio.gather(*writes)
    assert (pieces, most) == ([1] * 12, 1), "one chunk a bulk, one bulk at a time among all documents"
    assert len(rests) == 24, "after each bulk and each COPY"
    assert all(0 < seconds <= 0.05 for seconds in rests), "bounded by longest_rest_s"


async def _half(faulty: FaultyOpenSearch, request: web.Request) -> web.Response:
    """Give the node the first chunk only, and answer that it was too busy for the other."""
    lines = (await request.read()).split(b"\n")
    answer = await faulty.bulk(request, b"\n".join([*lines[:2], b""]))
    action = loads(lines[2])["index"]
    items = [*answer["items"], {"index": {**action, "status": 429, "error": {"type": "rejected"}}}]
    return web.Response(body=dumps({"errors": True, "items": items}), content_type="application/json")


async def test_a_cluster_that_stays_busy_fails_the_write_and_keeps_the_old_document(
    through: Corpus, faulty: FaultyOpenSearch
) -> None:
    await through.put("doc", "the old spool")
    faulty.answer = says(429, "_bulk")
    with pytest.raises(IndexUnavailable, match="too busy to write"):
        await through.put("doc", "the new spool")
    faulty.answer = None
    assert [hit.content for hit in await through.search("spool")] == ["the old spool"]


async def test_what_was_claimed_by_another_upload_while_it_was_written_is_deleted_at_once(
    through: Corpus, faulty: FaultyOpenSearch
) -> None:
    await through.put("doc", "the spool")
    through.sql("""UPDATE documents SET stages = '{"claim": "older"}'""")

    async def claimed(request: web.Request) -> web.Response | None:
        if "_bulk" in request.path:
            await asyncio.to_thread(through.sql, """UPDATE documents SET stages = '{"claim": "newer"}'""")
        return None

    faulty.answer = claimed
    with pytest.raises(Conflict):
        await through.put("doc", "the spool of before", claim="older")
    assert through.sql("SELECT intent FROM index_pending") == [(False,)]
    before = faulty.count("_bulk")
    with pytest.raises(Conflict):
        await through.put("doc", "the spool of before", claim="older")
    assert faulty.count("_bulk") == before
    assert [hit.content for hit in await through.search("the spool")] == ["the spool"]


async def test_nothing_of_a_question_is_logged(
    through: Corpus, faulty: FaultyOpenSearch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await through.put("doc", SPOOL)
    await through.search("canary spool")
    faulty.answer = says(503)
    with pytest.raises(IndexUnavailable):
        await through.search("canary spool")
    assert "canary" not in caplog.text


async def test_a_user_and_password_go_with_each_request(faulty: FaultyOpenSearch) -> None:
    seen: list[str | None] = []

    async def look(request: web.Request) -> web.Response | None:
        seen.append(request.headers.get("Authorization"))
        return None

    faulty.answer = look
    where = {"host": faulty.url, "secure": False, "username": "ada", "password": "secret"}
    cluster = Cluster(OpenSearch.model_validate(where))
    await cluster.mappings("anything")
    await cluster.aclose()
    assert seen == ["Basic YWRhOnNlY3JldA=="]


async def test_the_index_stays_away_where_it_is_not_an_alias(corpus: Corpus) -> None:
    name = corpus.database.index
    await on(corpus).create(name, None, index_body(Shape("mock", 384, "token")))
    with pytest.raises(SchemaMismatch, match="it must be an alias of one"):
        await corpus.put("doc", "text")
