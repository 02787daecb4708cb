"""Graphs of anybody, unmodified, by WebSocket, event stream and REST: what is shown, kept and measured of them."""

import asyncio
import json
from functools import partial

import pytest

from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, Step, finish, token, usage
from tests.hosted.stage import Frame, agents, ask, phases, said, shown, stream, talk, told
from tests.support.following import heard, last_seq, over_socket, over_stream, resume_frame, transcript
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {
    "ai": agents(
        Tools="tools",
        Agent="agent",
        Structured="agent:structured",
        Team="team",
        ByHand="odd:by_hand_graph",
        Wrapped="odd:wrapped_graph",
        Quiet="odd:quiet_graph",
        QuietAnswer="odd:quiet_answer_graph",
        Forgets="odd:forgets_graph",
        Trims="odd:trims_graph",
        Typed="odd:typed_graph",
        Pydantic="odd:pydantic_graph",
        Dataclass="odd:dataclass_graph",
        Notes="odd:notes_graph",
        Factory="odd:chat",
        Blocking="odd:blocking_graph",
        Outer="odd:blocking_outer_graph",
        Progress="odd:progress_graph",
        Leaves="odd:leaves_graph",
        Silent="odd:silent_graph",
    )
}
Seen = tuple[str, ...]
Case = tuple[list[Step], list[Seen], tuple[tuple[str, int], ...]]
"""What the model answers, what a person sees, and the nodes with their depths in the ledger."""
ADDS = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")
TOOLS: Case = (
    [ADDS, says("It is ", "5.")],
    [
        ("user", "Add 2 and 3"),
        ("delta", "Let me see."),
        ("thought", "Let me see."),
        ("tool_call", 'add({"a": 2, "b": 3})'),
        ("tool_result", "5"),
        ("delta", "It is 5."),
        ("final",),
    ],
    (("chat", 1), ("tools", 1), ("chat", 1)),
)


def plain(node: str, *steps: Step, answer: str) -> Case:
    """A graph of one node, which answers so."""
    return list(steps), [("user", "Hello"), ("delta", answer), ("final",)], ((node, 1),)


CASES: dict[str, Case] = {
    "Tools": TOOLS,
    "Agent": (*TOOLS[:2], (("model", 1), ("tools", 1), ("model", 1))),
    "ByHand": plain("node", answer="By hand."),
    "Wrapped": plain("node", says("Hello ", "you."), answer="Hello you."),
    "Quiet": plain("node", says("Topic"), says("Well ", "said."), answer="Well said."),
    "QuietAnswer": plain("node", says("Not ", "streamed."), answer="Not streamed."),
    "Forgets": plain("node", says("I ", "forget."), answer="I forget."),
    "Trims": plain("node", says("I ", "trim."), answer="I trim."),
    "Typed": plain("node", says("One ", "more."), answer="One more."),
    "Pydantic": plain("node", says("One ", "more."), answer="One more."),
    "Dataclass": plain("node", says("One ", "more."), answer="One more."),
    "Notes": plain("node", answer="Seen: ."),
    "Factory": plain("answer", says("Made ", "anew."), answer="Made anew."),
    "Blocking": plain("node", says("In ", "a thread."), answer="In a thread."),
    "Structured": (
        [wants(("c1", "Weather", '{"place": "Oslo", "degrees": 4}'))],
        [
            ("user", "Hello"),
            ("tool_call", 'Weather({"place": "Oslo", "degrees": 4})'),
            ("tool_result", "Returning structured response: place='Oslo' degrees=4"),
            ("delta", '{"place":"Oslo","degrees":4}'),
            ("final",),
        ],
        (("model", 1),),
    ),
    "Outer": (
        [says("Within.")],
        [("user", "Hello"), ("custom", '{"step": "outer"}'), ("delta", "Within."), ("final",)],
        (("node", 1), ("node", 2)),
    ),
    "Progress": (
        [],
        [
            ("user", "Hello"),
            *(("custom", json.dumps({"done": done})) for done in range(3)),
            ("delta", "Begun."),
            ("thought", "Begun."),
            ("custom", '"the end"'),
            ("delta", "Done."),
            ("final",),
        ],
        (("progress", 1), ("end", 1)),
    ),
    "Silent": ([], [("user", "Hello"), ("final",)], (("node", 1),)),
}


