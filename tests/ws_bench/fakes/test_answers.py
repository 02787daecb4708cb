"""What the fake model says without a knob."""

import pytest

from ws_bench.fakes.answers import (
    ABOUT,
    GREETING,
    NO_DOCUMENTS,
    NOT_ALLOWED,
    NOTHING_FOUND,
    OUT_OF_REACH,
    STAND_IN,
    TOOLS_OUT_OF_REACH,
    Turn,
    reply,
    title_for,
    turns_of,
)

SOURCES = """Answer from these sources and cite them by number.

[1] Turnwise times every turn. The event loop lag is sampled by a thread.
[2] The spool keeps finished turns on disk. It survives a crash of the service.
[3] Bananas are yellow.
"""


def said(*texts: str, system: str = "You are Georges.") -> str:
    """The answer to the last of some user messages, with an assistant's word between them."""
    turns = [Turn("system", system)]
    for text in texts:
        turns += [Turn("user", text), Turn("assistant", "I see.")]
    return reply(turns[:-1])


@pytest.mark.parametrize("text", ["Hello", "hi!", "Good morning", "Hey there", " Bonjour "])
def test_a_greeting_is_answered(text: str) -> None:
    assert said(text) == GREETING


@pytest.mark.parametrize("text", ["What is Turnwise?", "tell me about ws_bench", "Was ist Turnwise?"])
def test_it_says_what_turnwise_is_and_what_it_is_itself(text: str) -> None:
    assert said(text) == f"{ABOUT}\n\n{STAND_IN}"


@pytest.mark.parametrize("text", ["Sing!", "Who are you?", "How does Turnwise persist a turn?", "Was kostet das?"])
def test_without_sources_it_says_in_one_line_that_it_is_a_stand_in(text: str) -> None:
    assert said(text) == STAND_IN
    assert "\n" not in STAND_IN
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        assert variable in STAND_IN


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("The documents could not be searched just now. Say so in one short sentence first.", OUT_OF_REACH),
        ("The search in the documents found nothing. Say so first.", NO_DOCUMENTS),
        ("Some tools cannot be reached just now. Say so where the answer would have needed them.", TOOLS_OUT_OF_REACH),
    ],
)
def test_it_says_what_its_instructions_say_is_missing(system: str, text: str) -> None:
    assert said("What is Turnwise?", system=system) == f"{text} {STAND_IN}"


def test_asked_for_words_to_search_for_it_gives_those_of_the_question() -> None:
    assert said("Where is the spool?", system="Give up to eight search terms.") == "Where is the spool?"


def test_the_sentences_that_match_are_quoted_with_their_numbers() -> None:
    answer = said("Does the spool survive a crash?", system=SOURCES)
    assert "It survives a crash of the service. [2]" in answer
    assert "Bananas" not in answer
    assert "[1]" not in answer


def test_sources_may_stand_in_the_question() -> None:
    assert said(f"{SOURCES}\nQuestion: what samples the event loop lag?") == (
        "The event loop lag is sampled by a thread. [1]"
    )
    assert said(f"What colour are bananas?\n\n{SOURCES}") == "Bananas are yellow. [3]"
    assert said(f"{SOURCES}\nWhat colour are bananas?") == "Bananas are yellow. [3]"


def test_sources_that_do_not_match_are_not_made_to() -> None:
    assert said("Who won the regatta?", system=SOURCES) == NOTHING_FOUND


def test_it_remembers_a_name() -> None:
    assert said("My name is Ada.", "What is my name?") == "Your name is Ada."
    assert said("Hi, call me Bob", "Nice weather.", "what's my name?") == "Your name is Bob."


def test_it_remembers_what_was_told() -> None:
    assert said("My favourite colour is teal. I like it.", "What is my favourite colour?") == (
        "You told me: “My favourite colour is teal.”"
    )
    assert "have not told me what your dog is" in said("Hello", "What is my dog?")


def test_it_quotes_earlier_messages() -> None:
    assert said("The code is 1234.", "Fine.", "What did I say first?") == "You said: “The code is 1234.”"
    assert said("The code is 1234.", "What did I just say?") == "You said: “The code is 1234.”"
    assert said("What was my previous message?") == "This is your first message here."


def test_a_related_earlier_message_is_recalled() -> None:
    assert said("The deploy failed on Tuesday", "Why did the deploy fail?").startswith(
        "Earlier you wrote: “The deploy failed on Tuesday”"
    )


def test_anything_else_gets_an_answer_that_helps() -> None:
    assert said("Sing!") != ""
    assert reply([]) != ""
    assert reply([Turn("user", "")]) != ""


def test_it_makes_titles() -> None:
    system = "Write a short title for the conversation. Answer with the title only."
    assert said("How do I measure the lag of an event loop under load?", system=system) == "How do i measure the lag"
    assert title_for("") == "Conversation"


def test_content_may_be_parts_or_nothing() -> None:
    turns = turns_of(
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": []},
            {"content": 3},
        ]
    )
    assert turns == [Turn("user", "a\nb"), Turn("assistant", ""), Turn("", "")]


def test_a_prompt_of_megabytes_is_answered() -> None:
    turns = turns_of(
        [{"role": "user", "content": "word " * 1_000_000}, {"role": "user", "content": "what did I say? " * 9}]
    )
    assert reply(turns)


TOOL = [Turn("user", "Which notes are there?"), Turn("assistant", "")]


def test_a_tools_result_is_the_answer() -> None:
    assert reply([*TOOL, Turn("tool", "There is 1 note: (1) milk")]) == "There is 1 note: (1) milk"
    assert reply([*TOOL, Turn("tool", "One."), Turn("tool", "Two."), Turn("tool", "One.")]) == "One.\n\nTwo."
    assert reply([*TOOL, Turn("tool", "The user did not allow this call. Do not try it again.")]) == NOT_ALLOWED
    assert reply([*TOOL, Turn("tool", "")]) != ""


def test_of_a_long_result_it_is_the_sentence_that_was_asked_for() -> None:
    long = " ".join(f"Sentence number {number} is about nothing at all." for number in range(20))
    assert reply([*TOOL, Turn("tool", f"{long} The notes are about milk and bread.")]) == (
        "The notes are about milk and bread."
    )
    assert reply([*TOOL, Turn("tool", "x " * 400)]).endswith("x…")
