"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""

from backend_kit.kpi import buckets
from backend_kit.kpi.core import PHASES, Amounts, Counter, Gauge, GaugedSeconds, Kpi, PhaseTimer, Seconds, Status, Timer
from backend_kit.kpi.exposition import MetricsPortTaken, MetricsServer
from backend_kit.kpi.labels import Labelled
from backend_kit.kpi.ledger import Ledger, LedgerRow, current_ledger, phase
from backend_kit.kpi.loop import LoopMonitor
from backend_kit.kpi.runtime import KpiOptions, KpiRuntime
from backend_kit.kpi.summary import Summary

__all__ = [
    "PHASES",
    "Amounts",
    "Counter",
    "Gauge",
    "GaugedSeconds",
    "Kpi",
    "KpiOptions",
    "KpiRuntime",
    "Labelled",
    "Ledger",
    "LedgerRow",
    "LoopMonitor",
    "MetricsPortTaken",
    "MetricsServer",
    "PhaseTimer",
    "Seconds",
    "Status",
    "Summary",
    "Timer",
    "buckets",
    "current_ledger",
    "phase",
]
