"""`useStream` of LangGraph's SDK, unmodified, with the options and calls of agent-chat-ui: what its page shows."""

import json

import pytest

from tests.agentic_backend.llm.scripted import scripted
from tests.integration.test_human import DONE, NOTES, sections, used
from tests.langgraph.page import chat_page, human_message
from tests.langgraph.stage import AGENTS
from tests.support.api_keys import stored_key
from tests.support.people import SECURITY
from tests.support.telling_agent import ANSWER
from tests.support.tool_model import says
from tests.support.tool_server import tool_server

__all__ = ["tool_server"]

pytestmark = pytest.mark.node

EACH = pytest.mark.parametrize("agent", ["agent", "Georges"], ids=["hosted", "ours"])
SLOW = "mock;tokens=30;gap=50"
ENDLESS = "mock;tokens=2000;gap=50"


def paths(told, method="POST"):
    """The paths that a page asked, without ids."""
    thread = told["threadId"] or "-"
    return [one["path"].replace(thread, "T") for one in told["requests"] if one["method"] == method]


def lines(told, kind):
    """The texts that a page shows of one kind."""
    return [line.removeprefix(f"{kind}: ") for line in told["shown"] if line.startswith(f"{kind}: ")]


@EACH
async def test_a_chat(start_service, agent):
    async with start_service("mock;tokens=5", **AGENTS) as service, chat_page() as page:
        await page.open(service, agent)
        assert (await page.do("info"))["ok"]
        first = await page.say("hi")
        told = await page.until(loading=False, count=2)
        assert (told["error"], told["interrupt"]) == (None, None)
        assert [one["type"] for one in told["messages"]] == ["human", "ai"]
        assert told["messages"][0]["id"] == first  # the client's, so that nothing is shown twice
        assert len(lines(told, "ai")[0].split()) >= 3
        assert paths(told) == ["/threads", "/threads/T/runs/stream", "/threads/T/history"]
        (run,) = told["created"]
        assert run["thread_id"] == told["threadId"]
        again = await page.asked("and again")
        assert lines(again, "human") == ["hi", "and again"]
        assert again["messages"][:2] == told["messages"][:2]
        # What a page shows that comes later is the same.
        await page.reload(told["threadId"])
        later = await page.until(fetched=True, count=4)
        assert later["shown"] == again["shown"]
        assert [one["id"] for one in later["messages"]] == [one["id"] for one in again["messages"]]


async def test_the_answer_grows_as_it_comes(start_service):
    async with start_service(SLOW, **AGENTS) as service, chat_page() as page:
        await page.open(service, "agent")
        await page.say("slow")
        part = await page.until(contains="w2 ")
        assert part["loading"]
        whole = await page.until(loading=False)
        assert lines(whole, "ai") == ["".join(f"w{number} " for number in range(30))]
        # One answer throughout: the id of its fragments is the id that is kept.
        assert part["messages"][-1]["id"] == whole["messages"][-1]["id"]


@EACH
async def test_stop_keeps_what_was_shown(start_service, agent):
    async with start_service(ENDLESS, **AGENTS) as service, chat_page() as page:
        await page.open(service, agent, reconnectOnMount=True)
        await page.say("long")
        shown = await until_words(page, 3)
        told = await page.do("stop")
        assert not told["loading"]
        assert any("/cancel?wait=0&action=interrupt" in path for path in paths(told)), paths(told)
        (kept,) = lines(told, "ai")
        assert kept.startswith(lines(shown, "ai")[0].strip())
        assert told["error"] is None
        assert told["interrupt"] is None
        await page.reload(told["threadId"])
        later = await page.until(fetched=True, count=2)
        (still,) = lines(later, "ai")
        assert still.startswith(lines(shown, "ai")[0].strip())
        # And the conversation goes on.
        assert (await page.do("stop"))["loading"] is False
        await page.say("long")
        await page.until(count=4)
        await page.do("stop")


