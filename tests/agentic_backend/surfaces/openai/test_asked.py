import pytest

from agentic_backend.errors import AgentNotFound
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.surfaces.openai.asked import Named, is_task, listed, named, session_id_of
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import Conversation
from tests.agentic_backend.surfaces.openai.front_ends import (
    LIBRE_CHAT_HEADERS,
    NO_TASKS,
    OPEN_WEBUI_HEADERS,
    TASKS,
)


def lower(headers):
    return {name.lower(): value for name, value in headers.items()}


class Agents:
    """A catalog of names alone."""

    def __init__(self, *names, models=("default",)):
        self.names = names
        self.models = models

    def __contains__(self, name):
        return name in self.names

    def list(self):
        choices = [{"id": model, "title": model.title(), "description": ""} for model in self.models]
        agents = [{"id": name, "name": name.title(), "model_choices": choices} for name in (*self.names, "disabled")]
        agents[0]["tuning"] = {"description": "Knows."}
        return agents


def conversation(text, *earlier):
    return Conversation(tuple(HistoryItem(role, "x") for role in earlier), text, "messages[0].content")


def test_a_session_is_one_of_its_user_by_the_first_name_that_is_there():
    headers = {"x-turnwise-session": "a", "x-openwebui-chat-id": "b", "x-conversation-id": "c"}
    ids = []
    for _ in range(3):
        ids.append(session_id_of("ann", headers, {"session_id": "d"}))
        headers.pop(next(iter(headers)))
    ids.append(session_id_of("ann", {}, {"session_id": "d"}))
    assert len(set(ids)) == 4
    assert ids == [session_id_of("ann", {}, {"session_id": name}) for name in "abcd"]
    assert session_id_of("bob", {}, {"session_id": "d"}) != ids[3]
    assert session_id_of("ann", {"x-turnwise-session": " "}, {}) is None
    assert session_id_of("ann", {}, {}) is None


@pytest.mark.parametrize("name", ["local", "local:8Zk3mW0y", " local:8Zk3mW0y"])
def test_a_temporary_chat_of_open_webui_is_no_session(name):
    assert session_id_of("ann", {"x-openwebui-chat-id": name}, {}) is None
    assert session_id_of("ann", {"x-openwebui-chat-id": "locality"}, {}) is not None
    assert session_id_of("ann", {"x-turnwise-session": name}, {}) is not None


def test_the_id_of_a_name_never_changes():
    assert session_id_of("ann", {}, {"session_id": "d"}) == "2dc8f406-d7a3-5102-b4f5-b5c0229e20e6"


def test_front_ends_name_their_conversations():
    assert session_id_of("ann", lower(OPEN_WEBUI_HEADERS), {}) is not None
    assert session_id_of("ann", lower(LIBRE_CHAT_HEADERS), {}) is not None


@pytest.mark.parametrize(("headers", "metadata"), [({"x-conversation-id": "x" * 513}, {}), ({}, {"session_id": 3})])
def test_a_bad_name_of_a_session_is_refused(headers, metadata):
    with pytest.raises(Refused):
        session_id_of("ann", headers, metadata)


@pytest.mark.parametrize("kind", TASKS)
def test_what_a_front_end_asks_about_a_chat_is_a_task(kind):
    assert is_task(conversation(TASKS[kind]))
    assert is_task(conversation(TASKS[kind], "system"))
    assert not is_task(conversation(TASKS[kind], "user", "assistant"))


@pytest.mark.parametrize("kind", NO_TASKS)
def test_a_persons_question_is_none(kind):
    assert not is_task(conversation(NO_TASKS[kind]))


def test_a_model_names_an_agent_and_perhaps_its_model():
    agents = Agents("rico", "who@home")
    assert named("rico", agents) == Named("rico")
    assert named("rico@large", agents) == Named("rico", "large")
    assert named("rico@open@large", agents) == Named("rico", "open@large")
    assert named("who@home", agents) == Named("who@home")
    assert named("who@home@large", agents) == Named("who@home", "large")
    for unknown in ("", "rick", "rico@", "@large", "who"):
        with pytest.raises(AgentNotFound) as caught:
            named(unknown, agents)
        assert caught.value.field == "model"


def test_the_list_has_what_its_reader_may_ask():
    models = listed(Agents("rico", "sammy"), lambda name: name != "sammy", 5)
    assert models == [
        {"id": "rico", "object": "model", "created": 5, "owned_by": "turnwise", "name": "Rico", "description": "Knows."}
    ]
    models = listed(Agents("rico", models=("default", "large")), lambda _: True, 5)
    assert [model["id"] for model in models] == ["rico", "rico@default", "rico@large"]
    assert models[2]["name"] == "Rico (Large)"
