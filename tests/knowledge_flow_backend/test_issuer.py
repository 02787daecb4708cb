"""Knowledge flow verifies the tokens that the agentic service hands on by the same issuer's keys."""

from typing import Any

import pytest

from tests.knowledge_flow_backend.service import StartKnowledgeFlow
from tests.support.issuer import CLIENT, issuer

BASE = "/knowledge-flow/v1"


@pytest.mark.parametrize(("changes", "status"), [({}, 200), ({"azp": "other"}, 401), ({"aud": "account"}, 401)])
async def test_tokens_of_its_client_count(
    start_knowledge_flow: StartKnowledgeFlow, changes: dict[str, Any], status: int
) -> None:
    async with issuer() as made:
        security = {"user": {"enabled": True, "client_id": CLIENT, "realm_url": made.url}}
        async with start_knowledge_flow(security=security) as service:
            headers = {"Authorization": f"Bearer {made.token(**changes)}"}
            async with service.http.get(f"{BASE}/tags", headers=headers) as response:
                assert response.status == status
            async with service.http.get(f"{BASE}/ready") as response:
                assert (await response.json())["dependencies"]["identity_provider"] == "up"
