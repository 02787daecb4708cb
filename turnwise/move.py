"""A port of one's own: the page there, everything else behind it, and what the files say of each other kept true."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.errors import StartRefused

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOCAL_URL = re.compile(r"(https?://(?:127\.0\.0\.1|localhost|\[::1\]):)(\d{1,5})(?=[/?#]|$)")


def ports_from(first: int, wanted: Iterable[int | None]) -> dict[int, int]:
    """Which port becomes which: `first` and those behind it, in the order in which they are wanted."""
    olds = list(dict.fromkeys(port for port in wanted if port is not None))
    last = 65536 - len(olds)
    if not 0 < first <= last:
        raise StartRefused(f"PORT={first}: must be from 1 to {last}, for {len(olds)} ports in a row")
    return dict(zip(olds, range(first, first + len(olds)), strict=True))


def moved(data: Mapping[str, Any], ports: Mapping[int, int]) -> dict[str, Any]:
    """The content of a file with other ports: those of this machine's programs, and the URLs that lead to them."""
    here = data.get("host", LOOPBACK[0]) in LOOPBACK
    return {key: _value(value, ports, is_port=here and key in ("port", "metrics_port")) for key, value in data.items()}


def _value(value: Any, ports: Mapping[int, int], *, is_port: bool) -> Any:
    if isinstance(value, dict):
        return moved(value, ports)
    if isinstance(value, list):
        return [_value(inner, ports, is_port=False) for inner in value]
    if isinstance(value, str) and (found := _LOCAL_URL.match(value)):
        return f"{found[1]}{ports.get(int(found[2]), int(found[2]))}{value[found.end() :]}"
    return ports.get(value, value) if is_port and isinstance(value, int) else value
