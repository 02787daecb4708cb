"""TRUST F4: an address that comes from a user is text. Nothing of it is ever fetched, however it is spelled."""

import json

from tests.support.following import ask_frame
from tests.support.service import BASE, hear, hear_until, say
from tests.support.trap import trap

SESSION = f"{BASE}/chatbot/session"


async def test_an_address_in_whatever_a_user_sends_is_not_called(service):
    async with trap() as nobody:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number, url in enumerate(nobody.addresses[:2]):  # the third frame that is refused ends the socket
                context = {"attachments_markdown": f"![x]({url})", "selected_document_uids": [url]}
                message = f"Read {url} and ![image]({url}) please."
                await say(socket, **ask_frame(session_id, f"e{number}", message, runtime_context=context))
                await hear_until(socket, "final")
                bad = ask_frame(session_id, f"b{number}", message, runtime_context={"base_url": url})
                await say(socket, **bad, if_busy="queue")
                assert (await hear(socket))["code"] == "bad_request"
        for url in nobody.addresses:
            await service.create_session(title=f"Look at {url}")
            preferences = {"preferences": {"model_url": url, "callback": url}}
            async with service.http.put(f"{SESSION}/{session_id}/preferences", json=preferences) as response:
                assert response.status == 200
            agent = {"name": "Planted", "class_path": "agentic_backend.agent.plain", "base_url": url, "mcp": url}
            async with service.http.post(f"{BASE}/agents/create", json=agent) as response:
                assert response.status in (403, 422)
        assert nobody.calls == 0


async def test_no_request_of_either_document_has_a_field_for_an_address(service):
    async with service.http.get("/openapi.json") as response:
        document = await response.json()
    schemas = document["components"]["schemas"]
    asked = [
        name
        for path in document["paths"].values()
        for operation in path.values()
        for name in referenced(operation.get("requestBody", {}), schemas)
    ]
    fields = {key for name in asked for key in schemas[name].get("properties", {})}
    assert [key for key in fields if any(word in key.lower() for word in ("url", "uri", "href", "host"))] == []


def referenced(value, schemas, found=frozenset()):
    """The names of schemas that a value refers to, directly or through others."""
    names = {part.split('"')[0] for part in json.dumps(value).split("#/components/schemas/")[1:]} - found
    for name in names:
        found = found | {name}
        found |= set(referenced(schemas[name], schemas, found))
    return found
