"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""

from backend_kit.kpi import buckets
from backend_kit.kpi.core import PHASES, Amounts, Counter, Gauge, GaugedSeconds, Kpi, PhaseTimer, Seconds, Status, Timer
from backend_kit.kpi.labels import Labelled
from backend_kit.kpi.ledger import Ledger, LedgerRow, current_ledger, phase

__all__ = [
    "PHASES",
    "Amounts",
    "Counter",
    "Gauge",
    "GaugedSeconds",
    "Kpi",
    "Labelled",
    "Ledger",
    "LedgerRow",
    "PhaseTimer",
    "Seconds",
    "Status",
    "Timer",
    "buckets",
    "current_ledger",
    "phase",
]
