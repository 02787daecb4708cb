"""Questions to a person as LangGraph's interrupts, and the values with which a client resumes as a person's answers.

An interrupt's value is what its node raised. A tool call of our own agents is asked about in langchain's shape as well,
which chat pages draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID, uuid5

from agentic_backend.agent.people import REVIEW, TOOL_APPROVAL, VALUE
from agentic_backend.session.stream import HumanAnswer

_RUNS: Final = UUID("4b7d7b0e-6d0c-5a36-9d0f-3f4a0f8e6b52")
_TASKS: Final = UUID("0c0d4e6a-52a3-5b1e-8f5d-9a3f1d7c8e41")
_ALLOWED: Final = ("approve", "accept", "allow", "yes", "edit")
_PLAIN: Final = frozenset({"question", "free_text", "interrupt_id", "checkpoint_id", "id"})
"""The only keys in the question of a node that asked with plain text."""
_OURS: Final = ("interrupt_id", "checkpoint_id", "questions", "id")


def run_id_of_answer(exchange_id: str, checkpoint_id: str) -> str:
    """The run of a person's answer to this question of an exchange."""
    return str(uuid5(_RUNS, f"{exchange_id}/{checkpoint_id}"))


def task_of(payload: Mapping[str, Any]) -> str:
    """The task that waits with a question."""
    return str(uuid5(_TASKS, payload["checkpoint_id"]))


def interrupts(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The interrupts of a question, each with `value` and `id`."""
    return [{"value": _value(one), "id": name} for name, one in _questions(payload)]


def answer_of(payload: Mapping[str, Any], resume: Any) -> HumanAnswer:
    """What a client resumes with, as our agents read it: an answer to the first question, or answers by the ids of
    several."""
    questions = dict(_questions(payload))
    if isinstance(resume, dict) and resume and resume.keys() <= questions.keys():
        given = {name: _answered(questions[name], one) for name, one in resume.items()}
        only = next(iter(given.values()))
        return HumanAnswer(only if len(questions) == 1 else {"answers": given})
    return HumanAnswer(_answered(next(iter(questions.values())), resume))


def _questions(payload: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    several = payload.get("questions")
    if several:
        return [(one["id"], one) for one in several]
    return [(payload.get("interrupt_id") or payload["checkpoint_id"], payload)]


def _value(question: Mapping[str, Any]) -> Any:
    """What the node raised, as far as its question shows it."""
    stage = question.get("stage")
    if stage == VALUE:
        return question["metadata"]["value"]
    if stage == REVIEW and "action_requests" in question:
        asked: dict[str, Any] = {"action_requests": question["action_requests"]}
        return asked | ({"review_configs": question["review_configs"]} if "review_configs" in question else {})
    if question.keys() <= _PLAIN:
        return question.get("question", "")
    value = {key: item for key, item in question.items() if key not in _OURS and item is not False}
    if "choices" in value:
        value["choices"] = [{key: item for key, item in one.items() if item is not False} for one in value["choices"]]
    if stage == TOOL_APPROVAL:
        value |= _as_review(question)
    return value


def _as_review(question: Mapping[str, Any]) -> dict[str, Any]:
    """The same question in langchain's shape."""
    about = question.get("metadata") or {}
    name = str(about.get("name", ""))
    request = {"name": name, "args": about.get("arguments", {}), "description": question.get("question", "")}
    return {
        "action_requests": [request],
        "review_configs": [{"action_name": name, "allowed_decisions": ["approve", "reject"]}],
    }


def _answered(question: Mapping[str, Any], said: Any) -> Any:
    stage = question.get("stage")
    if stage == TOOL_APPROVAL:
        return _choice(said)
    if stage == REVIEW and "action_requests" in question:
        return (
            said if isinstance(said, dict) else {"decisions": said} if isinstance(said, list) else {"text": str(said)}
        )
    if stage == VALUE or not question.get("choices"):
        return {"value": said}  # whatever it looks like, it is what the node gets
    return said


def _choice(said: Any) -> Any:
    """Whether a tool may be called: a choice of ours unchanged, else langchain's decision, a word, or a yes or no."""
    if isinstance(said, dict) and "choice_id" in said:
        return said
    decisions = said.get("decisions") if isinstance(said, dict) else said
    first = decisions[0] if isinstance(decisions, Sequence) and not isinstance(decisions, str) and decisions else said
    kind = first.get("type", first.get("approved")) if isinstance(first, dict) else first
    allowed = kind is True or (isinstance(kind, str) and kind.lower() in _ALLOWED)
    return {"choice_id": "allow" if allowed else "deny"}
