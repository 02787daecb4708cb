"""The index is rebuilt and exchanged under searches and writes: nothing is lost and nothing doubled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from knowledge_flow_backend.cli.__main__ import main
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.engines.opensearch.reindex import NothingToRebuild, Reindexer
from knowledge_flow_backend.errors import IndexUnavailable, SchemaMismatch
from tests.knowledge_flow_backend.corpus import POLICIES, Corpus, filled, found
from tests.knowledge_flow_backend.engines.opensearch.test_follow import EVERYTHING
from tests.support.opensearch import OpenSearchIndex
from tests.support.postgres import Database

pytestmark = pytest.mark.java


@pytest.fixture
async def corpus(database: Database, opensearch: OpenSearchIndex) -> AsyncIterator[Corpus]:
    """An index in OpenSearch."""
    async with Corpus.on_opensearch(database, opensearch) as made:
        yield made


def reindexer(corpus: Corpus, **rules: Any) -> Reindexer:
    return Reindexer(corpus.database, on(corpus), **{"grace_s": 0.0, "page": 4, **rules})


def on(corpus: Corpus) -> Cluster:
    assert corpus.cluster is not None
    return corpus.cluster


async def test_everything_is_in_the_new_index_and_the_old_one_is_gone(corpus: Corpus) -> None:
    corpus.add_library("one")
    await filled(corpus)
    await corpus.put("long", *(f"the spool, passage {number}" for number in range(11)), tag_ids=("one",))
    await corpus.put("attached", "the spool", session_id="s1")
    before = {policy: await corpus.search("the spool", policy, session_id="s1") for policy in POLICIES}
    told: list[str] = []
    done = await reindexer(corpus, say=told.append).rebuild_index()
    name = corpus.database.index
    assert (done.name, done.documents) == (f"{name}-000002", 5)
    assert list(await on(corpus).mappings(f"{name}*")) == [f"{name}-000002"]
    assert len(await on(corpus).search(name, EVERYTHING)) == 15
    for policy in POLICIES:
        after = await corpus.search("the spool", policy, session_id="s1")
        assert [hit.chunk_uid for hit in after] == [hit.chunk_uid for hit in before[policy]]
    assert len(await corpus.search("the spool", libraries=("one",))) == 10
    assert told[-1] == f"{name} stands for {name}-000002 now, with 5 documents"
    await corpus.put("spool", "written behind the exchange")
    assert (await corpus.search("written behind", "strict"))[0].content == "written behind the exchange"


class Changing:
    """Thirty documents, of which every third one is replaced again and again, and one of them deleted."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self.versions = dict.fromkeys(range(30), 1)
        self.stop = asyncio.Event()

    def texts(self) -> set[str]:
        return {f"the spool, version {version} of {number}" for number, version in self.versions.items()}

    async def write(self) -> None:
        for number in self.versions:
            await self._corpus.put(f"doc{number}", f"the spool, version 1 of {number}")

    async def change(self) -> None:
        version = 1
        while not self.stop.is_set():
            version += 1
            for number in range(0, 30, 3):
                if number in self.versions:
                    await self._corpus.put(f"doc{number}", f"the spool, version {version} of {number}")
                    self.versions[number] = version
            if version == 3:
                await self._corpus.writer.delete_document("doc0")
                del self.versions[0]

    async def read(self) -> int:
        searches = 0
        while not self.stop.is_set():
            documents = found(await self._corpus.search("the spool", "strict", limit=100, candidates=100))
            assert len(documents) == len(set(documents))
            assert set(documents) | {"doc0"} == {f"doc{number}" for number in range(30)}
            searches += 1
        return searches


async def test_writes_and_searches_go_on_and_nothing_is_lost(corpus: Corpus) -> None:
    changing = Changing(corpus)
    await changing.write()
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(changing.read())
        tasks.create_task(changing.change())
        for _ in range(2):
            await reindexer(corpus).rebuild_index()
        changing.stop.set()
    assert reading.result() > 0
    for policy in ("strict", "semantic"):
        hits = await corpus.search("the spool", policy, limit=100, candidates=100)
        assert {hit.content for hit in hits} == changing.texts()
    assert len(await on(corpus).search(corpus.database.index, EVERYTHING)) == len(changing.texts())


async def test_an_index_that_was_lost_is_rebuilt_without_a_model(corpus: Corpus) -> None:
    await filled(corpus)
    await on(corpus).drop(f"{corpus.database.index}-000001")
    with pytest.raises(SchemaMismatch):
        await corpus.index.check()
    with pytest.raises(IndexUnavailable, match="status=404"):
        await corpus.search("spool", "strict")
    await reindexer(corpus).rebuild_index()
    await corpus.index.check()
    for policy in POLICIES:
        assert found(await corpus.search("appended to the spool", policy))[0] == "spool"
    assert corpus.embedder.questions == ["appended to the spool"] * 2


async def test_what_a_rebuild_that_died_left_is_removed(corpus: Corpus) -> None:
    await filled(corpus)
    name = corpus.database.index
    for left in (f"{name}-000002", f"{name}-extra-000001"):
        await on(corpus).create(left, None, {})
    await reindexer(corpus).rebuild_index()
    assert sorted(await on(corpus).mappings(f"{name}*")) == [f"{name}-000002", f"{name}-extra-000001"]
    assert found(await corpus.search("appended to the spool"))[0] == "spool"


async def test_a_second_rebuild_is_refused_while_one_runs(corpus: Corpus) -> None:
    await filled(corpus)
    exchanged = asyncio.Event()
    first = asyncio.ensure_future(reindexer(corpus, grace_s=600.0, say=lambda _text: exchanged.set()).rebuild_index())
    await exchanged.wait()
    with pytest.raises(IndexUnavailable, match="rebuilt already"):
        await reindexer(corpus).rebuild_index()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    # The one that was cut off gave the lock back.
    assert (await reindexer(corpus).rebuild_index()).documents == 3


async def test_what_cannot_be_rebuilt_is_said(corpus: Corpus, database: Database) -> None:
    with pytest.raises(NothingToRebuild, match="is empty"):
        await reindexer(corpus).rebuild_index()
    await filled(corpus)
    corpus.sql("UPDATE index_identity SET token = 'other'")
    with pytest.raises(SchemaMismatch, match="another database"):
        await reindexer(corpus).rebuild_index()
    async with Corpus.on(database, index="in-postgres") as other:
        await filled(other)
        with pytest.raises(NothingToRebuild, match="one of pgvector"):
            await Reindexer(other.database, on(corpus)).rebuild_index()


async def test_the_command_rebuilds_and_says_so(
    corpus: Corpus,
    database: Database,
    opensearch: OpenSearchIndex,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await filled(corpus)
    await corpus.follow()

    def run(kind: str) -> int:
        storage = {
            "postgres": database.settings(),
            "vector_store": {"type": kind, "index": opensearch.name},
            "opensearch": opensearch.settings(),
        }
        file = tmp_path / "configuration.yaml"
        file.write_text(yaml.safe_dump({"security": {"user": {"enabled": False}}, "storage": storage}))
        monkeypatch.setenv("CONFIG_FILE", str(file))
        return main(["reindex"])

    assert await asyncio.to_thread(run, "opensearch") == 0
    assert "stands for" in capfd.readouterr().out
    assert found(await corpus.search("appended to the spool"))[0] == "spool"
    assert await asyncio.to_thread(run, "pgvector") == 2
    assert "nothing to rebuild" in capfd.readouterr().err
