"""Search and rerank as any HTTP client sees them."""

import asyncio
import io
import json
import time
from typing import Any

import jwt
import pytest

from tests.knowledge_flow_backend.corpus import Corpus, vector
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

SEARCH, RERANK = "/vector/search", "/vector/rerank"
SECRET = "0123456789abcdef0123456789abcdef"
SPOOL = "A finished turn is appended to the spool before the final event is sent."
HIT_FIELDS = {
    "content", "uid", "title", "score", "rank", "page", "section", "viewer_fragment", "author", "created", "modified",
    "file_name", "file_path", "repository", "pull_location", "language", "mime_type", "type", "tag_ids", "tag_names",
    "tag_full_paths", "preview_url", "preview_at_url", "repo_url", "citation_url", "license", "confidential",
    "embedding_model", "vector_index", "token_count", "retrieved_at", "retrieval_session_id",
}  # fmt: skip


async def code(service: RunningKnowledgeFlow, path: str, body: Any, status: int, **options: Any) -> str:
    """The code of a refused request; its text holds nothing of the request."""
    async with service.http.post(BASE + path, json=body, **options) as response:
        text = await response.text()
        assert response.status == status, text
    assert "canary" not in text
    detail = json.loads(text)["detail"]
    assert set(detail) - {"field"} == {"code", "message"}
    return str(detail["code"])


