"""What a graph knows of a conversation is what history shows of it: over turns, agents, cuts, kills and restarts."""

import asyncio
import re
import signal
import sqlite3
from contextlib import closing, contextmanager, nullcontext

import psycopg
import pytest
from websockets.exceptions import ConnectionClosed

from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, finish, status, token, usage
from tests.hosted.stage import agents, answer, ask, talk, text_of, told
from tests.support.fleet import MANY
from tests.support.following import after, heard, last_seq, over_socket, over_stream, transcript
from tests.support.patience import PATIENCE_S
from tests.support.service import hear_until, say
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN = {"name": "Georges", "class_path": "agentic_backend.agent.plain"}


def with_plain(**graphs):
    """Graphs beside an agent of ours, all on the scripted model."""
    section = agents(**graphs)
    section["agents"].append(PLAIN)
    return section


SECTIONS = {
    "ai": with_plain(
        Tools="tools",
        Forgets="odd:forgets_graph",
        Typed="odd:typed_graph",
        Notes="odd:notes_graph",
        Factory="odd:chat",
        Silent="odd:silent_graph",
    )
}
ADDS = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")


def on(stage, **sections):
    """Arguments of a process on the stage's model."""
    return {
        "model": "scripted",
        "env": {"MODEL_URL": stage.url},
        "ai": {
            **with_plain(Tools="tools"),
            "default_chat_model": {"name": "scripted", "settings": {"base_url": stage.url}},
        },
        **sections,
    }


async def test_the_next_turn_goes_on_from_the_state_of_the_last(hosted, stage):
    stage.play(ADDS, says("It is ", "5."), says("A sum."))
    session_id = await hosted.create_session(agent_id="Tools")
    await talk(hosted, ask(session_id, "Tools", "Add 2 and 3"))
    await talk(hosted, ask(session_id, "Tools", "What did I ask?"))
    assert stage.asked() == [
        ("user", "Add 2 and 3"),
        ("assistant", "Let me see."),
        ("tool", "5"),
        ("assistant", "It is 5."),
        ("user", "What did I ask?"),
    ]
    extras = (await hosted.history(session_id))[-1]["metadata"]["extras"]
    rows = [(row["phase"], row["depth"]) for row in extras["ledger"]]
    assert ("state_read", 2) in rows or ("state_read", 1) in rows
    assert extras["checkpoint"].endswith(f".{session_id}/Tools/" + extras["checkpoint"].rpartition("/")[2])


async def test_state_of_any_type_and_what_is_summed_up_are_there_again(hosted, stage):
    stage.play(says("One."), says("Two."))
    session_id = await hosted.create_session(agent_id="Forgets")
    for message in ("First", "Second"):
        await talk(hosted, ask(session_id, "Forgets", message))
    assert stage.asked() == [("system", "There were 1 messages."), ("assistant", "One."), ("user", "Second")]
    session_id = await hosted.create_session(agent_id="Notes")
    for message, seen in (("a", ""), ("b", "a"), ("c", "a, b")):
        assert text_of(await talk(hosted, ask(session_id, "Notes", message))) == f"Seen: {seen}."


async def test_a_factory_makes_its_graph_for_the_user_of_the_run(hosted, stage):
    stage.play(says("One."), says("Two."))
    session_id = await hosted.create_session(agent_id="Factory")
    for message in ("First", "Second"):
        await talk(hosted, ask(session_id, "Factory", message))
    (role, who), *rest = stage.asked()
    assert role == "system"
    assert re.fullmatch(r"You talk to \S+\.", who)
    assert "nobody" not in who
    assert rest == [("user", "First"), ("assistant", "One."), ("user", "Second")]


async def test_what_another_agent_was_asked_is_told_to_the_graph_once(hosted, stage):
    stage.play(says("One."), says("Two."), says("Three."), says("Four."), says("Five."))
    session_id = await hosted.create_session(agent_id="Tools")
    for agent, message in (("Georges", "A"), ("Tools", "B"), ("Georges", "C"), ("Tools", "D"), ("Tools", "E")):
        await talk(hosted, ask(session_id, agent, message))
    conversation = [
        (role, text)
        for question, reply in (("A", "One."), ("B", "Two."), ("C", "Three."), ("D", "Four."))
        for role, text in (("user", question), ("assistant", reply))
    ]
    assert stage.asked(3) == [*conversation[:6], ("user", "D")]
    assert stage.asked(4) == [*conversation, ("user", "E")]


