"""What is asked, what answers it, and that the two splits share no answer."""

import pytest

from tests.eval.genindex import Entry
from tests.eval.passages import Passage
from tests.eval.queries import MOST_TARGETS, Kind, Query, kind_of, queries, sample, split, typed


@pytest.mark.parametrize(
    ("main", "below", "expected"),
    [
        ("gather() (in module asyncio)", "", "asyncio.gather()"),
        ("gather() (curses.textpad.Textbox method)", "(in module asyncio)", "asyncio.gather()"),
        ("gather() (curses.textpad.Textbox method)", "", "Textbox.gather()"),
        ("fromkeys() (collections.Counter class method)", "", "Counter.fromkeys()"),
        ("__abs__() (in module operator)", "(object method)", "__abs__()"),
        ("Generator (class in collections.abc)", "", "collections.abc.Generator"),
        ("PyList_New (C function)", "", "PyList_New"),
        ("NOP (opcode)", "", "NOP opcode"),
        ("generator", "expression", "generator expression"),
        ("generator", "", "generator"),
        ("Python Enhancement Proposals", "PEP 484", "PEP 484"),
        ("environment variable", "PYTHONPATH", "environment variable PYTHONPATH"),
        ("print()", "", "print()"),
    ],
)
def test_an_entry_is_typed_as_a_person_would(main: str, below: str, expected: str) -> None:
    assert typed(Entry(main, below, ("a.html#b",))) == expected


@pytest.mark.parametrize(
    "text",
    ["asyncio.gather()", "__enter__", "PYTHONPATH", "getElementById", "b64encode", "-O", "PEP 484", "print()", "a.b.c"],
)
def test_code_is_identifier_like(text: str) -> None:
    assert kind_of(text) is Kind.IDENTIFIER


@pytest.mark.parametrize("text", ["generator expression", "print", "NOP opcode", "environment variable PYTHONPATH"])
def test_words_and_mixtures_are_prose(text: str) -> None:
    assert kind_of(text) is Kind.PROSE


def place(number: int, length: int = 5) -> Passage:
    return Passage("page.html", number * 10, number * 10 + length)


def test_a_name_is_asked_with_its_home_and_bare_with_the_places_of_all_homes() -> None:
    index = [
        Entry("gather() (in module asyncio)", "", ("p#1",)),
        Entry("gather() (in module asyncio)", "(box.Box method)", ("p#2",)),
        Entry("called (box.Box attribute)", "", ("p#3",)),
    ]
    asked = {query.text: query.targets for query in queries(index, {f"p#{n}": place(n) for n in (1, 2, 3)})}
    assert asked == {
        "asyncio.gather()": (place(1),),
        "Box.gather()": (place(2),),
        "gather()": (place(1), place(2)),
        "Box.called": (place(3),),
    }


def test_of_a_pair_the_line_stays_whose_main_entry_has_fewer() -> None:
    index = [
        Entry("module", "gc", ("p#1",)),
        Entry("module", "os", ("p#2",)),
        Entry("gc", "module", ("p#1",)),
        Entry("os", "module", ("p#2",)),
    ]
    assert [query.text for query in queries(index, {"p#1": place(1), "p#2": place(2)})] == ["gc module", "os module"]


def test_what_says_too_little_or_leads_nowhere_is_not_asked() -> None:
    many = tuple(f"p#{number}" for number in range(MOST_TARGETS + 1))
    index = [Entry("close()", "", many), Entry("**", "", ("p#1",)), Entry("gone", "", ("x#1",))]
    assert queries(index, {target: place(number) for number, target in enumerate(many)}) == []


def test_two_anchors_of_one_place_are_one_answer() -> None:
    outer, inner = Passage("page.html", 0, 100), Passage("page.html", 10, 20)
    (query,) = queries([Entry("topic", "", ("p#1", "p#2"))], {"p#1": inner, "p#2": outer})
    assert query.targets == (outer,)


def overlap(one: Passage, other: Passage) -> bool:
    return one.page == other.page and one.start < other.end and other.start < one.end


def test_no_passage_nor_one_that_overlaps_it_is_in_both_splits() -> None:
    single = [Query(f"q{number}", (place(number),)) for number in range(300)]
    shared = [Query(f"pair{number}", (place(number), place(number + 1))) for number in range(0, 300, 7)]
    across = [Query(f"over{number}", (place(number, length=15),)) for number in range(3, 300, 11)]
    halves = split([*single, *shared, *across])
    assert sum(map(len, halves.values())) == 300 + len(shared) + len(across)
    assert min(map(len, halves.values())) > 80
    tune = {target for query in halves["tune"] for target in query.targets}
    test = {target for query in halves["test"] for target in query.targets}
    assert not any(overlap(one, other) for one in tune for other in test)


def test_the_splits_and_samples_are_the_same_in_every_run() -> None:
    asked = [Query(f"name_{number}", (place(number),)) for number in range(50)]
    halves = split(asked)
    assert split(list(reversed(asked)))["tune"] == list(reversed(halves["tune"]))
    some = sample(asked, 10)
    assert len(some) == 10
    assert sample(list(reversed(asked)), 10) == list(reversed(some))
