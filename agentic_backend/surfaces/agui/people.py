"""Questions to a person as AG-UI's interrupts, and the entries of `resume` as a person's answers.

An interrupt's id holds all that is needed to read an answer to it: nothing is kept between the two runs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, unquote
from zlib import crc32

from agentic_backend.agent.people import REVIEW
from agentic_backend.errors import BadRequest

TOOL_APPROVAL: Final = "tool_approval"
"""`stage` of a question of our own agents about a tool call."""
Kind = Literal["approval", "review", "choice", "words"]
_KINDS: Final[tuple[Kind, ...]] = ("approval", "review", "choice", "words")
_PIECES: Final = 7
_RANK_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class InterruptId:
    """The content of an interrupt's id.

    `checkpoint` names the question, `kind` how it is answered, `question` which of several asked at once it is (""
    where it is the only one), `exchange` the exchange that waits. `hint` is the name of the tool whose arguments may be
    edited (of a review), or the choice that stands for no answer (of choices). `asked` is a hash of the text that the
    exchange answers, `rank` that of the first message after the question.
    """

    checkpoint: str
    kind: Kind
    hint: str
    question: str
    asked: str
    rank: int
    exchange: str

    def __str__(self) -> str:
        plain = (self.checkpoint, self.kind, self.hint, self.question, self.asked, str(self.rank))
        return "/".join((*(quote(piece, safe=":") for piece in plain), self.exchange))

    @classmethod
    def read(cls, text: str) -> "InterruptId | None":
        """Parse an id; None for one that this door did not make."""
        pieces = text.split("/", _PIECES - 1)
        if len(pieces) != _PIECES:
            return None
        checkpoint, kind, hint, question, asked, rank = (unquote(piece) for piece in pieces[:-1])
        known = next((one for one in _KINDS if one == kind), None)
        if known is None or not (rank.isascii() and rank.isdigit() and len(rank) <= _RANK_DIGITS):
            return None
        return cls(checkpoint, known, hint, question, asked, int(rank), pieces[-1])


@dataclass(frozen=True, slots=True)
class Answered:
    """What `resume` means: the exchange that continues at a rank, the answer in the form of `human_resume`, and whether
    the person abandoned every question (`abandoned`) of the exchange, which answers the text with the hash `asked`."""

    exchange: str
    rank: int
    payload: dict[str, Any]
    abandoned: bool
    asked: str


def hash_of(text: str) -> str:
    """What an interrupt's id says of the text that its exchange answers."""
    return f"{crc32(text.encode()):08x}"


