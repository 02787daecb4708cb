"""OpenSearch is brought up to date behind Postgres: deletion really deletes, and what a crash left is swept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterRules
from knowledge_flow_backend.engines.opensearch.follow import Follower
from knowledge_flow_backend.errors import IndexUnavailable, UploadProcessingFailed
from knowledge_flow_backend.settings import OpenSearch
from tests.knowledge_flow_backend.corpus import Corpus, found
from tests.knowledge_flow_backend.engines.opensearch.faulty import FaultyOpenSearch, holds, says
from tests.support.opensearch import OpenSearchIndex
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

pytestmark = pytest.mark.java
EVERYTHING: dict[str, Any] = {"size": 1000, "query": {"match_all": {}}}


@pytest.fixture
async def corpus(database: Database, opensearch: OpenSearchIndex) -> AsyncIterator[Corpus]:
    """An index in OpenSearch that follows nothing by itself."""
    async with Corpus.on_opensearch(database, opensearch, follow=False) as made:
        yield made


async def stored(corpus: Corpus) -> int:
    """Chunks that OpenSearch holds, valid or not."""
    assert corpus.cluster is not None
    await corpus.cluster.refresh(corpus.database.index)
    return len(await corpus.cluster.search(corpus.database.index, EVERYTHING))


def pending(corpus: Corpus) -> int:
    ((count,),) = corpus.sql("SELECT count(*) FROM index_pending")
    return int(count)


def follower(corpus: Corpus, **rules: Any) -> Follower:
    assert corpus.cluster is not None
    return Follower(corpus.database, corpus.cluster, corpus.metrics, **rules)


async def test_what_is_deleted_or_replaced_leaves_opensearch(corpus: Corpus) -> None:
    await corpus.put("doc", "the spool", "the pool")
    await corpus.put("other", "the spool")
    assert (await stored(corpus), pending(corpus)) == (3, 0)
    await corpus.put("doc", "the new spool")
    assert (await stored(corpus), pending(corpus)) == (4, 1)
    following = follower(corpus)
    assert await following.follow() == 1
    assert (await stored(corpus), pending(corpus)) == (2, 0)
    await corpus.writer.delete_document("doc")
    assert (await stored(corpus), pending(corpus)) == (2, 1)
    assert await following.follow() == 1
    assert (await stored(corpus), await following.follow()) == (1, 0)
    assert found(await corpus.search("the spool")) == ["other"]


async def test_moves_and_switches_are_written_to_the_chunks(corpus: Corpus) -> None:
    corpus.add_library("one")
    corpus.add_library("two")
    await corpus.put("doc", "the spool", tag_ids=("one",))
    assert pending(corpus) == 0
    corpus.sql("UPDATE document_tags SET tag_id = 'two'")
    corpus.sql("UPDATE documents SET retrievable = false")
    assert await follower(corpus).follow() == 2
    assert corpus.cluster is not None
    for field, value, count in (("tag_ids", "one", 0), ("tag_ids", "two", 1), ("retrievable", True, 0)):
        query = {"query": {"term": {f"metadata.{field}": value}}}
        assert len(await corpus.cluster.search(corpus.database.index, query)) == count


async def test_a_library_that_changes_while_its_document_is_written_is_followed(
    corpus: Corpus, opensearch: OpenSearchIndex
) -> None:
    corpus.add_library("one")
    await corpus.put("other", "text")
    corpus.sql(
        "INSERT INTO documents (uid, owner_id, title, file_name, mime_type, content_hash, size_bytes) "
        "VALUES ('doc', 'admin', 't', 'f', 'm', 'h', 1)"
    )
    async with through(corpus, opensearch) as faulty:
        faulty.answer, let = holds("_bulk")
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(corpus.put("doc", "the spool"))
            await faulty.asked(1, "_bulk")
            corpus.sql("INSERT INTO document_tags VALUES ('doc', 'one')")
            let.set()
        assert writing.result() == 1
        assert found(await corpus.search("the spool", libraries=("one",))) == ["doc"]
        assert pending(corpus) == 1
        await follower(corpus).follow()
        assert found(await corpus.search("the spool", libraries=("one",))) == ["doc"]


async def test_a_write_that_is_under_way_is_let_be_and_one_that_died_is_swept(
    corpus: Corpus, opensearch: OpenSearchIndex
) -> None:
    await corpus.put("doc", "the old spool")
    async with through(corpus, opensearch) as faulty:
        faulty.answer, let = holds("_refresh")
        following = follower(corpus, intention_s=0.0)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(corpus.put("doc", "the new spool"))
            await faulty.asked(1, "_refresh")
            # Its chunks are written and do not count; it holds its note, whatever its age.
            assert await following.follow() == 0
            assert [hit.content for hit in await corpus.search("the spool")] == ["the old spool"]
            writing.cancel()
        let.set()
    # The write is gone as after a kill -9: nothing was cleaned up.
    assert (await stored(corpus), pending(corpus)) == (2, 1)
    assert [hit.content for hit in await corpus.search("the spool")] == ["the old spool"]
    assert await follower(corpus).follow() == 0  # too young to be given up
    assert await follower(corpus, intention_s=0.0).follow() == 1
    assert (await stored(corpus), pending(corpus)) == (1, 0)


async def test_chunks_that_nobody_could_see_yet_are_swept_too(corpus: Corpus, opensearch: OpenSearchIndex) -> None:
    await corpus.put("doc", "the old spool")
    assert corpus.cluster is not None
    unseen = {"index": {"refresh_interval": "-1"}}
    await corpus.cluster._client.indices.put_settings(index=corpus.database.index, body=unseen)
    async with through(corpus, opensearch) as faulty:
        faulty.answer, let = holds("_refresh")
        writing = asyncio.ensure_future(corpus.put("doc", "the new spool"))
        await faulty.asked(1, "_refresh")
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        let.set()
    assert await follower(corpus, intention_s=0.0).follow() == 1
    assert (await stored(corpus), pending(corpus)) == (1, 0)


async def test_a_write_that_postgres_refuses_leaves_nothing(corpus: Corpus) -> None:
    await corpus.put("doc", "the spool")
    with pytest.raises(UploadProcessingFailed):
        await corpus.put("poison", "a \0 b")
    assert found(await corpus.search("the spool")) == ["doc"]
    await follower(corpus, intention_s=0.0).follow()
    assert await stored(corpus) == 1


async def test_what_fails_is_tried_again(corpus: Corpus, opensearch: OpenSearchIndex) -> None:
    await corpus.put("doc", "the spool")
    await corpus.writer.delete_document("doc")
    async with through(corpus, opensearch) as faulty:
        following = follower(corpus)
        faulty.answer = says(503, "_delete_by_query")
        with pytest.raises(IndexUnavailable):
            await following.follow()
        assert pending(corpus) == 1
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(following.follow_writes())
            await faulty.asked(3, "_delete_by_query")
            faulty.answer = None
            following.wake()
            async with asyncio.timeout(PATIENCE_S):
                while corpus.kpi.registry.get_sample_value("app_index_pending"):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.02)
            running.cancel()
        assert pending(corpus) == 0
    assert await stored(corpus) == 0


async def test_one_process_follows_at_a_time(corpus: Corpus, opensearch: OpenSearchIndex) -> None:
    await corpus.put("doc", "the spool")
    await corpus.writer.delete_document("doc")
    async with through(corpus, opensearch) as faulty:
        faulty.answer, let = holds("_delete_by_query")
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(follower(corpus).follow())
            await faulty.asked(1, "_delete_by_query")
            assert await follower(corpus).follow() == 0
            let.set()
        assert first.result() == 1


@asynccontextmanager
async def through(corpus: Corpus, node: OpenSearchIndex) -> AsyncIterator[FaultyOpenSearch]:
    """Let the corpus speak to its cluster through a proxy, for the block."""
    direct = corpus.cluster
    assert direct is not None
    async with FaultyOpenSearch(node.url) as faulty:
        where = OpenSearch.model_validate({"host": faulty.url, "secure": False})
        cluster = Cluster(where, ClusterRules(search_s=PATIENCE_S))
        corpus.stand_on(cluster)
        try:
            yield faulty
        finally:
            await cluster.aclose()
            corpus.stand_on(direct)