async def test_a_hit_has_the_shape_of_the_contract(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    corpus.add_library("lib", name="Docs", path="Team")
    await corpus.put("uid/1", SPOOL, tag_ids=("lib",), author="Ada")
    (hit,) = await service.search("how is a turn appended to the spool?", session_id="s1")
    ((chunk,),) = corpus.sql("SELECT uid FROM chunks")
    assert set(hit) == HIT_FIELDS
    assert hit["content"] == SPOOL
    assert (hit["uid"], hit["title"], hit["rank"], hit["page"]) == ("uid/1", "Title of uid/1", 1, 1)
    assert hit["citation_url"] == hit["preview_at_url"] == f"/documents/uid%2F1#chunk={chunk}"
    assert (hit["preview_url"], hit["viewer_fragment"]) == ("/documents/uid%2F1", f"chunk={chunk}")
    assert (hit["section"], hit["author"], hit["file_name"]) == ("Part > One", "Ada", "uid/1.md")
    assert (hit["tag_ids"], hit["tag_names"], hit["tag_full_paths"]) == (["lib"], ["Docs"], ["Team/Docs"])
    assert (hit["embedding_model"], hit["vector_index"]) == ("mock", "turnwise-chunks")
    assert hit["retrieval_session_id"] == "s1"
    assert hit["retrieved_at"].endswith("Z")
    cosine = float(vector("how is a turn appended to the spool?") @ vector(SPOOL))
    assert (hit["score"], hit["confidential"]) == (pytest.approx(0.6 + 0.4 * cosine, abs=1e-6), False)


async def test_every_switch_of_a_search_works_over_the_wire(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    corpus.add_library("lib")
    await corpus.put("in", "the spool of in", tag_ids=("lib",))
    await corpus.put("out", "the spool of out")
    await corpus.put("attached", "the spool attached", session_id="s1")

    async def uids(**fields: Any) -> list[str]:
        return sorted(hit["uid"] for hit in await service.search("the spool", **fields))

    for policy in ("hybrid", "strict", "semantic", None):
        assert await uids(search_policy=policy) == ["in", "out"]
    assert await uids(document_library_tags_ids=["lib"]) == ["in"]
    assert await uids(document_library_tags_ids=["unknown"]) == []
    assert await uids(document_library_tags_ids=[]) == ["in", "out"]
    assert await uids(document_uids=["out", "attached"]) == ["out"]
    assert await uids(session_id="s1") == ["attached", "in", "out"]
    assert await uids(session_id="s1", include_session_scope=False) == ["in", "out"]
    assert await uids(session_id="s1", include_corpus_scope=False) == ["attached"]
    assert await uids(include_corpus_scope=False) == []
    assert await uids(top_k=1, unknown_key=1, document_uids=None) in (["in"], ["out"])


async def test_an_empty_index_is_an_empty_list(service: RunningKnowledgeFlow) -> None:
    for policy in ("hybrid", "strict", "semantic"):
        assert await service.search("anything", search_policy=policy) == []
    assert service.value("app_kf_search_empty_total") == 3
    assert service.value("app_kf_request_seconds_count", route="search", status="ok") == 3


@pytest.mark.parametrize(
    "change",
    [
        {"include_session_scope": "yes"}, {"include_corpus_scope": 1},
        {"top_k": 0}, {"top_k": 101}, {"top_k": -1}, {"top_k": 1.5}, {"top_k": "many canary"}, {"top_k": None},
        {"top_k": "5"}, {"top_k": True},
        {"question": None}, {"question": 5}, {"question": ["canary"]}, {"question": "canary \0"},
        {"search_policy": "canary"}, {"document_uids": "canary"}, {"document_uids": [1]},
        {"document_uids": ["x"] * 1001}, {"document_library_tags_ids": ["canary\0"]}, {"session_id": "x" * 300},
        {"session_id": {}}, {"include_corpus_scope": "canary"},
    ],
)  # fmt: skip
async def test_a_search_out_of_its_bounds_is_refused(service: RunningKnowledgeFlow, change: dict[str, Any]) -> None:
    assert await code(service, SEARCH, {"question": "q", **change}, 422) == "bad_request"


@pytest.mark.parametrize("top_k", [1, 100])
async def test_the_bounds_themselves_are_allowed(service: RunningKnowledgeFlow, corpus: Corpus, top_k: int) -> None:
    await corpus.put("long", *(f"the spool, passage {number}" for number in range(110)))
    assert len(await service.search("the spool", top_k=top_k)) == top_k


@pytest.mark.parametrize("path", [SEARCH, RERANK])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"canary",
        b"[]",
        b"null",
        b'"canary"',
        b"{",
        b'{"question": "\\ud800", "documents": []}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"question": NaN}',
    ],
)
async def test_a_body_that_is_no_request_is_refused(service: RunningKnowledgeFlow, path: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with service.http.post(BASE + path, data=body, headers=headers) as response:
        text = await response.text()
        assert response.status in (400, 422), text
        assert "canary" not in text
    assert await service.search("and it goes on") == []


@pytest.mark.parametrize("path", [SEARCH, RERANK])
async def test_a_question_that_is_too_long_has_its_code(service: RunningKnowledgeFlow, path: str) -> None:
    body = {"question": "canary " * 5000, "documents": []}
    assert await code(service, path, body, 422) == "message_too_long"


@pytest.mark.parametrize("path", [SEARCH, RERANK])
@pytest.mark.parametrize("announced", [True, False])
async def test_ten_megabytes_are_too_large(service: RunningKnowledgeFlow, path: str, announced: bool) -> None:
    """By its head where it says how long it is, else while it comes. Raw: a client may still be sending then."""
    head = "content-length: 10485760" if announced else "transfer-encoding: chunked"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    request = f"POST {BASE}{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
    writer.write(request.encode())
    if not announced:
        writer.write(b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(160)))
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.startswith(b"content-length"))
    assert json.loads(await reader.readexactly(length))["detail"]["code"] == "too_large"
    writer.close()


@pytest.mark.parametrize(("path", "status"), [(SEARCH, 413), (RERANK, 422)])
async def test_only_what_brings_passages_may_be_larger_than_a_mebibyte(
    service: RunningKnowledgeFlow, path: str, status: int
) -> None:
    """Reading a body holds the event loop."""
    data = json.dumps({"question": "q", "documents": [], "top_r": 0, "more": "x" * (1 << 20)})
    body = io.BytesIO(data.encode())
    async with service.http.post(BASE + path, data=body, headers={"Content-Type": "application/json"}) as response:
        assert response.status == status


