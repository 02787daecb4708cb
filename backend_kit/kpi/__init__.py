"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""

from backend_kit.kpi import buckets
from backend_kit.kpi.core import PHASES, Amounts, Counter, Gauge, GaugedSeconds, Kpi, PhaseTimer, Seconds, Status, Timer
from backend_kit.kpi.culprit import Culprit, Culprits, Sighting
from backend_kit.kpi.exposition import MetricsPortTaken, MetricsServer
from backend_kit.kpi.labels import Labelled
from backend_kit.kpi.ledger import Ledger, LedgerRow, Spent, current_ledger, phase
from backend_kit.kpi.loop import LagTotals, LoopMonitor
from backend_kit.kpi.runtime import KpiOptions, KpiRuntime
from backend_kit.kpi.summary import Summary

__all__ = [
    "PHASES",
    "Amounts",
    "Counter",
    "Culprit",
    "Culprits",
    "Gauge",
    "GaugedSeconds",
    "Kpi",
    "KpiOptions",
    "KpiRuntime",
    "Labelled",
    "LagTotals",
    "Ledger",
    "LedgerRow",
    "LoopMonitor",
    "MetricsPortTaken",
    "MetricsServer",
    "PhaseTimer",
    "Seconds",
    "Sighting",
    "Spent",
    "Status",
    "Summary",
    "Timer",
    "buckets",
    "current_ledger",
    "phase",
]
