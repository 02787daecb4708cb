"""A call leaves one log line that can be joined with its turn, and tells its caller where its time went."""

import logging
import re

import pytest

from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow

PARTS = re.compile(r"([a-z_]+);dur=(\d+\.\d{3})(?:;start=(\d+\.\d{3});depth=\d+)?(?:, |$)")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "turnwise.request"]


async def test_a_search_tells_its_phases_in_header_and_log(
    service: RunningKnowledgeFlow, corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    await corpus.put("uid", "The spool keeps a turn.")
    caplog.set_level(logging.INFO, "turnwise.request")
    headers = {"X-Request-ID": "r-1", "X-Exchange-ID": "0b0e6c0c-1f7d"}
    async with service.http.post(
        BASE + "/vector/search", json={"question": "canary spool"}, headers=headers
    ) as response:
        assert response.status == 200
        told = PARTS.findall(response.headers["Server-Timing"])
    assert told[0][0] == "total"
    took = {name: (float(ms), float(start or 0)) for name, ms, start in told}
    assert {"embed_query", "lexical_query", "vector_query", "db_pool_wait"} <= set(took)
    assert all(start + ms <= took["total"][0] + 0.01 for ms, start in took.values())
    [line] = lines(caplog)
    assert re.match(
        r"request_id=r-1 exchange_id=0b0e6c0c-1f7d route=search status=ok total_ms=\d+\.\d{3} (\w+=\d+\.\d{3} ?)+$",
        line,
    )
    assert "canary" not in line
    # Our own name for the whole search: a caller has the same one for its call.
    assert service.value("app_phase_latency_seconds_count", phase="vector_search", status="ok") == 1
    assert " vector_search=" in line
    assert "vector_search" not in took


async def test_a_rerank_keeps_its_own_header_beside_the_timing(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("uid", "The spool keeps a turn.")
    hits = await service.search("spool")
    body = {"question": "spool", "documents": hits}
    async with service.http.post(BASE + "/vector/rerank", json=body) as response:
        assert response.headers["X-Turnwise-Rerank"] == "done"
        assert ", vector_rerank;dur=" in response.headers["Server-Timing"]


@pytest.mark.parametrize("given", ["a b", 'x"y', "n=1", "x" * 129])
async def test_an_exchange_id_that_would_break_the_line_is_left_out(
    service: RunningKnowledgeFlow, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level(logging.INFO, "turnwise.request")
    await service.post("/vector/search", {"question": "x"}, headers={"X-Exchange-ID": given})
    [line] = lines(caplog)
    assert " exchange_id=none route=search " in line


async def test_a_refused_search_says_its_code(service: RunningKnowledgeFlow, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnwise.request")
    await service.post("/vector/search", {"question": "x" * 32_001}, status=422)
    [line] = lines(caplog)
    assert " status=message_too_long " in line