async def test_a_rerank_changes_score_and_rank_and_keeps_the_old_ones(
    service: RunningKnowledgeFlow, corpus: Corpus
) -> None:
    for number, text in enumerate(["Postgres is a database.", "A turn begins.", SPOOL]):
        await corpus.put(f"doc{number}", text)
    question = "when is a finished turn appended to the spool?"
    hits = await service.search(question, search_policy="semantic")
    hits.sort(key=lambda hit: bool(hit["content"] == SPOOL))
    body = {"question": question, "documents": [{**hit, "extra": {"kept": 1}} for hit in hits], "top_r": 2}
    async with service.http.post(BASE + RERANK, json=body) as response:
        assert response.headers["X-Turnwise-Rerank"] == "done"
        first, second = await response.json()
    assert first["content"] == SPOOL
    assert (first["rank"], second["rank"]) == (1, 2)
    assert first["score"] >= second["score"]
    assert (first["retrieval_score"], first["retrieval_rank"]) == (hits[-1]["score"], hits[-1]["rank"])
    unchanged = HIT_FIELDS - {"score", "rank"}
    assert {key: first[key] for key in unchanged} == {key: hits[-1][key] for key in unchanged}
    assert first["extra"] == {"kept": 1}
    # What a second rerank remembers is still the retrieval.
    (again,) = await service.post(RERANK, {**body, "documents": [first], "top_r": 1})
    assert (again["retrieval_score"], again["retrieval_rank"]) == (hits[-1]["score"], hits[-1]["rank"])


async def test_a_rerank_takes_the_four_required_fields(service: RunningKnowledgeFlow) -> None:
    least = {"content": "the spool", "uid": "u", "title": "t", "score": 0.5}
    (hit,) = await service.post(RERANK, {"question": "spool", "documents": [least]})
    assert (hit["rank"], hit["retrieval_score"], hit["retrieval_rank"]) == (1, 0.5, None)
    assert await service.post(RERANK, {"question": "spool", "documents": []}) == []
    for missing in least:
        body = {"question": "q", "documents": [{key: value for key, value in least.items() if key != missing}]}
        assert await code(service, RERANK, body, 422) == "bad_request"
    bad_hits = (
        {"score": "0.5"},
        {"score": True},
        {"rank": "1"},
        {"confidential": "yes"},
        {"token_count": True},
        {"citation_url": "/documents/u#chunk=\ud800"},
    )
    others: list[dict[str, Any]] = [{"documents": [{**least, **bad}]} for bad in bad_hits]
    others += [{"top_r": 0}, {"top_r": "1"}, {"top_r": True}, {"documents": [least] * 1001}, {"documents": None}]
    for bad in others:
        assert await code(service, RERANK, {"question": "q", "documents": [least], **bad}, 422) == "bad_request"