@pytest.mark.parametrize("agent", CASES)
async def test_what_a_graph_says_is_the_same_on_every_way(hosted, stage, agent):
    steps, expected, nodes = CASES[agent]
    message = expected[0][1]
    stage.play(*steps, *steps)
    sessions = [await hosted.create_session(agent_id=agent) for _ in range(2)]
    frames = await talk(hosted, ask(sessions[0], agent, message))
    calls = len(stage.requests)
    assert calls == len(steps)
    streamed = await stream(hosted, ask(sessions[1], agent, message))
    for session_id, heard_frames in zip(sessions, (frames, streamed), strict=True):
        # What a node writes for clients goes by LangGraph's own stream, a moment behind what it says.
        assert apart(shown(heard_frames)) == apart(expected)
        history = await hosted.history(session_id)
        assert history == heard_frames[-1]["messages"]
        kept = [told(one) for one in history]
        assert kept == _kept(expected)
        extras = history[-1]["metadata"]["extras"]
        measured(extras, nodes, calls)
        if calls:
            assert history[-1]["metadata"]["token_usage"]["total_tokens"] == sum(
                step["input_tokens"] + step["output_tokens"] for step in extras["usage"]["steps"]
            )
            assert len(extras["usage"]["steps"]) == calls


def apart(seen: list[Seen]) -> tuple[list[Seen], list[Seen]]:
    """What is said, and what nodes write for clients."""
    return [one for one in seen if one[0] != "custom"], [one for one in seen if one[0] == "custom"]


def _kept(expected: list[Seen]) -> list[Seen]:
    """What history has of what was shown: all but the fragments; the last of them is the answer."""
    messages = [one for one in expected if one[0] not in ("delta", "custom", "final")]
    kind, *said = expected[-2]
    return [*messages, ("final", said[0] if kind == "delta" else "")]


def measured(extras: Frame, nodes: tuple[tuple[str, int], ...], calls: int) -> None:
    """The ledger has the nodes at their depth, what LangGraph took, and its reads and writes; rows of depth 0 and what
    is unattributed are the turn."""
    rows = phases(extras)
    names = {name for name, _ in rows}
    assert {"graph", "state_write"} <= names
    assert [row for row in rows if row in nodes] == list(nodes)
    assert [depth for name, depth in rows if name == "llm_invoke"] == [nodes[-1][1] + 1] * calls
    outer = sum(row["ms"] for row in extras["ledger"] if row["depth"] == 0)
    assert outer + extras["unattributed_ms"] == pytest.approx(extras["total_ms"], abs=0.1)


@pytest.mark.parametrize("agent", ["Tools", "Agent", "Wrapped", "Progress"])
async def test_a_turn_that_ended_is_told_again_from_every_event(hosted, stage, agent):
    steps, expected, _ = CASES[agent]
    stage.play(*steps)
    session_id = await hosted.create_session(agent_id=agent, title=None)
    asked = ask(session_id, agent, expected[0][1])
    whole = await heard(over_socket(hosted, asked))
    for index, frame in enumerate(whole[:-1]):
        resume = resume_frame(session_id, asked["client_exchange_id"], last_seq([frame]))
        for way in (over_socket, over_stream):
            rest = await heard(way(hosted, resume))
            assert transcript(whole[: index + 1] + rest) == transcript(whole)


async def test_workers_side_by_side_and_one_who_sums_up(hosted, stage):
    """Two graphs within the graph stream at once: each text is shown once and whole, and the last one is the answer."""
    both = asyncio.Barrier(2)

    async def worker(topic, write):
        await write(SSE_HEAD)
        await both.wait()
        for piece in (token(f"About {topic}"), token(" so"), token(" much."), finish(), usage(3, 3), DONE):
            await write(piece)

    def choose(request):
        asked = said(request.body["messages"][-1]["content"])
        if asked.startswith("Sum up"):
            assert asked == "Sum up: About cats so much.; About dogs so much."
            return says("Cats ", "and dogs.")
        return partial(worker, asked.removeprefix("Look up "))

    stage.play_by(choose)
    for way in (talk, stream):
        session_id = await hosted.create_session(agent_id="Team")
        frames = await way(hosted, ask(session_id, "Team", "cats and dogs"))
        seen = shown(frames)
        assert seen[0] == ("user", "cats and dogs")
        assert seen[-2:] == [("delta", "Cats and dogs."), ("final",)]
        deltas = [one[1] for one in seen[1:-1] if one[0] == "delta"]
        thoughts = [one[1] for one in seen if one[0] == "thought"]
        assert sorted(thoughts) == ["About cats so much.", "About dogs so much.", "Noted cats.", "Noted dogs."]
        assert deltas == [*thoughts, "Cats and dogs."]
        history = await hosted.history(session_id)
        assert history == frames[-1]["messages"]
        extras = history[-1]["metadata"]["extras"]
        names = [name for name, _ in phases(extras)]
        assert [names.count(name) for name in ("worker", "look", "note", "join", "llm_invoke")] == [2, 2, 2, 1, 3]
        assert extras["usage"]["input_tokens"] == 26
        outer = sum(row["ms"] for row in extras["ledger"] if row["depth"] == 0)
        assert outer + extras["unattributed_ms"] == pytest.approx(extras["total_ms"], abs=0.1)