@EACH
async def test_stop_of_a_run_that_ends_with_its_connection_keeps_what_was_shown(start_service, agent):
    """As the hook does by default: it drops the connection, and reads the history at once."""
    async with start_service(ENDLESS, **AGENTS) as service, chat_page() as page:
        await page.open(service, agent)
        await page.do("submit", values={"messages": [human_message("long")]})
        shown = await until_words(page, 3)
        assert shown["requests"][-1]["body"]["on_disconnect"] == "cancel"
        told = await page.do("stop")
        assert not told["loading"]
        assert lines(told, "ai")[0].startswith(lines(shown, "ai")[0].strip())
        assert (told["error"], told["interrupt"]) == (None, None)
        assert not [path for path in paths(told) if "/cancel" in path]


async def test_a_page_with_a_key(start_service, database):
    async with start_service("mock;tokens=3", security=SECURITY, **AGENTS) as service, chat_page() as page:
        await page.open(service, "Georges", headers={}, apiKey=stored_key(database, "ann"))
        assert (await page.do("info"))["ok"]
        told = await page.asked("hi")
        assert (len(told["messages"]), told["error"]) == (2, None)
        (thread,) = (await page.do("threads", query={"limit": 100}))["threads"]
        assert thread["thread_id"] == told["threadId"]
        await page.open(service, "Georges", headers={}, apiKey=stored_key(database, "bob"))
        assert (await page.do("threads", query={"limit": 100}))["threads"] == []


async def until_words(page, count):
    """What a page shows once an answer has so many words."""
    told = await page.until(count=2)
    while len((lines(told, "ai") or [""])[0].split()) < count:
        told = await page.do("next")
    return told


@EACH
async def test_a_reload_in_mid_answer_goes_on(start_service, agent):
    async with start_service(SLOW, **AGENTS) as service, chat_page() as page:
        await page.open(service, agent, reconnectOnMount=True)
        await page.say("slow")
        before = await until_words(page, 3)
        await page.reload(before["threadId"])
        told = await page.until(loading=True)
        told = await page.until(loading=False, count=2)
        assert told["error"] is None
        (text,) = lines(told, "ai")
        assert len(text.split()) == 30
        assert text.startswith(lines(before, "ai")[0].strip())
        joined = [path for path in paths(told, "GET") if "/stream" in path]
        assert len(joined) == 1, joined
        await page.reload(before["threadId"])
        assert (await page.until(fetched=True, count=2))["shown"] == told["shown"]


async def test_a_question_is_asked_and_answered(start_service):
    async with start_service(**AGENTS) as service, chat_page() as page:
        await page.open(service, "asker")
        asked = await page.asked("hi")
        assert asked["interrupt"]["value"] == {"title": "Publish?", "question": "ok?"}
        assert asked["shown"] == ["human: hi", "ai: draft", "asks"]
        # A page that is loaded again asks again.
        await page.reload(asked["threadId"])
        again = await page.until(fetched=True, asks=True)
        assert (again["interrupt"]["id"], again["shown"]) == (asked["interrupt"]["id"], asked["shown"])
        await page.do("resume", value="yes")
        told = await page.until(loading=False, asks=False)
        assert (told["shown"], told["error"]) == (["human: hi", "ai: draft", "ai: done yes"], None)


