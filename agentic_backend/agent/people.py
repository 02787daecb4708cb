"""Questions to a person: what an interrupted run asks, and what a person's answer makes of it. Functions without I/O.

An interrupt's value is shown by what it is: a question in our own shape (`HitlPayload`, or a text), langchain's request
to review tool calls, or any other JSON value, which is shown as it stands.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agentic_backend.errors import BadRequest, TurnFailed
from backend_kit.auth import Outcome
from backend_kit.wire import dumps, loads

TOOL_APPROVAL: Final = "tool_approval"
"""The stage of Sammy's question whether a tool may be called."""
REVIEW: Final = "action_review"
"""`stage` of a question made of langchain's request to review tool calls."""
VALUE: Final = "value"
"""`stage` of a question that shows an interrupt's value as it stands."""

_MAX_BYTES: Final = 16 * 1024
"""Size limit of what a person is asked: a compatible frame has 32 KiB."""
_MOST_SHOWN: Final = 4_000
"""Characters of a question's text that is made of what stands beside it in full."""
_OURS: Final = frozenset({"questions", "action_requests", "review_configs"})
"""Fields of a question that only this module fills, from which answers are read."""
_DECISIONS: Final = ("approve", "edit", "reject", "respond")
_WITHOUT_CONFIG: Final = ("approve", "reject")
"""What is allowed for an action whose request comes with configurations, but without its own."""


class Choice(BaseModel):
    """One of the answers that a person may pick."""

    model_config = ConfigDict(extra="forbid")

    id: str
    label: str
    description: str | None = None
    default: bool = False


class HitlPayload(BaseModel):
    """What a person is asked (docs/contract.md#questions-to-a-person). It must have a question or a title."""

    model_config = ConfigDict(extra="allow")

    stage: str | None = None
    title: str | None = None
    question: str | None = None
    choices: list[Choice] | None = None
    free_text: bool = False
    metadata: dict[str, Any] | None = None
    checkpoint_id: str | None = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if not (self.question or "").strip() and not (self.title or "").strip():
            raise ValueError("neither a question nor a title")
        ids = [choice.id for choice in self.choices or ()]
        if len(set(ids)) != len(ids):
            raise ValueError("two choices have one id")
        if sum(choice.default for choice in self.choices or ()) > 1:
            raise ValueError("more than one default")
        return self


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Action(_Shape):
    """A tool call under review. Langchain's first releases named its arguments `arguments`."""

    name: str
    args: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _has_arguments(self) -> Self:
        if (self.args is None) == (self.arguments is None):
            raise ValueError("not one set of arguments")
        return self


class _ReviewConfig(_Shape):
    action_name: str
    allowed_decisions: list[str]


class _Review(_Shape):
    """Langchain's request to review tool calls, answered by a decision for each."""

    action_requests: list[_Action]
    review_configs: list[_ReviewConfig]

    @model_validator(mode="after")
    def _has_actions(self) -> Self:
        if not self.action_requests:
            raise ValueError("nothing to review")
        return self


class _Approval(_Shape):
    """Langchain's request to review one tool call, answered by one decision."""

    type: str
    tool_call_id: str
    name: str
    args: dict[str, Any]
    description: str = ""

    @model_validator(mode="after")
    def _is_approval(self) -> Self:
        if self.type != "tool_approval":
            raise ValueError("another type")
        return self


def question_for(interrupts: Sequence[tuple[str, Any]], run_id: str) -> dict[str, Any]:
    """What a person is asked about a run that stands at these interrupts, at least one, each its id and its value.

    The fields are those of the first one's question, with its id as `interrupt_id`. Of several, `questions` has each,
    with its `id`. `checkpoint_id` names this question and no other, since a run may stand at one checkpoint for several
    questions; `run_of` has the run of it. Raises `TurnFailed` for a value that is no JSON, or for more than 16 KiB.
    """
    shown = [(name, _question(value)) for name, value in interrupts]
    payload = {**shown[0][1], "interrupt_id": shown[0][0], "checkpoint_id": f"{run_id}:{uuid4().hex[:8]}"}
    if len(shown) > 1:
        payload["questions"] = [{**question, "id": name} for name, question in shown]
    if len(dumps(payload)) > _MAX_BYTES:
        raise TurnFailed("the interrupt cannot be shown: too large")
    return payload


def run_of(payload: Mapping[str, Any]) -> str:
    """The id of the run that waits with this question."""
    return str(payload["checkpoint_id"]).partition(":")[0]


def answers_for(payload: Mapping[str, Any], answer: Any, *, plain: bool = False) -> dict[str, Any]:
    """The values with which a run continues, by interrupt id, for a person's answer to the question `payload`.

    `answer` is to the first question, or `{"answers": {id: answer}}` to some of several or all; the others are asked
    again. Raises `BadRequest` with the `field` of an answer that its question cannot take. An answer to a question in
    our own shape is the agent's to judge, and never refused; with `plain`, for graphs that do not know that shape, the
    words or the value of an answer to a question without choices are given alone, as for one that shows a value.
    """
    return {
        question.get("id", ""): _value(question, given, where, plain=plain)
        for question, given, where in _pairs(payload, answer)
    }


