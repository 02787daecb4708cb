"""Which ports the local start needs, and whether they are free."""

import socket
from dataclasses import dataclass

from turnwise.errors import PortTaken


@dataclass(frozen=True, slots=True)
class Wanted:
    """A TCP port that `purpose` is going to listen on."""

    purpose: str
    host: str
    port: int


def require_free(wanted: list[Wanted]) -> None:
    """Raise `PortTaken` that names every port of the list that is taken, or wanted twice, and by what it is wanted."""
    problems: list[str] = []
    unusable: dict[str, list[Wanted]] = {}
    seen: dict[int, str] = {}
    for want in wanted:
        if want.port in seen:
            problems.append(f"port {want.port} is wanted by both {seen[want.port]} and {want.purpose}")
        elif reason := _unusable(want):
            unusable.setdefault(reason, []).append(want)
        seen[want.port] = want.purpose
    problems += [_said(reason, wants) for reason, wants in unusable.items()]
    if problems:
        raise PortTaken("; ".join(problems))


def _said(reason: str, wants: list[Wanted]) -> str:
    """One port in full; of several, what differs."""
    if len(wants) == 1:
        return f"port {wants[0].port} ({wants[0].host}), wanted by {wants[0].purpose}, {reason}"
    each = ", ".join(f"{want.port} ({want.purpose})" for want in sorted(wants, key=lambda want: want.port))
    return f"each of these ports {reason}: {each}"


def _unusable(want: Wanted) -> str | None:
    """Why nothing can listen there, or None. SO_REUSEADDR as servers do: a socket in TIME_WAIT does not count."""
    family = socket.AF_INET6 if ":" in want.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((want.host, want.port))
            probe.listen(1)
        except PermissionError:
            return "may not be opened by this user"
        except OSError:
            return "is taken"
    return None
