"""The checks of a service and what they find: run side by side, each within its time, and said in one line."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final, NoReturn

from backend_kit.wire import dumps

WITHIN_S: Final = 4.0
"""What a check may take. All of them begin at once."""
_THREADS: Final = 32
"""Those that hang in a system call, or in a look-up of a name, must leave some to the others."""


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


Look = Callable[[], Awaitable[Sequence[Diagnosis]]]


@dataclass(frozen=True, slots=True)
class Check:
    """One look at something: `what` it is, and what to do where no answer comes in time (`remedy`)."""

    what: str
    look: Look
    remedy: str


def in_thread(look: Callable[[], Sequence[Diagnosis]]) -> Look:
    """A check that blocks, in a thread, in which it stays where it hangs."""

    async def aside() -> Sequence[Diagnosis]:
        return await asyncio.to_thread(look)

    return aside


async def examine(checks: Sequence[Check], within_s: float = WITHIN_S) -> list[Diagnosis]:
    """What they find, in their order. What takes longer than `within_s` is `away`; a check that fails itself says so,
    and takes none of the others with it."""
    found = await asyncio.gather(*(_within(check, within_s) for check in checks), return_exceptions=True)
    return [row for check, rows in zip(checks, found, strict=True) for row in _rows(check, rows)]


def encode_findings(findings: Sequence[Diagnosis]) -> bytes:
    """The findings as one line, without its end."""
    return dumps([asdict(finding) for finding in findings])


def examine_and_end(checks: Sequence[Check]) -> NoReturn:
    """Write to stdout, in one line, what they find, and end the process with 0: at once, whatever still hangs."""
    asyncio.run(_examine_and_end(checks))
    raise AssertionError("the process has ended")


async def _examine_and_end(checks: Sequence[Check]) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    line = encode_findings(await examine(checks)) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread that hangs on a disk or a server would hold an end in order


async def _within(check: Check, within_s: float) -> Sequence[Diagnosis]:
    try:
        async with asyncio.timeout(within_s):
            return await check.look()
    except TimeoutError:
        return [Diagnosis(check.what, Health.AWAY, f"no answer within {within_s:g} s", check.remedy)]


def _rows(check: Check, found: Sequence[Diagnosis] | BaseException) -> Sequence[Diagnosis]:
    if not isinstance(found, BaseException):
        return found
    remedy = "a fault of the doctor, not of what it looked at: please report it"
    return [Diagnosis(check.what, Health.WRONG, f"the check failed: {type(found).__name__}", remedy)]