def answer_in_words(payload: Mapping[str, Any], answer: Any) -> str:
    """A person's answer in words: for each question the label of the choice, the free text, or the decisions.
    Raises `BadRequest`, as `answers_for`."""
    return "\n".join(_words(question, given) for question, given, _ in _pairs(payload, answer))


def outcome_of(payload: Mapping[str, Any], answer: Any) -> Outcome:
    """How a person answered: where tool calls were asked about, `approved` or, of any of them, `refused`; else
    `answered`. Raises `BadRequest`, as `answers_for`."""
    allowed = [_allows(question, given, where) for question, given, where in _pairs(payload, answer)]
    if False in allowed:
        return "refused"
    return "approved" if True in allowed else "answered"


def _allows(question: Mapping[str, Any], given: Any, where: str) -> bool | None:
    """Whether an answer lets the tools run that its question is about; None where it is about none."""
    if question.get("stage") == TOOL_APPROVAL:
        return agreed(given)
    if "action_requests" in question and question.get("stage") == REVIEW:
        return all(decision["type"] in ("approve", "edit") for decision in _decisions(question, given, where))
    return None


def agreed(decision: Any) -> bool:
    """Whether a person explicitly agreed to a call of Sammy's: any other answer is a refusal."""
    return isinstance(decision, dict) and decision.get("choice_id") == "allow"


