"""What the fake model says without a knob."""

import pytest

from ws_bench.fakes.answers import ABOUT, GREETING, NOTHING_FOUND, Turn, reply, title_for, turns_of

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


@pytest.mark.parametrize("text", ["What is Turnwise?", "Who are you?", "tell me about ws_bench"])
def test_it_says_what_turnwise_is(text: str) -> None:
    assert said(text) == ABOUT


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
    assert said("Sing!").startswith("You wrote: “Sing!” I am the built-in model")
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
