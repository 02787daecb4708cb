"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""

from backend_kit.kpi import buckets
from backend_kit.kpi.core import PHASES, Counter, Gauge, Kpi, PhaseTimer, Status, Timer
from backend_kit.kpi.ledger import Ledger, LedgerRow, current_ledger, phase

__all__ = [
    "PHASES",
    "Counter",
    "Gauge",
    "Kpi",
    "Ledger",
    "LedgerRow",
    "PhaseTimer",
    "Status",
    "Timer",
    "buckets",
    "current_ledger",
    "phase",
]
