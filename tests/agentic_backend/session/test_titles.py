"""Titles that a model makes: how many at once, what becomes of failures, and what a title is."""

import asyncio

import pytest

from agentic_backend.errors import HistoryUnavailable, LlmTimeout
from agentic_backend.session import titles
from agentic_backend.session.models import Session
from agentic_backend.session.titles import Titles, tidy
from backend_kit.aio import TaskRegistry
from tests.support.patience import PATIENCE_S


class Writer:
    """Says what it was told to once it is let go. `most` is how many it had at once."""

    def __init__(self, said="Made up"):
        self.said = said
        self.gate = asyncio.Event()
        self.asked = []
        self.running = self.most = 0

    async def write(self, question, answer):
        self.asked.append((question, answer))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Store:
    """Changes titles of sessions that it has."""

    def __init__(self):
        self.sessions = {}
        self.failure = None

    def add(self, number):
        session = Session(f"s{number}", "ann", "Georges", f"Question {number}", "2026-03-01T00:00:00.000000Z")
        self.sessions[session.id] = session
        return session

    async def change(self, session_id, user_id, *, title):
        if self.failure is not None:
            raise self.failure
        if session_id not in self.sessions:
            return None
        assert user_id == "ann"
        self.sessions[session_id] = self.sessions[session_id].titled(title)
        return self.sessions[session_id]


@pytest.fixture
async def tasks():
    registry = TaskRegistry()
    yield registry
    await registry.aclose()
    assert not registry.failures


def teller(told):
    """What notes whose title is told."""

    async def tell(session):
        told.append(session)

    return tell


async def ended(tasks):
    async with asyncio.timeout(PATIENCE_S):
        while len(tasks):  # noqa: ASYNC110 - nothing tells of the end of a task that nobody awaits
            await asyncio.sleep(0)


async def test_a_title_is_stored_and_told(tasks):
    writer, store, told = Writer(), Store(), []
    maker = Titles(writer, store, tasks, teller(told))
    maker.begin(store.add(1), "Why?", "Because.")
    assert store.sessions["s1"].title == "Question 1"
    writer.gate.set()
    await ended(tasks)
    assert writer.asked == [("Why?", "Because.")]
    assert [session.title for session in told] == [store.sessions["s1"].title] == ["Made up"]


@pytest.mark.parametrize(
    ("said", "failure"),
    [(LlmTimeout(), None), ("", None), ('""', None), ("Question 1", None), ("Made up", HistoryUnavailable())],
    ids=str,
)
async def test_without_a_better_one_the_title_stays(tasks, said, failure):
    writer, store, told = Writer(said), Store(), []
    writer.gate.set()
    store.failure = failure
    Titles(writer, store, tasks, teller(told)).begin(store.add(1), "Why?", "Because.")
    await ended(tasks)
    assert told == []
    assert store.sessions["s1"].title == "Question 1"


async def test_a_session_that_is_gone_is_not_told(tasks):
    writer, store, told = Writer(), Store(), []
    session = store.add(1)
    Titles(writer, store, tasks, teller(told)).begin(session, "Why?", "Because.")
    store.sessions.clear()
    writer.gate.set()
    await ended(tasks)
    assert told == []


async def test_a_model_that_never_answers_is_given_up(tasks):
    store = Store()
    Titles(Writer(), store, tasks, teller([]), deadline_s=0.01).begin(store.add(1), "Why?", "Because.")
    await ended(tasks)
    assert store.sessions["s1"].title == "Question 1"


async def test_few_at_once_and_not_many_waiting(tasks):
    writer, store, told = Writer(), Store(), []
    maker = Titles(writer, store, tasks, teller(told))
    for number in range(titles._WAITING + 10):
        maker.begin(store.add(number), "Why?", "Because.")
    for _ in range(5):
        await asyncio.sleep(0)
    assert writer.running == titles._AT_ONCE
    writer.gate.set()
    await ended(tasks)
    assert writer.most == titles._AT_ONCE
    assert len(told) == titles._WAITING
    maker.begin(store.add(999), "Why?", "Because.")
    await ended(tasks)
    assert told[-1].id == "s999"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Boiling lentils", "Boiling lentils"),
        ('"Boiling lentils."\n\nI chose this because', "Boiling lentils"),
        ("# **Boiling   lentils**", "Boiling lentils"),
        ("« Cuire des lentilles »", "Cuire des lentilles"),
        ("a\x00b\ud800c", "a b c"),
        ("word " * 40, "word " * 11 + "word"),
        ("", ""),
        ("\n\n**", ""),
        ("\u202eabc", "abc"),
    ],
)
def test_what_is_said_is_made_a_title(said, title):
    assert tidy(said) == title