async def test_decisions_on_what_an_agent_wants_to_do(start_service):
    async with start_service(**AGENTS) as service, chat_page() as page:
        await page.open(service, "Teller")
        asked = await page.asked("review")
        value = asked["interrupt"]["value"]
        assert [one["name"] for one in value["action_requests"]] == ["send", "drop"]
        assert value["review_configs"][0]["allowed_decisions"] == ["approve", "edit", "reject"]
        decisions = [{"type": "approve"}, {"type": "reject", "message": "No."}]
        await page.do("resume", value={"decisions": decisions})
        told = await page.until(loading=False, asks=False)
        assert json.loads(lines(told, "ai")[-1])[0] == {"decisions": decisions}


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        ({"decisions": [{"type": "approve"}]}, 1),
        ({"decisions": [{"type": "reject"}]}, 0),
        ({"choice_id": "allow"}, 1),
    ],
    ids=["approve", "reject", "ours"],
)
async def test_a_tool_call_is_approved_in_the_shape_that_chat_pages_draw(start_service, tool_server, answer, runs):
    after = DONE if runs else says("I did not.")
    async with (
        scripted(NOTES, after) as model,
        start_service("scripted", **sections(model, tool_server)) as service,
        chat_page() as page,
    ):
        await page.open(service, "Sammy")
        asked = await page.asked("Note milk")
        value = asked["interrupt"]["value"]
        (action,) = value["action_requests"]
        assert (action["name"], action["args"]) == ("note", {"text": "milk"})
        (config,) = value["review_configs"]
        assert {"approve", "reject"} <= set(config["allowed_decisions"])
        assert [choice["id"] for choice in value["choices"]] == ["allow", "deny"]
        assert await used(tool_server, "note") == 0
        await page.do("resume", value=answer)
        told = await page.until(loading=False, asks=False)
        assert told["error"] is None
        assert lines(told, "ai")[-1] == ("I noted milk." if runs else "I did not.")
        assert await used(tool_server, "note") == runs


@EACH
async def test_edit_and_regenerate_fork(start_service, agent):
    async with start_service("mock;tokens=5", **AGENTS) as service, chat_page() as page:
        await page.open(service, agent)
        first = await page.asked("one")
        second = await page.asked("two")
        # Another second message.
        await page.do("edit", index=2, message=human_message("two, edited"))
        edited = await page.until(loading=False)
        assert lines(edited, "human") == ["one", "two, edited"]
        assert edited["messages"][:2] == second["messages"][:2] == first["messages"]
        assert edited["messages"][3]["id"] != second["messages"][3]["id"]
        # Another answer to it.
        await page.do("regenerate", index=3)
        regenerated = await page.until(loading=False)
        assert regenerated["error"] is None
        assert lines(regenerated, "human") == ["one", "two, edited"]
        assert len(regenerated["messages"]) == 4
        assert regenerated["messages"][2]["id"] == edited["messages"][2]["id"]
        assert regenerated["messages"][3]["id"] != edited["messages"][3]["id"]
        # What is live is what a page shows that is loaded later.
        await page.reload(edited["threadId"])
        later = await page.until(fetched=True, count=4)
        assert [one["id"] for one in later["messages"]] == [one["id"] for one in regenerated["messages"]]


async def test_the_list_of_threads_by_the_names_that_agent_chat_ui_knows(start_service):
    async with start_service(**AGENTS) as service, chat_page() as page:
        made = {}
        for agent in ("agent", "Teller"):
            await page.open(service, agent)
            made[agent] = (await page.asked("hi"))["threadId"]
        for agent, thread_id in made.items():
            found = await page.do("threads", query={"metadata": {"graph_id": agent}, "limit": 100})
            (thread,) = found["threads"]
            assert (thread["thread_id"], thread["status"]) == (thread_id, "idle")
            # The list shows the first message of each.
            assert thread["values"]["messages"][0]["content"] in ("hi", [{"type": "text", "text": "hi"}])
            of_assistant = {"metadata": {"assistant_id": thread["metadata"]["assistant_id"]}, "limit": 100}
            assert (await page.do("threads", query=of_assistant))["threads"] == [thread]


async def test_a_failure_is_shown(start_service):
    async with start_service(**AGENTS) as service, chat_page() as page:
        await page.open(service, "failing")
        await page.say("hi")
        told = await page.until(loading=False, warns=True)  # the hook logs it
        assert told["error"]
        assert told["shown"][0] == "human: hi"


async def test_what_an_agent_reasons_does_not_stand_in_its_answer(start_service):
    async with start_service(**AGENTS) as service, chat_page() as page:
        await page.open(service, "Teller")
        told = await page.asked("tell")
        assert lines(told, "ai")[-1] == ANSWER
