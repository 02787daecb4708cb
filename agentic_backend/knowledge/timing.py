"""Where knowledge flow says a call's time went, as rows of the turn's ledger."""

import re
from itertools import islice
from typing import Final

from backend_kit.kpi import current_ledger

_MAX_PARTS: Final = 32
_MAX_CHARS: Final = 4096
_MS: Final = r"(\d{1,7}(?:\.\d{1,6})?)"
_PART: Final = re.compile(rf"(?:^|, ?)([a-z][a-z0-9_]{{0,39}});dur={_MS}(?:;start={_MS})?(?=,|$)")


def enter_timing(header: str, began: float, ended: float) -> None:
    """Enter the parts of a Server-Timing header, their names after `kf_`, as rows inside the current phase.

    `began` and `ended` are the call as we saw it, on the perf_counter clock. The other side's clock is another one, so
    its `total` is put into the middle of ours: what is left on either side is the way there and back. A header that is
    no such list enters nothing.
    """
    ledger = current_ledger()
    if ledger is None or not header or len(header) > _MAX_CHARS:
        return
    parts = [
        (name, float(ms) / 1e3, None if start is None else float(start) / 1e3)
        for name, ms, start in (part.groups() for part in islice(_PART.finditer(header), _MAX_PARTS))
    ]
    total_s = next((took_s for name, took_s, _ in parts if name == "total"), 0.0)
    if not 0 < total_s <= ended - began:
        return
    first = began + (ended - began - total_s) / 2
    for name, took_s, start_s in parts:
        if start_s is not None and start_s + took_s <= total_s + 1e-4:
            ledger.add(f"kf_{name}", first + start_s, first + start_s + took_s)
