"""Questions that show images, on real services: asked, told from history, refused, and of a hosted graph."""

from typing import Any

from tests.integration.test_attachments import knowledge, settings
from tests.integration.test_images import taken
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow
from tests.support.following import ask_frame
from tests.support.mock_llm import MockModel
from tests.support.pictures import encoded, halves
from tests.support.service import RunningService, StartService, hear_until, say

__all__ = ["knowledge"]
"""The fixture of attachments."""
AGENTS: list[dict[str, Any]] = [
    {"name": "Georges", "class_path": "agentic_backend.agent.plain", "further_models": ["blind"]},
    {"name": "Sammy", "class_path": "agentic_backend.agent.tools"},
    {"name": "Hosted", "graph": "tests.integration.seeing_graph:graph", "images": True},
    {"name": "Textual", "graph": "tests.integration.seeing_graph:graph"},
]


def seeing(port: int, mock_llm: MockModel) -> dict[str, Any]:
    """The service with a model that sees images and one that does not."""
    model = {"name": "mock;ttft=0;gap=0", "vision": True, "settings": {"base_url": mock_llm.base_url}}
    blind = {"id": "blind", "name": "mock;ttft=0;gap=0"}
    return settings(port, agents=AGENTS, default_chat_model=model, chat_models=[blind])


async def asked(service: RunningService, session_id: str, exchange_id: str, **ask: Any) -> dict[str, Any]:
    """The end of a turn."""
    async with service.native() as socket:
        await say(socket, **ask_frame(session_id, exchange_id, **ask))
        heard = await hear_until(socket, "final", "error")
        return heard[-1]


def answer(end: dict[str, Any]) -> str:
    assert end["type"] == "final", end
    return "".join(part["text"] for part in end["messages"][-1]["parts"] if part["type"] == "text")


def refusal(end: dict[str, Any]) -> tuple[str, str | None]:
    return end["code"], end.get("field")


async def test_a_question_shows_an_image_and_so_does_what_follows(
    start_service: StartService, knowledge: RunningKnowledgeFlow, mock_llm: MockModel
) -> None:
    async with start_service(**seeing(knowledge.port, mock_llm)) as service:
        session_id = await service.create_session(agent_id="Georges")
        image = await taken(service, session_id, "half.png", encoded(halves(), "PNG"))
        end = await asked(service, session_id, "e1", message="What is this?", images=[image["attachment_id"]])
        assert answer(end).startswith("I was shown image/png of 1 KB.")
        part = {"type": "image_url", "url": f"chatbot/upload/{image['attachment_id']}/image", "alt": "half.png"}
        assert end["messages"][0]["parts"] == [{"type": "text", "text": "What is this?"}, part]
        assert answer(await asked(service, session_id, "e2", message="And left of it?")).startswith("I was shown")
        blind = await asked(service, session_id, "e3", message="Do you see it?", runtime_context={"model": "blind"})
        assert "I was shown" not in answer(blind)
        messages = await service.get(f"/chatbot/session/{session_id}/history")
        assert messages[0]["parts"][1] == part
        (listed,) = await service.get("/chatbot/sessions")
        assert listed["attachments"][0]["mime"] == "image/png"
    async with start_service(**seeing(1, mock_llm)) as service:  # read from Postgres, without knowledge flow
        again = await asked(service, session_id, "e4", message="", regenerate="e1")
        assert answer(again).startswith("I was shown image/png")
        assert again["messages"][0]["parts"][1] == part
        assert answer(await asked(service, session_id, "e5", message="And now?")).startswith("I was shown")


async def test_an_agent_with_tools_and_a_hosted_graph_see_it(
    start_service: StartService, knowledge: RunningKnowledgeFlow, mock_llm: MockModel
) -> None:
    async with start_service(**seeing(knowledge.port, mock_llm)) as service:
        for agent in ("Sammy", "Hosted"):
            session_id = await service.create_session(agent_id=agent)
            image = await taken(service, session_id, "half.webp", encoded(halves(), "WEBP"))
            ask = {"agent_id": agent, "message": "What is this?", "images": [image["attachment_id"]]}
            assert "image/webp" in answer(await asked(service, session_id, f"of-{agent}", **ask))


async def test_what_cannot_be_shown_is_refused_and_leaves_nothing(
    start_service: StartService, knowledge: RunningKnowledgeFlow, mock_llm: MockModel
) -> None:
    async with start_service(**seeing(knowledge.port, mock_llm)) as service:
        session_id, other = [await service.create_session(agent_id="Georges") for _ in range(2)]
        image = (await taken(service, session_id, "half.jpg", encoded(halves(), "JPEG")))["attachment_id"]
        blind = {"runtime_context": {"model": "blind"}}
        for ask, code in (
            ({"images": [image], **blind}, "model_without_vision"),
            ({"images": [image], "agent_id": "Textual"}, "model_without_vision"),
            ({"images": ["unknown"]}, "attachment_not_found"),
            ({"images": [image] * 11}, "bad_request"),
            ({"images": [image], "message": "", "regenerate": "e1"}, "bad_request"),
            ({"images": "x"}, "bad_request"),
        ):
            assert refusal(await asked(service, session_id, "e1", **ask)) == (code, "images"), ask
        assert refusal(await asked(service, other, "e1", images=[image])) == ("attachment_not_found", "images")
        for one in (session_id, other):
            assert await service.get(f"/chatbot/session/{one}/history") == []
        agents = {agent["id"]: agent["model_choices"] for agent in await service.get("/agents")}
        assert [one["vision"] for one in agents["Georges"]] == [True, False]
        assert [agents[name][0]["vision"] for name in ("Sammy", "Hosted", "Textual")] == [True, True, False]
