"""One call of search or rerank as a whole: its ledger, its log line, and the header that reports it to the caller."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from backend_kit.kpi import Kpi, Ledger
from backend_kit.wire import ServiceError

logger = logging.getLogger("turnwise.request")

EXCHANGE_HEADER: Final = "X-Exchange-ID"
"""The turn that a call belongs to, as its caller names it; it stands in the log line, so that the two can be joined."""
TIMING_HEADER: Final = "Server-Timing"
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@contextmanager
def call(kpi: Kpi, route: str, request_id: str, headers: Mapping[str, str]) -> Iterator[Ledger]:
    """Time what the block does, and log it however it ends. Raises what the block raises. Nothing that a person wrote
    is in the line."""
    ledger = Ledger(kpi)
    status = "error"
    try:
        with ledger.activate():
            yield ledger
        status = "ok"
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    except ServiceError as error:
        status = error.code.value
        raise
    finally:
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", _line(ledger, route, status, request_id, headers.get(EXCHANGE_HEADER, "")))


def timing(ledger: Ledger) -> dict[str, str]:
    """The call so far as a Server-Timing header (W3C): `total`, and each phase with its start, in milliseconds."""
    total_ms = (time.perf_counter() - ledger.started) * 1e3
    rows = [f"{row['phase']};dur={row['ms']:.3f};start={row['start_ms']:.3f}" for row in ledger.rows()]
    return {TIMING_HEADER: ", ".join([f"total;dur={total_ms:.3f}", *rows])}


def _line(ledger: Ledger, route: str, status: str, request_id: str, exchange_id: str) -> str:
    total_ms = (time.perf_counter() - ledger.started) * 1e3
    took: dict[str, float] = {}
    for row in ledger.rows():
        took[row["phase"]] = took.get(row["phase"], 0.0) + row["ms"]
    exchange = exchange_id if _ID.fullmatch(exchange_id) else "none"
    phases = "".join(f" {phase}={ms:.3f}" for phase, ms in took.items())
    return (
        f"request_id={request_id} exchange_id={exchange} route={route} status={status} total_ms={total_ms:.3f}{phases}"
    )
