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
    problems = []
    seen: dict[int, str] = {}
    for want in wanted:
        if want.port in seen:
            problems.append(f"port {want.port} is wanted by both {seen[want.port]} and {want.purpose}")
        elif reason := _unusable(want):
            problems.append(f"port {want.port} ({want.host}), wanted by {want.purpose}, {reason}")
        seen[want.port] = want.purpose
    if problems:
        raise PortTaken("; ".join(problems))


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