async def test_an_empty_answer_is_no_reason_to_forget(hosted, stage):
    session_id = await hosted.create_session(agent_id="Silent")
    assert text_of(await talk(hosted, ask(session_id, "Silent", "First"))) == ""
    assert text_of(await talk(hosted, ask(session_id, "Silent", "Second"))) == ""


async def test_a_turn_cut_at_any_event_and_followed_again_is_the_same(hosted, stage):
    """Each cut is of a turn of its own that runs: its model waits until the client is gone."""
    stage.play(ADDS, says("It is ", "5."))
    session_id = await hosted.create_session(agent_id="Tools", title=None)
    whole = await heard(over_socket(hosted, ask(session_id, "Tools", "Add 2 and 3")))
    cuts = range(last_seq(whole))

    async def cut_at(index, way):
        session_id = await hosted.create_session(agent_id="Tools", title=None)
        frame = ask(session_id, "Tools", "Add 2 and 3")
        uncut = group.create_task(heard(over_socket(hosted, frame)))
        first = await heard(way(hosted, frame), up_to=index)
        again = after(first, frame)
        rest = await heard(way(hosted, again)) if again else []
        assert transcript(first + rest) == transcript(await uncut)
        return last_seq(first)

    def choose(request):
        return says("It is ", "5.") if request.body["messages"][-1]["role"] == "tool" else ADDS

    stage.play_by(choose)
    async with asyncio.TaskGroup() as group:
        done = [group.create_task(cut_at(index, way)) for index in cuts for way in (over_socket, over_stream)]
    assert len({task.result() for task in done}) > len(cuts) / 3


@pytest.mark.parametrize(
    ("window", "sessions"),
    [
        (20, [["another"] * 21, ["failed"] * 21]),
        (2, [["another", "failed", "another", "another"]]),
        (0, [["another"], []]),
    ],
)
async def test_a_graph_knows_what_it_was_told_however_long_ago(start_process, stage, window, sessions):
    """Its state is found behind exchanges of another agent and failed ones, by the next process, too; of what the
    other one was asked since then it is told as much as any agent gets to see."""
    sections = {**on(stage), "ai": {**on(stage)["ai"], "restore_max_exchanges": window}}
    asked = {}
    async with start_process(**sections) as service:
        for between in sessions:
            session_id = await service.create_session(agent_id="Tools")
            stage.play(says("Noted."))
            await talk(service, ask(session_id, "Tools", "It is 7"))
            others = []
            for number, kind in enumerate(between):
                agent, step = ("Tools", status(400)) if kind == "failed" else ("Georges", says("Fine."))
                stage.play(step)
                end = (await talk(service, ask(session_id, agent, f"Question {number}")))[-1]
                assert end["type"] == ("error" if kind == "failed" else "final")
                if kind == "another":
                    others.append([("user", f"Question {number}"), ("assistant", "Fine.")])
            since = [said for exchange in others[max(0, len(others) - window) :] for said in exchange]
            asked[session_id] = [("user", "It is 7"), ("assistant", "Noted."), *since, ("user", "What is it?")]
    async with start_process(**sections) as service:
        for session_id, conversation in asked.items():
            stage.play(says("Seven."))
            await talk(service, ask(session_id, "Tools", "What is it?"))
            assert stage.asked() == conversation
            await talk(service, ask(session_id, "Tools", "Sure?"))
            assert stage.asked() == [*conversation, ("assistant", "Seven."), ("user", "Sure?")]


class Hold:
    """A model whose answer waits after its first words until the test says so."""

    def __init__(self, *texts):
        self.texts = texts
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    async def __call__(self, write):
        await write(SSE_HEAD)
        first, *rest = self.texts
        await write(token(first))
        self.begun.set()
        await self.go.wait()
        for piece in (*map(token, rest), finish(), usage(20, 4), DONE):
            await write(piece)


async def killed(service):
    """The process is killed, as the kernel does where memory ends."""
    service.process.send(signal.SIGKILL)
    await service.process.until(service.process.wait)


