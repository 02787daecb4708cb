"""Two users of one graph: neither's memory nor state is the other's; and what a deleted session leaves."""

import json

import psycopg
import pytest

from agentic_backend.persist.graph_pool import TABLES
from tests.hosted.stage import agents, answer, ask, talk, text_of
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {
    "security": SECURITY,
    "ai": agents(Memory="memory", Tools="tools", Factory="odd:chat", Paying="questions:paying"),
}
ANN, BOB = "ann@example.org", "bob.%2E"


async def session_of(service, user, agent):
    """A new session of the user."""
    body = {"agent_id": agent, "title": "A title"}
    async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=headers_of(user)) as response:
        return (await response.json())["id"]


async def test_what_is_remembered_of_a_user_is_there_in_each_of_their_sessions_and_in_nobody_elses(hosted):
    async def tells(user, message):
        session_id = await session_of(hosted, user, "Memory")
        return json.loads(text_of(await talk(hosted, ask(session_id, "Memory", message), token_of(user))))

    await tells(ANN, "I like cheese")
    assert await tells(ANN, "What do I like?") == {
        "items": ["cheese"],
        "all": ["cheese"],
        "namespaces": [["likes", "food"]],
        "short": [["likes"]],
        "any user": [["likes", "food"]],
        "got": [["likes", "food"], {"since": "today"}],
    }
    nothing = {"items": [], "all": [], "namespaces": [], "short": [], "any user": [], "got": None}
    assert await tells(BOB, "What do I like?") == nothing
    assert (await tells(BOB, "I like ham"))["all"] == ["ham"]
    assert (await tells(ANN, "And now?"))["all"] == ["cheese"]


async def test_two_users_with_one_graph_do_not_see_each_others_state(hosted, stage):
    stage.play(says("Hello."))
    sessions = {user: await session_of(hosted, user, "Factory") for user in (ANN, BOB)}
    for message in ("One", "Two"):
        for user, session_id in sessions.items():
            await talk(hosted, ask(session_id, "Factory", f"{message} of {user}"), token_of(user))
            said = " ".join(text for _, text in stage.asked())
            assert user in said
            assert all(other not in said for other in sessions if other != user)
    foreign = await talk(hosted, ask(sessions[ANN], "Factory", "Hello"), token_of(BOB))
    assert foreign[-1]["code"] == "session_not_found"


async def test_anothers_answer_to_a_question_runs_nothing(hosted, stage):
    stage.play(wants(("c1", "pay", '{"amount": 7}')), says("Paid."))
    session_id, other = await session_of(hosted, ANN, "Paying"), await session_of(hosted, BOB, "Paying")
    asked = ask(session_id, "Paying", "Pay 7")
    frames = await talk(hosted, asked, token_of(ANN))
    yes = {"text": "yes", "checkpoint_id": frames[-1]["payload"]["checkpoint_id"]}
    assert (await talk(hosted, answer(asked, yes), token_of(BOB)))[-1]["code"] == "session_not_found"
    own = {**answer(asked, yes), "session_id": other}
    assert (await talk(hosted, own, token_of(BOB)))[-1]["code"] == "exchange_not_found"
    assert text_of(await talk(hosted, answer(asked, yes), token_of(ANN))) == "Paid."


def rows_of(database, session_id):
    """How many rows each of LangGraph's tables has of a session."""
    with psycopg.connect(database.dsn) as connection:
        return [
            connection.execute(f"SELECT count(*) FROM {table} WHERE session_id = %s", (session_id,)).fetchone()[0]  # noqa: S608 - ours
            for table in TABLES
        ]


async def test_a_deleted_session_leaves_no_row_of_its_state(hosted, stage, shared_database):
    stage.play(wants(("c1", "add", '{"a": 2, "b": 3}')), says("It is 5."))
    session_id = await session_of(hosted, ANN, "Tools")
    await talk(hosted, ask(session_id, "Tools", "Add 2 and 3"), token_of(ANN))
    assert all(count > 0 for count in rows_of(shared_database, session_id))
    url = f"{BASE}/chatbot/session/{session_id}"
    async with hosted.http.delete(url, headers=headers_of(ANN)) as response:
        assert response.status == 200
    assert rows_of(shared_database, session_id) == [0, 0, 0]
