"""A question to a person: as a form of the client's or as text, and the answer in either shape. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp_types import ClientCapabilities, ElicitResult

Question = Mapping[str, Any]
"""The payload of an exchange that waits (docs/protocol.md#an-agent-that-asks)."""

_CHOICE: Final = "choice"
_TEXT: Final = "text"


def takes_forms(capabilities: ClientCapabilities | None) -> bool:
    """Whether a client can show its user a form. A client that names no kind dates from when forms were the only
    kind."""
    asks = None if capabilities is None else capabilities.elicitation
    return asks is not None and (asks.form is not None or asks.url is None)


def form_of(payload: Question) -> tuple[str, dict[str, Any]]:
    """A form's text, and its fields as a flat JSON Schema. Of several questions it shows the first."""
    question = _first(payload)
    choices = question.get("choices") or ()
    fields: dict[str, Any] = {}
    if choices:
        ids, labels = [choice["id"] for choice in choices], [choice["label"] for choice in choices]
        fields[_CHOICE] = {"type": "string", "title": "Choice", "enum": ids, "enumNames": labels}
    if question.get("free_text") or not choices:
        fields[_TEXT] = {"type": "string", "title": "Answer"}
    required = list(fields) if len(fields) == 1 else []
    return _question_text(question), {"type": "object", "properties": fields, "required": required}


def answer_in(payload: Question, result: ElicitResult | None) -> dict[str, Any] | None:
    """The answer in a filled form, None if the person gave none."""
    content = result.content if result is not None and result.action == "accept" else None
    if not content:
        return None
    choice, text = content.get(_CHOICE), content.get(_TEXT)
    ids = [known["id"] for known in _first(payload).get("choices") or ()]
    if isinstance(choice, str) and choice in ids:
        words = {"answer": text} if isinstance(text, str) and text.strip() else {}
        return _named(payload, {"choice_id": choice, **words})
    if isinstance(text, str) and text.strip():
        return _named(payload, {"text": text.strip()})
    return None


def answer_of(payload: Question, words: str) -> dict[str, Any] | None:
    """The answer in a text: a choice by its id, label or number, else free text. None if it must be one of the choices
    and is not."""
    question = _first(payload)
    said = words.strip()
    choices: Sequence[Mapping[str, Any]] = question.get("choices") or ()
    for number, choice in enumerate(choices, 1):
        names = (str(choice["id"]), str(choice["label"]), str(number))
        if said.casefold() in map(str.casefold, names):
            return _named(payload, {"choice_id": choice["id"]})
    if choices and not question.get("free_text"):
        return None
    return _named(payload, {"text": said})


def in_words(payload: Question) -> str:
    """The question with its choices, numbered. Of several questions it is the first; the others are asked next."""
    question = _first(payload)
    choices = [f"{number}. {choice['label']}" for number, choice in enumerate(question.get("choices") or (), 1)]
    return "\n\n".join([_question_text(question), *(["\n".join(choices)] if choices else [])])


def _first(payload: Question) -> Question:
    several = payload.get("questions")
    return several[0] if several else payload


def _question_text(question: Question) -> str:
    return "\n\n".join(str(text) for key in ("title", "question") if (text := question.get(key)))


def _named(payload: Question, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to this question alone, not to a later one of the same exchange."""
    return {**answer, "checkpoint_id": payload["checkpoint_id"]}