def said_in_history(history):
    """The conversation that history shows: what the next request of a model has to hold before its question."""
    roles = {"user": "user", "assistant": "assistant", "tool": "tool"}
    conversation = []
    for message in history:
        text = "".join(part.get("text", part.get("content", "")) for part in message["parts"])
        if message["channel"] != "tool_call":
            conversation.append((roles[message["role"]], text))
    return conversation


async def until_answered(service, session_id, text):
    """History, once its last message says this; another instance may know of nothing yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            history = await service.history(session_id)
            if history and told(history[-1]) == ("final", text):
                return history
            await asyncio.sleep(0.05)


async def thanked(service, session_id, agent="Tools"):
    """Ask one thing more. History has an answer a moment before its turn ends, so this may have to wait for that."""
    *_, end = await talk(service, ask(session_id, agent, "Thanks", if_busy="queue"))
    assert end["type"] == "final", end


@pytest.mark.parametrize("restart", ["never", "from_checkpoint"])
async def test_a_process_killed_in_the_middle_of_a_turn(start_process, stage, restart):
    """After its tool has run, while the model answers: it goes on from there, or it is cancelled and leaves nothing."""
    graphs = {"Tools": {"graph": "tools", "restart": restart}}
    sections = {**on(stage), "ai": {**on(stage)["ai"], **with_plain(**graphs)}}
    hold = Hold("It ", "is 5.")
    stage.play(says("Hi."), ADDS, hold)
    async with start_process(**sections) as service:
        session_id = await service.create_session(agent_id="Tools")
        await talk(service, ask(session_id, "Tools", "Hello"))
        asked = ask(session_id, "Tools", "Add 2 and 3")
        async with service.native() as socket:
            await say(socket, **asked)
            await hear_until(socket, "delta")
            await hold.begun.wait()
            await service.ask_on_disk(asked["client_exchange_id"])
            await killed(service)
    stage.play(says("It is ", "5."), says("Thanked."))
    async with start_process(**sections) as service:
        if restart == "from_checkpoint":
            history = await until_answered(service, session_id, "It is 5.")
            assert [told(one) for one in history[2:]] == [
                ("user", "Add 2 and 3"),
                ("thought", "Let me see."),
                ("tool_call", 'add({"a": 2, "b": 3})'),
                ("tool_result", "5"),
                ("final", "It is 5."),
            ]
            expected = said_in_history(history)
        else:
            history = await service.history(session_id)
            assert history[-1]["metadata"]["extras"]["interrupted_by"] == "restart"
            expected = said_in_history(history[:2])
        await thanked(service, session_id)
        assert stage.asked() == [*expected, ("user", "Thanks")]


class Late:
    """A model that answers so once the test says so."""

    def __init__(self, answer):
        self.answer = answer
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def __call__(self, write):
        self.asked.set()
        await self.go.wait()
        await self.answer(write)


async def test_an_ending_instance_hands_a_graph_over_behind_the_step_that_it_is_in(start_process, stage, database):
    """What its model has said is not asked for again, and its tool runs once, elsewhere."""
    late = Late(ADDS)
    stage.play(late, says("It is ", "5."), says("Thanked."))
    sections = on(stage, **MANY)
    async with start_process(**sections) as one, start_process(**sections) as other:
        session_id = await one.create_session(agent_id="Tools")
        asked = ask(session_id, "Tools", "Add 2 and 3")
        async with one.native() as socket:
            await say(socket, **asked)
            await late.asked.wait()
            one.process.send(signal.SIGTERM)
            await one.line("goes on at another instance: 1 turns run")
            late.go.set()
            with pytest.raises(ConnectionClosed) as closed:
                await hear_until(socket, "final")
            assert closed.value.rcvd.code == 1012
        assert await one.ended() == 0
        history = await until_answered(other, session_id, "It is 5.")
        assert [told(message) for message in history] == [
            ("user", "Add 2 and 3"),
            ("thought", "Let me see."),
            ("tool_call", 'add({"a": 2, "b": 3})'),
            ("tool_result", "5"),
            ("final", "It is 5."),
        ]
        await thanked(other, session_id)
        assert stage.asked() == [*said_in_history(history), ("user", "Thanks")]


@pytest.mark.parametrize("known", [True, False])
async def test_a_process_killed_after_a_person_has_answered(start_process, stage, known, database):
    """What the person allowed is not done again: it goes on behind it; by itself, or where the end of the process came
    before the answer was on disk, when the person answers again."""
    sections = {**on(stage), "ai": {**on(stage)["ai"], **with_plain(Paying="questions:paying")}}
    hold = Hold("Pa", "id.")
    stage.play(wants(("c1", "pay", '{"amount": 7}'), text="Let me pay."), hold)
    async with start_process(**sections) as service:
        session_id = await service.create_session(agent_id="Paying")
        asked = ask(session_id, "Paying", "Pay 7")
        assert (await talk(service, asked))[-1]["type"] == "awaiting_human"
        before, states = newest_record(service.spool), count_of_states(database, session_id)
        async with service.native() as socket:
            with nullcontext() if known else taken(service.spool):
                await say(socket, **answer(asked, {"text": "yes"}))
                await hold.begun.wait()
                await service.line("paid 7")
                # What is not stored of a step yet is done again, and what is not on disk yet is not known.
                async with asyncio.timeout(PATIENCE_S):
                    while count_of_states(database, session_id) == states:  # noqa: ASYNC110 - a table is asked
                        await asyncio.sleep(0.02)
                    while known and newest_record(service.spool) == before:  # noqa: ASYNC110 - a file is asked
                        await asyncio.sleep(0.02)
                await killed(service)
    stage.play(says("Paid."), says("Thanked."))
    async with start_process(**sections) as service:
        if known:
            history = await until_answered(service, session_id, "Paid.")
        else:
            assert (await talk(service, asked))[-1]["type"] == "awaiting_human"
            await talk(service, answer(asked, {"text": "yes"}))
            history = await service.history(session_id)
        assert [told(one) for one in history] == [
            ("user", "Pay 7"),
            ("thought", "Let me pay."),
            ("tool_call", 'pay({"amount": 7})'),
            ("user", "yes"),
            ("tool_result", "paid"),
            ("final", "Paid."),
        ]
        await thanked(service, session_id, "Paying")
        assert [text for role, text in stage.asked() if role == "tool"] == ["paid"]
        assert stage.asked()[-2:] == [("assistant", "Paid."), ("user", "Thanks")]
        assert "paid 7" not in service.process.output


def newest_record(spool):
    """The number of the newest record that is in the spool."""
    (file,) = spool.glob("spool-*.sqlite")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT max(id) FROM record WHERE kind = 'ask'").fetchone()[0]


async def test_a_process_killed_between_the_graphs_last_state_and_the_record_of_the_turn(
    start_process, stage, database
):
    """The spool takes nothing while the test holds it: the graph has ended and history does not know."""
    sections = on(stage)
    sections["ai"] = {**sections["ai"], **with_plain(Tools={"graph": "tools", "restart": "never"})}
    hold = Hold("It ", "is lost.")
    stage.play(says("Hi."), hold)
    async with start_process(**sections) as service:
        session_id = await service.create_session(agent_id="Tools")
        await talk(service, ask(session_id, "Tools", "Hello"))
        asked = ask(session_id, "Tools", "Second")
        async with service.native() as socket:
            await say(socket, **asked)
            await hold.begun.wait()
            await service.ask_on_disk(asked["client_exchange_id"])
            states = count_of_states(database, session_id)
            with taken(service.spool):
                hold.go.set()
                async with asyncio.timeout(PATIENCE_S):
                    while count_of_states(database, session_id) == states:  # noqa: ASYNC110 - a table is asked
                        await asyncio.sleep(0.02)
                await killed(service)
    stage.play(says("Fine."))
    async with start_process(**sections) as service:
        await talk(service, ask(session_id, "Tools", "Third"))
        history = (await service.history(session_id))[:-1]
        # The record may have reached Postgres past the spool: then the exchange has its answer in both.
        cut = {one["exchange_id"] for one in history if one["metadata"].get("extras", {}).get("interrupted_by")}
        assert cut <= {asked["client_exchange_id"]}
        assert stage.asked() == said_in_history([one for one in history if one["exchange_id"] not in cut])


def count_of_states(database, session_id):
    """How many checkpoints LangGraph has of a session."""
    with psycopg.connect(database.dsn) as connection:
        query = "SELECT count(*) FROM checkpoints WHERE session_id = %s"
        return connection.execute(query, (session_id,)).fetchone()[0]


@contextmanager
def taken(spool):
    """Nobody else writes to the spool."""
    (file,) = spool.glob("spool-*.sqlite")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