def _question(value: Any) -> dict[str, Any]:
    """The question that an interrupt's value makes, without ids."""
    try:
        plain = loads(dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise TurnFailed("the interrupt cannot be shown: no JSON") from None
    return _review_of(plain) or _approval_of(plain) or _own(plain) or _shown(plain)


def _own(value: Any) -> dict[str, Any] | None:
    given = {"question": value} if isinstance(value, str) else value
    if isinstance(given, dict) and not _OURS.isdisjoint(given):
        return None
    try:
        return HitlPayload.model_validate(given, strict=True).model_dump(exclude_none=True)
    except ValidationError:
        return None


def _shown(value: Any) -> dict[str, Any]:
    return {
        "stage": VALUE,
        "title": "The agent waits for an answer",
        "question": _cut(json.dumps(value, indent=2, ensure_ascii=False)),
        "free_text": True,
        "metadata": {"value": value},
    }


def _review_of(value: Any) -> dict[str, Any] | None:
    try:
        review = _Review.model_validate(value)
    except ValidationError:
        return None
    beside = {key: value[key] for key in ("action_requests", "review_configs")}
    return {**_asked_about(review.action_requests, _allowed(beside)), **beside}


def _approval_of(value: Any) -> dict[str, Any] | None:
    """The question about one call. Which decisions its tool allows is in a schema that the value does not hold."""
    try:
        approval = _Approval.model_validate(value)
    except ValidationError:
        return None
    action = {"name": approval.name, "args": approval.args, "description": approval.description}
    asked = _asked_about([_Action.model_validate(action)], [_DECISIONS])
    return {**asked, "metadata": {"tool_call_id": approval.tool_call_id}, "action_requests": [action]}


def _asked_about(actions: Sequence[_Action], allowed: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The question about tool calls: approve or reject all of them, where each allows it."""
    title = f"Allow {actions[0].name}?" if len(actions) == 1 else f"Allow {len(actions)} calls?"
    told = [action.description or f"The agent wants to call {action.name}." for action in actions]
    for_all = [kind for kind in _DECISIONS if all(kind in kinds for kinds in allowed)]
    choices = [choice for choice in _REVIEW_CHOICES if choice["id"] in for_all]
    asked: dict[str, Any] = {"stage": REVIEW, "title": title, "question": _cut("\n\n".join(told))}
    if choices:
        asked["choices"] = choices
    # A tool that stands for the person's own words is not to be approved; where it may be, words would be ambiguous.
    asked["free_text"] = "respond" in for_all and "approve" not in for_all
    return asked


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


_REVIEW_CHOICES: Final[tuple[dict[str, Any], ...]] = (
    {"id": "approve", "label": "Approve"},
    {"id": "reject", "label": "Reject", "default": True},
)


def _allowed(question: Mapping[str, Any]) -> list[Sequence[str]]:
    """The decisions that each action of a question about tool calls allows."""
    actions = question["action_requests"]
    configs = question.get("review_configs")
    if configs is None:
        return [_DECISIONS] * len(actions)
    named = {config["action_name"]: config["allowed_decisions"] for config in configs}
    return [named.get(action["name"], _WITHOUT_CONFIG) for action in actions]


def _pairs(payload: Mapping[str, Any], answer: Any) -> list[tuple[Mapping[str, Any], Any, str]]:
    """Each question that is answered, its answer, and where in what was sent that is. Raises `BadRequest`."""
    first = {**payload, "id": payload.get("interrupt_id", "")}
    questions = {question["id"]: question for question in payload.get("questions") or (first,)}
    given = answer.get("answers") if isinstance(answer, dict) else None
    known = isinstance(given, dict) and bool(given) and given.keys() <= questions.keys()
    if given is not None and not known and "questions" in payload:
        raise BadRequest("answers to no question", field="answers")
    if known:
        assert isinstance(given, dict)
        return [(questions[name], one, f"answers.{name}.") for name, one in given.items()]
    return [(next(iter(questions.values())), answer, "")]


def _value(question: Mapping[str, Any], given: Any, where: str, *, plain: bool) -> Any:
    """The value with which the node of one question continues."""
    if "action_requests" in question and question.get("stage") == REVIEW:
        decisions = _decisions(question, given, where)
        return {"decisions": decisions} if "review_configs" in question else decisions[0]
    if question.get("stage") == VALUE or (plain and not question.get("choices")):
        return _unwrapped(given)
    return given


def _unwrapped(given: Any) -> Any:
    """What was answered to a value of the author's own: the words, or the JSON value, without our wrapping."""
    if not isinstance(given, dict):
        return given
    said = {key: item for key, item in given.items() if key != "checkpoint_id"}
    return next(iter(said.values())) if said.keys() in ({"text"}, {"value"}) else said


def _decisions(question: Mapping[str, Any], given: Any, where: str) -> list[dict[str, Any]]:
    """A decision for each action, checked against what is allowed. Raises `BadRequest`."""
    actions, allowed = question["action_requests"], _allowed(question)
    said = given if isinstance(given, dict) else {}
    if "decisions" in said:
        decisions, at = said["decisions"], f"{where}decisions"
        if not isinstance(decisions, list) or len(decisions) != len(actions):
            raise BadRequest("not a decision for each action", field=at)
        places = [f"{at}[{number}]" for number in range(len(actions))]
    else:
        kind = said.get("choice_id", "respond" if "text" in said else None)
        if kind not in ("approve", "reject", "respond"):
            raise BadRequest("no decision", field=f"{where}choice_id")
        decisions = [_one_for_all(kind, said.get("answer", said.get("text")))] * len(actions)
        places = [f"{where}{'choice_id' if 'choice_id' in said else 'text'}"] * len(actions)
    return [
        _checked(decision, action, kinds, place)
        for decision, action, kinds, place in zip(decisions, actions, allowed, places, strict=True)
    ]


def _one_for_all(kind: str, words: Any) -> dict[str, Any]:
    takes_words = kind != "approve" and isinstance(words, str) and words.strip()
    return {"type": kind, "message": words} if takes_words else {"type": kind}


def _checked(decision: Any, action: Mapping[str, Any], allowed: Sequence[str], place: str) -> dict[str, Any]:
    """A decision on one action. Raises `BadRequest` for one that langchain's middleware would fail on."""
    kind = decision.get("type") if isinstance(decision, dict) else None
    if not isinstance(decision, dict) or kind not in _DECISIONS or kind not in allowed:
        raise BadRequest("a decision that is not allowed", field=_within(place, "type"))
    message = decision.get("message")
    if not isinstance(message, str | None) or (kind == "respond" and not message):
        raise BadRequest("no message", field=_within(place, "message"))
    if kind == "edit":
        edited, arguments = decision.get("edited_action"), "args" if "args" in action else "arguments"
        if not isinstance(edited, dict) or not isinstance(edited.get("name"), str):
            raise BadRequest("no edited action", field=_within(place, "edited_action"))
        if not isinstance(edited.get(arguments), dict):
            raise BadRequest("no edited arguments", field=_within(place, f"edited_action.{arguments}"))
    return decision


def _within(place: str, key: str) -> str:
    """Where a part of a decision is: of one that was made of a choice or of words, that itself."""
    return f"{place}.{key}" if place.endswith("]") else place


def _words(question: Mapping[str, Any], given: Any) -> str:
    if isinstance(given, str):
        return given
    said = given if isinstance(given, dict) else {}
    text = next((said[key] for key in ("answer", "text") if isinstance(said.get(key), str)), "")
    labels = {choice["id"]: choice["label"] for choice in question.get("choices") or ()}
    choice = said.get("choice_id")
    picked = labels.get(choice, choice) if isinstance(choice, str) else ""
    if picked or text:
        return "\n".join(filter(None, (picked, text)))
    decisions = said.get("decisions")
    if isinstance(decisions, list) and decisions:
        return "\n".join(str(one.get("type")) for one in decisions if isinstance(one, dict))
    plain = {key: item for key, item in said.items() if key != "checkpoint_id"} if said else given
    return json.dumps(plain, ensure_ascii=False)
