"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""

from backend_kit.kpi.activity import Activity
from backend_kit.kpi.core import (
    PHASES,
    Amounts,
    Counter,
    Gauge,
    GaugedSeconds,
    Kpi,
    Ledger,
    LedgerRow,
    RowMark,
    Seconds,
    Spent,
    Status,
    current_ledger,
    phase,
)
from backend_kit.kpi.culprit import Culprits
from backend_kit.kpi.exposition import COUNT_BUCKETS, SHORT_BUCKETS, TURN_BUCKETS
from backend_kit.kpi.loop import LoopMonitor
from backend_kit.kpi.metrics import Labelled, ServiceMetrics
from backend_kit.kpi.runtime import KpiOptions, KpiRuntime, StartTimes
from backend_kit.kpi.statements import StatementCounts
from backend_kit.kpi.summary import Summary

__all__ = [
    "COUNT_BUCKETS",
    "PHASES",
    "SHORT_BUCKETS",
    "TURN_BUCKETS",
    "Activity",
    "Amounts",
    "Counter",
    "Culprits",
    "Gauge",
    "GaugedSeconds",
    "Kpi",
    "KpiOptions",
    "KpiRuntime",
    "Labelled",
    "Ledger",
    "LedgerRow",
    "LoopMonitor",
    "RowMark",
    "Seconds",
    "ServiceMetrics",
    "Spent",
    "StartTimes",
    "StatementCounts",
    "Status",
    "Summary",
    "current_ledger",
    "phase",
]
