"""What a difference between this machine's clock and another's means."""

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from backend_kit.doctor.checks import Diagnosis, Health

NOTICED_S: Final = 2.0
"""Above what is left by the second to which a `Date` is rounded, and a slow answer."""
_SHOWN_S: Final = 0.05


def clock_finding(whose: str, ahead_s: float, wrong_s: float, harm: str) -> Diagnosis:
    """`ahead_s`: seconds by which this machine is ahead, negative if behind. Beyond `wrong_s` it is wrong, since
    `harm`."""
    apart_s = abs(ahead_s)
    figure = "0.0 s apart"
    if apart_s >= _SHOWN_S:
        figure = f"this machine is {apart_s:.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    what = f"clock of {whose}"
    if apart_s <= NOTICED_S:
        return Diagnosis(what, Health.OK, figure)
    state = Health.WRONG if apart_s > wrong_s else Health.SLOW
    return Diagnosis(what, state, figure, f"set the clock that is wrong (timedatectl, chronyc tracking): {harm}")


def ahead_of(date: str | None, now: float) -> float | None:
    """Seconds by which `now`, since the epoch, is ahead of a `Date` header, to half a second; None without one."""
    if date is None:
        return None
    try:
        said = parsedate_to_datetime(date)
    except ValueError:
        return None
    # It has whole seconds, cut off.
    return now - (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() - 0.5
