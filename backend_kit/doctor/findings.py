"""What an examination finds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from backend_kit.wire import dumps


class Health(StrEnum):
    """How something is, in one word."""

    OK = "ok"
    SLOW = "slow"
    """It works, and worse than it could: later, or with less room."""
    WRONG = "wrong"
    """It answers, and will not do as it is."""
    AWAY = "away"
    """It does not answer."""
    NOT_USED = "not used"


_MATTERS: Final = frozenset({Health.SLOW, Health.WRONG, Health.AWAY})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One row: `what` was looked at, its `state`, the `figure` with its unit, and what to do (`remedy`: the setting's
    name or the command). Texts are of one line and hold no secret and nothing that an exception says.

    `facts` are figures that the command adds up over services. Raises ValueError where it is not `ok` nor `not used`
    and says nothing of what to do.
    """

    what: str
    state: Health
    figure: str = ""
    remedy: str = ""
    facts: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state in _MATTERS and not self.remedy:
            raise ValueError(f"{self.what}: {self.state} without what to do")


def encode_findings(findings: Sequence[Diagnosis]) -> bytes:
    """The findings as one line, without its end."""
    return dumps([asdict(finding) for finding in findings])
