"""The TCP ports of a local start: whether they are free, and moving all of them behind a port of the user's choice."""

import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from turnwise.errors import PortTaken, Unusable

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOCAL_URL = re.compile(r"(https?://(?:127\.0\.0\.1|localhost|\[::1\]):)(\d{1,5})(?=[/?#]|$)")


@dataclass(frozen=True, slots=True)
class WantedPort:
    """A TCP port that the program named `purpose` will listen on."""

    purpose: str
    host: str
    port: int


def require_free_ports(wanted: list[WantedPort]) -> None:
    """Raise `PortTaken` if any port is in use or wanted twice; it names each such port and its purposes."""
    problems: list[str] = []
    unusable: dict[str, list[WantedPort]] = {}
    purposes: dict[int, str] = {}
    for want in wanted:
        if want.port in purposes:
            problems.append(f"port {want.port} is wanted by both {purposes[want.port]} and {want.purpose}")
        elif reason := _unusable(want):
            unusable.setdefault(reason, []).append(want)
        purposes[want.port] = want.purpose
    problems += [_described(reason, wants) for reason, wants in unusable.items()]
    if problems:
        raise PortTaken("; ".join(problems))


def _described(reason: str, wants: list[WantedPort]) -> str:
    """The problem of one port in full, or of several in one clause."""
    if len(wants) == 1:
        return f"port {wants[0].port} ({wants[0].host}), wanted by {wants[0].purpose}, {reason}"
    each = ", ".join(f"{want.port} ({want.purpose})" for want in sorted(wants, key=lambda want: want.port))
    return f"each of these ports {reason}: {each}"


def _unusable(want: WantedPort) -> str | None:
    """Why nothing can listen there, None if a server can. SO_REUSEADDR, as servers set it: TIME_WAIT does not count."""
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


def assign_ports(first: int, wanted: Iterable[range]) -> dict[int, int]:
    """New port by old port: `first` and the ports after it, in the order of `wanted`. Raises `Unusable` if they do
    not fit below 65536."""
    olds = list(dict.fromkeys(chain.from_iterable(wanted)))
    last = 65536 - len(olds)
    if not 0 < first <= last:
        raise Unusable(f"PORT={first}: must be from 1 to {last}, for {len(olds)} ports in a row")
    return dict(zip(olds, range(first, first + len(olds)), strict=True))


def with_ports(data: Mapping[str, Any], ports: Mapping[int, int]) -> dict[str, Any]:
    """The content of a configuration file with its ports replaced: those of programs on this machine, and the URLs that
    point to them."""
    here = data.get("host", LOOPBACK[0]) in LOOPBACK
    return {key: _value(value, ports, is_port=here and key in ("port", "metrics_port")) for key, value in data.items()}


def _value(value: Any, ports: Mapping[int, int], *, is_port: bool) -> Any:
    if isinstance(value, dict):
        return with_ports(value, ports)
    if isinstance(value, list):
        return [_value(inner, ports, is_port=False) for inner in value]
    if isinstance(value, str) and (found := _LOCAL_URL.match(value)):
        return f"{found[1]}{ports.get(int(found[2]), int(found[2]))}{value[found.end() :]}"
    return ports.get(value, value) if is_port and isinstance(value, int) else value
