"""Answers made of whole sentences: which are found in a passage, and which of them are said."""

import pytest

from ws_bench.fakes.answers import NOTHING_FOUND, Turn, reply
from ws_bench.fakes.extract import Passage, answer_from
from ws_bench.fakes.text import sentences_in, terms

PAGE = """# The spool

Finished turns are kept on a local disk. It takes about half
a millisecond, e.g. on an SSD. **Nothing is lost then.** See [the page](pages/spool.md#kept) for *more* of `it`.

| the spool | keeps finished turns on a local disk. |
|---|---|

- The spool is a list item of a whole sentence.
  It goes on here on a second line.

1. Numbered items are no sentences of prose either.

```
The spool in code is no sentence at all, whatever it says.
```

spool/            what a directory tree says of the spool here.

    The spool stands in an indented block of code here.

> The spool stands in a quotation that somebody has made.

**A run-in heading here.** The spool is `one file
of SQLite`; nobody else may open it.

<!-- The spool is hidden in a comment here. -->
the spool in a fragment of a sentence that began earlier.
The spool is what the following sentence introduces as a list:
"""


def texts(page: str) -> list[str]:
    return [sentence.text for sentence in sentences_in(page)]


def test_only_whole_sentences_of_prose_are_found() -> None:
    assert texts(PAGE) == [
        "Finished turns are kept on a local disk.",
        "It takes about half a millisecond, e.g. on an SSD.",
        "Nothing is lost then.",
        "See the page for *more* of `it`.",
        "The spool is `one file of SQLite`; nobody else may open it.",
    ]


@pytest.mark.parametrize(
    "fragment",
    [
        "Zu kurz.",
        'flag, variable effect ARGS="--bench" is what a table of a PDF looks like.',
        "A bracket that is (never closed makes it a fragment of one.",
        "An `open mark of code makes it a fragment of one.",
        "A word that was bro-\nken at the end of its line is no word.",
        "It ends with a colon and so something follows that is not here:",
        "Whether this is a question that somebody asked?",
        "word " * 90 + "is far too long to be a sentence.",
    ],
)
def test_what_is_not_surely_a_sentence_is_left_out(fragment: str) -> None:
    assert texts(fragment) == []


def test_german_sentences_are_found_too() -> None:
    assert texts("Fertige Turns liegen z.B. auf der Platte. Ärger gibt es dann keinen mehr!") == [
        "Fertige Turns liegen z.B. auf der Platte.",
        "Ärger gibt es dann keinen mehr!",
    ]


@pytest.mark.parametrize(
    "family",
    [("persist", "persists", "persisted", "persistence"), ("deleted", "deletes", "deletion"), ("turn", "turns")],
)
def test_forms_of_a_word_meet(family: tuple[str, ...]) -> None:
    assert len({frozenset(terms(word)) for word in family}) == 1


def passages(*texts: str) -> list[Passage]:
    return [Passage(number, "", text) for number, text in enumerate(texts, 1)]


def test_the_sentence_that_shares_the_rarest_words_is_said_with_its_number() -> None:
    found = answer_from(
        "Does the spool survive a crash?",
        passages(
            "A turn is timed by the service.", "The spool survives a crash of the service. Bananas are quite yellow."
        ),
    )
    assert found == "The spool survives a crash of the service. [2]"


def test_a_sentence_that_holds_the_question_is_never_said() -> None:
    question = "How does Turnwise persist a turn?"
    page = f'Choose Rico in the page and ask "{question}". Bees make honey.'
    assert answer_from(question, passages(page)) == ""
    assert answer_from(question, passages(f"{page} A turn is persisted on a disk.")) == (
        "A turn is persisted on a disk. [1]"
    )


def test_a_sentence_that_leans_on_another_comes_with_it_or_not_at_all() -> None:
    page = "The batcher writes turns to Postgres. It does so behind the answer, many at once."
    assert answer_from("What is behind the answer?", passages(page)) == (
        "The batcher writes turns to Postgres. [1] It does so behind the answer, many at once. [1]"
    )
    assert answer_from("What is behind the answer?", passages("It does so behind the answer, many at once.")) == ""


def test_what_something_is_comes_from_the_sentence_that_says_so() -> None:
    page = "A crash of the spool ends the spool. The spool is a file of finished turns."
    assert answer_from("What is the spool?", passages(page)).startswith("The spool is a file of finished turns. [1]")
    assert answer_from("Was ist ein Spool?", passages("Ein Spool ist eine Datei mit fertigen Turns.")) == (
        "Ein Spool ist eine Datei mit fertigen Turns. [1]"
    )


def test_the_same_sentence_of_two_passages_is_said_once() -> None:
    said = answer_from("Who writes turns?", passages(*["The batcher writes the turns to Postgres."] * 3))
    assert said == "The batcher writes the turns to Postgres. [1]"


def test_the_section_of_a_passage_counts_where_sentences_say_the_same() -> None:
    same = [
        Passage(1, "Tables", "The width is ten of these units."),
        Passage(2, "Chairs", "The width is six of those units."),
    ]
    assert answer_from("What is the width of chairs?", same).endswith("[2]")


def test_the_question_is_the_last_line_that_says_so_and_the_tag_before_a_passage_its_heading() -> None:
    prompt = (
        '<source number="1" title="Bees" section="Honey">\n[1] Question: what do bees do? Bees make honey.\n\n\n'
        '</source>\n\n<source number="2" title="Wasps">\n[2] Wasps hunt flies and make no honey.\n\n\n</source>'
        "\n\n\nQuestion: What do wasps hunt?"
    )
    assert reply([Turn("user", prompt)]) == "Wasps hunt flies and make no honey. [2]"
    assert reply([Turn("user", prompt.replace("wasps hunt", "trains cost"))]) == NOTHING_FOUND


def test_an_answer_looks_at_no_more_than_its_bounds() -> None:
    many = [Passage(number, "", f"The spool is number {number} of the passages here.") for number in range(1, 40)]
    assert answer_from("Which is number 39 of the passages?", many[20:]).endswith("[39]")
    assert "[39]" not in answer_from("Which is number 39 of the passages?", many)
    assert (
        answer_from("Where is it?", passages("filler " * 2_000 + "Behind eight thousand letters it is not seen.")) == ""
    )
