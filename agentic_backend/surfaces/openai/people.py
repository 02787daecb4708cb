"""A question to a person as a text answer, and the person's next message as its reply.

Clients of these shapes know only questions and answers. So the question is the answer to one request, and the run
continues with the user's message of the next one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_backend.llm.prompt import HistoryItem

Question = Mapping[str, Any]
"""The payload of an exchange that waits (docs/protocol.md#an-agent-that-asks)."""


def in_words(payload: Question) -> str:
    """The question as it is shown: its title and text, and its choices, numbered. Of several, each by its number."""
    questions = _questions(payload)
    if len(questions) == 1:
        return _one(questions[0])
    return "\n\n".join(f"({number}) {_one(question)}" for number, question in enumerate(questions, 1))


def was_asked(payload: Question, history: Sequence[HistoryItem]) -> bool:
    """Whether a conversation's newest answer is this question: else the user has gone back, or moved on."""
    return bool(history) and history[-1].role == "assistant" and in_words(payload) in history[-1].text


def answer_of(payload: Question, reply: str) -> dict[str, Any] | None:
    """The answer to the question in a text reply, None if it must be one of the choices and is not.

    To several questions the reply answers the first one; the others are asked again.
    """
    question = _questions(payload)[0]
    words = reply.strip()
    choices = question.get("choices") or ()
    for number, choice in enumerate(choices, 1):
        names = (str(choice["id"]), str(choice["label"]), f"{number}", f"{number}.")
        if words.casefold() in map(str.casefold, names):
            return {"choice_id": choice["id"]}
    if choices and not question.get("free_text"):
        return None
    return {"text": words}


def _questions(payload: Question) -> Sequence[Question]:
    return payload.get("questions") or (payload,)


def _one(question: Question) -> str:
    told = [text for key in ("title", "question") if (text := question.get(key))]
    choices = [_choice(number, choice) for number, choice in enumerate(question.get("choices") or (), 1)]
    return "\n\n".join([*told, *(["\n".join(choices)] if choices else [])])


def _choice(number: int, choice: Mapping[str, Any]) -> str:
    description = f": {choice['description']}" if choice.get("description") else ""
    return f"{number}. {choice['label']}{description}"
