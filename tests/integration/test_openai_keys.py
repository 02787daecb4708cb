"""The door of OpenAI's API with API keys: a key's agents, its scopes, and the users whom its holder names."""

import openai
import pytest

from backend_kit.auth import KeyScope
from tests.integration.test_openai_door import GEORGES, USER, client_of, session_of
from tests.support.api_keys import stored_key
from tests.support.people import SECURITY, headers_of

ANNA = {**GEORGES, "name": "Anna"}
ASK = frozenset({KeyScope.ASK})


async def test_a_keys_agents_are_its_models_in_either_header(start_service, database):
    key = stored_key(database, scopes=ASK, agents=("Anna",))
    async with (
        start_service(security=SECURITY, ai={"agents": [GEORGES, ANNA]}) as service,
        client_of(service, key) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["Anna"]
        assert (await client.models.retrieve("Anna")).id == "Anna"
        for call in (
            lambda: client.models.retrieve("Georges"),
            lambda: client.chat.completions.create(model="Georges", messages=[USER]),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                await call()
            assert (refused.value.param, refused.value.code) == ("model", "model_not_found")
        named = {"X-Turnwise-Session": "s1"}
        assert (await client.chat.completions.create(model="Anna", messages=[USER], extra_headers=named)).usage
        [session] = await session_of(service, headers_of("ann"))
        assert session["agent_id"] == "Anna"
        async with service.http.get("/v1/models", headers={"x-api-key": key, "Authorization": ""}) as response:
            assert response.status == 200


async def test_a_key_that_may_not_ask_is_told_so(start_service, database):
    key = stored_key(database, scopes=frozenset({KeyScope.READ}))
    async with start_service(security=SECURITY) as service, client_of(service, key) as client:
        assert [model.id async for model in client.models.list()] == ["Georges"]
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.chat.completions.create(model="Georges", messages=[USER])
    assert (refused.value.param, refused.value.code) == ("scope:ask", "forbidden")