async def test_one_embedding_serves_a_search_and_its_rerank(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("doc", SPOOL)
    async with asyncio.timeout(PATIENCE_S):
        while not service.value("app_embed_batch_size_sum"):  # noqa: ASYNC110 - a metric tells nobody
            await asyncio.sleep(0.01)  # at the start one text is embedded, for the length of its vector
    hits = await service.search("the spool")
    await service.post(RERANK, {"question": "the spool", "documents": hits})
    assert service.value("app_embed_batch_size_sum") == 2
    assert service.value("app_phase_latency_seconds_count", phase="embed_query", status="ok") == 1


async def test_a_rerank_that_cannot_be_done_is_marked_and_keeps_the_list(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    nobody = {
        "embedding_model": {
            "settings": {"base_url": f"http://127.0.0.1:{free_port()}/v1", "max_retries": 0},
            "provider": "openai",
            "name": "mock",
        }
    }
    async with start_knowledge_flow(**nobody) as service:
        documents = [{"content": text, "uid": "u", "title": "t", "score": 1.0, "rank": 7} for text in "abc"]
        body = {"question": "q", "documents": documents, "top_r": 2}
        async with service.http.post(BASE + RERANK, json=body) as response:
            assert (response.status, response.headers["X-Turnwise-Rerank"]) == (200, "skipped")
            hits = await response.json()
        assert [(hit["content"], hit["score"], hit["rank"]) for hit in hits] == [("a", 1.0, 7), ("b", 1.0, 7)]
        assert service.value("app_rerank_skipped_total", cause="failed") == 1
        # A search needs the vector: it says that it cannot, and the words alone still do.
        await corpus.put("doc", SPOOL)
        assert await code(service, SEARCH, {"question": "spool"}, 503) == "kf_unavailable"
        assert len(await service.search("spool", search_policy="strict")) == 1


async def test_a_search_past_its_deadline_is_unavailable_not_endless(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await corpus.put("doc", SPOOL)
    async with (
        start_knowledge_flow(deadlines={"search_s": 0.0001}) as service,
        service.http.post(BASE + SEARCH, json={"question": "spool"}) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await response.json())["detail"]["code"] == "kf_unavailable"


async def test_above_max_searches_calls_wait_for_their_turn(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await corpus.put("doc", SPOOL)
    async with start_knowledge_flow(limits={"max_searches": 1}) as service:
        answers = await asyncio.gather(*(service.search(f"spool {number}") for number in range(12)))
        assert [len(hits) for hits in answers] == [1] * 12


async def test_without_a_token_there_is_no_answer_and_each_user_finds_their_own(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    corpus.add_library("adas", owner="ada")
    corpus.add_library("team", owner="ada", reader_groups=["team"])
    await corpus.put("private", "the spool", owner="ada", tag_ids=("adas",))
    await corpus.put("shared", "the spool", owner="ada", tag_ids=("team",))
    security = {"user": {"enabled": True, "client_id": "turnwise"}, "hs256_secret": SECRET}
    async with start_knowledge_flow(security=security) as service:
        for path in (SEARCH, RERANK):
            async with service.http.post(BASE + path, json={"question": "q", "documents": []}) as response:
                assert response.status == 401

        async def uids(user: str, groups: list[str], **fields: Any) -> list[str]:
            headers = {"Authorization": f"Bearer {_token(user, groups)}"}
            body = {"question": "the spool", **fields}
            return sorted(hit["uid"] for hit in await service.post(SEARCH, body, headers=headers))

        assert await uids("ada", []) == ["private", "shared"]
        assert await uids("bob", ["team"]) == ["shared"]
        assert await uids("eve", []) == []
        assert await uids("eve", [], document_uids=["private"], document_library_tags_ids=["adas"]) == []


def _token(user: str, groups: list[str]) -> str:
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + 600, "aud": "turnwise", "groups": groups}
    return jwt.encode(claims, SECRET, algorithm="HS256")


@pytest.mark.parametrize("policy", ["hybrid", "strict", "semantic"])
async def test_an_index_that_fails_is_unavailable_without_a_word_of_sql(
    service: RunningKnowledgeFlow, corpus: Corpus, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    await corpus.put("doc", SPOOL)
    corpus.sql("ALTER TABLE document_tags RENAME TO canary")
    body = {"question": "canary spool", "search_policy": policy}
    assert await code(service, SEARCH, body, 503) == "kf_unavailable"
    assert "search failed: sqlstate=42P01" in caplog.text
    corpus.sql("ALTER TABLE canary RENAME TO document_tags")
    assert len(await service.search("spool", search_policy=policy)) == 1


async def test_connections_that_the_server_ended_are_replaced(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("doc", SPOOL)
    await asyncio.gather(*(service.search("spool") for _ in range(12)))
    assert service.service.running.database.main.stats().idle > 1
    corpus.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'turnwise-knowledge-main'"
    )
    # The first one to find a dead connection fails, and takes the others with it out of the pool.
    async with service.http.post(BASE + SEARCH, json={"question": "spool"}) as response:
        assert response.status in (200, 503)
    assert [len(hits) for hits in await asyncio.gather(*(service.search("spool") for _ in range(12)))] == [1] * 12
