"""A page of another origin that is authorized reads what knowledge flow answers, and no other does."""

from tests.knowledge_flow_backend.service import BASE, StartKnowledgeFlow

PAGE = "https://portal.example.org"


async def test_an_authorized_page_reads_answers_and_refusals(start_knowledge_flow: StartKnowledgeFlow) -> None:
    security = {"user": {"enabled": False}, "authorized_origins": [PAGE]}
    async with start_knowledge_flow(security=security) as service:
        search, body = f"{BASE}/vector/search", {"question": "What?"}
        wanted = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        async with service.http.options(search, headers={"Origin": PAGE, **wanted}) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        for sent, status in ((body, 200), ({}, 422)):
            async with service.http.post(search, json=sent, headers={"Origin": PAGE}) as response:
                assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
                answer = await response.json()
        assert answer["detail"]["field"] == "question"
        async with service.http.post(search, json=body, headers={"Origin": "https://evil.example"}) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