def interrupts(
    payload: Mapping[str, Any], exchange_id: str, asked: str, rank: int, calls: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The interrupts of a question. `asked` is the text that the exchange answers, `rank` where it will continue,
    `calls` the client's ids of the thread's tool calls, by the ids that the agent gave them."""
    several = "questions" in payload
    made = []
    for one in payload.get("questions") or (payload,):
        kind, hint = _kind(one)
        name = one["id"] if several else ""
        own = InterruptId(payload["checkpoint_id"], kind, hint, name, hash_of(asked), rank, exchange_id)
        made.append(_interrupt(one, own, _call_of(one, calls)))
    return made


def _interrupt(question: Mapping[str, Any], name: InterruptId, call: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "id": str(name),
        "reason": "tool_call" if call else _reason(name.kind),
        "message": question.get("question") or question.get("title") or "",
        "responseSchema": _schema(question, name.kind, name.hint),
        "metadata": {"turnwise": dict(question)},
    }
    if call:
        about["toolCallId"] = call
    return about


def _reason(kind: Kind) -> str:
    return {"approval": "turnwise:tool_approval", "review": "turnwise:action_review"}.get(kind, "input_required")


def _kind(question: Mapping[str, Any]) -> tuple[Kind, str]:
    stage = question.get("stage")
    ids = [choice["id"] for choice in question.get("choices") or ()]
    if stage == TOOL_APPROVAL and "allow" in ids:
        return "approval", ""
    if stage == REVIEW and "action_requests" in question:
        return "review", _editable(question)
    if ids:
        default = [choice["id"] for choice in question["choices"] if choice.get("default")]
        return "choice", next(iter(default), "")
    return "words", ""


def _editable(question: Mapping[str, Any]) -> str:
    """The name of the only tool under review, where its arguments may be edited."""
    requests = question["action_requests"]
    if len(requests) != 1 or "args" not in requests[0]:
        return ""
    name = str(requests[0]["name"])
    for config in question.get("review_configs") or ():
        if config.get("action_name") == name and "edit" not in config.get("allowed_decisions", ()):
            return ""
    return name


def _call_of(question: Mapping[str, Any], calls: Mapping[str, str]) -> str:
    """The tool call that a question is about, as the client knows it."""
    told = question.get("metadata") or {}
    named = told.get("tool_call_id", told.get("id")) if isinstance(told, Mapping) else None
    return calls.get(named, "") if isinstance(named, str) else ""


def _schema(question: Mapping[str, Any], kind: Kind, hint: str) -> dict[str, Any]:
    """What an answer may look like, as JSON Schema. Answers in our own shape are accepted, too."""
    if kind in ("approval", "review"):
        fields: dict[str, Any] = {"approved": {"type": "boolean"}}
        if kind == "review" and hint:
            fields["editedArgs"] = {"type": "object", "description": "Takes the place of the arguments."}
        return {"type": "object", "properties": fields, "required": ["approved"]}
    ways: list[dict[str, Any]] = []
    if ids := [choice["id"] for choice in question.get("choices") or ()]:
        ways.append(
            {"type": "object", "properties": {"choice_id": {"type": "string", "enum": ids}}, "required": ["choice_id"]}
        )
    if question.get("free_text") or not ids:
        ways.append({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
    return ways[0] if len(ways) == 1 else {"type": "object", "anyOf": ways}


def answered(entries: Sequence[Mapping[str, Any]]) -> Answered:
    """The answer in a `resume` of at least one entry, each with `interruptId`, `status` and `payload`.

    Raises `BadRequest` with the `field` if an id is not one of ours, or belongs to another question than the first one.
    """
    read: list[tuple[InterruptId, Any]] = []
    for number, entry in enumerate(entries):
        name = InterruptId.read(entry["interruptId"])
        first = read[0][0] if read else name
        if name is None or first is None or (name.checkpoint, name.exchange) != (first.checkpoint, first.exchange):
            raise BadRequest("an answer to no open interrupt", field=f"resume[{number}].interruptId")
        read.append((name, _given(name, entry)))
    first = read[0][0]
    answers = {name.question: answer for name, answer in read}
    payload = answers.get("", {"answers": answers})
    return Answered(
        first.exchange,
        first.rank,
        {**payload, "checkpoint_id": first.checkpoint},
        all(entry["status"] == "cancelled" for entry in entries),
        first.asked,
    )


def _given(name: InterruptId, entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry["status"] == "cancelled":
        return _no_answer(name)
    said = entry.get("payload")
    if name.kind in ("approval", "review") and (approved := _approved(said)) is not None:
        return _decided(name, said, approved=approved)
    if isinstance(said, dict):
        return said
    if isinstance(said, str):
        return {"text": said}
    return {"value": said}


def _no_answer(name: InterruptId) -> dict[str, Any]:
    """The answer where the person abandoned a question: a no, the choice that the question names, or nothing."""
    if name.kind in ("approval", "review"):
        return _decided(name, None, approved=False)
    return {"choice_id": name.hint} if name.kind == "choice" and name.hint else {"value": None}


def _approved(said: Any) -> bool | None:
    """Whether a person agreed, in the shape that AG-UI recommends, or by a plain yes or no; None for another shape."""
    approved = said.get("approved") if isinstance(said, dict) else said
    return approved if isinstance(approved, bool) else None


def _decided(name: InterruptId, said: Any, *, approved: bool) -> dict[str, Any]:
    if name.kind == "approval":
        return {"choice_id": "allow" if approved else "deny"}
    edited = said.get("editedArgs") if isinstance(said, dict) else None
    if approved and name.hint and isinstance(edited, dict):
        return {"decisions": [{"type": "edit", "edited_action": {"name": name.hint, "args": edited}}]}
    why = said.get("reason") if isinstance(said, dict) else None
    words = {"answer": why} if not approved and isinstance(why, str) else {}
    return {"choice_id": "approve" if approved else "reject", **words}


def known_calls(ids: Collection[str]) -> dict[str, str]:
    """Ids of tool calls as the client knows them, by the ids that agents gave them: of one that was made unique by a
    rank (`unique_call`) the one before it."""
    known: dict[str, str] = {}
    for one in ids:
        given, sign, rank = one.rpartition("~")
        known[given if sign and rank.isdecimal() else one] = one
    return known


def unique_call(call_id: str, rank: int, number: int, taken: Collection[str]) -> str:
    """The id of a tool call for the client, whose thread already has those in `taken`: small model servers repeat ids,
    or give none."""
    if call_id and call_id not in taken:
        return call_id
    made = f"{call_id}~{rank}"
    return made if made not in taken else f"{call_id}~{rank}{number:03d}"
