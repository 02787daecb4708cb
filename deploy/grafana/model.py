"""Panels, rows and dashboards as values, and their classic JSON: what Grafana provisions from a file."""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from deploy.grafana.promql import CHOSEN, ONES, exact, level, precision, quantile, rate

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "heatmap", "table"]

SCHEMA_VERSION = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
TAG = "turnwise"
BENCH_TAG = "ws_bench"


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel. `legend` may name labels: `{{phase}}`."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is Grafana's name of the unit (s, percentunit, reqps, bytes, …).

    `stacked` stacks the series: only for parts that do not overlap. `bound` is drawn as a red threshold. `quiet` says
    why the panel may have no data on a healthy system; None: it always has some under load.
    """

    title: str
    description: str
    unit: str
    targets: Sequence[Target]
    _: KW_ONLY
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    bound: float | None = None
    quiet: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, filled from the left."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard file. `known_by` is a metric that identifies the processes offered by its variables.

    `phases` adds the variable `$phase`.
    """

    uid: str
    title: str
    description: str
    known_by: str
    rows: Sequence[Row]
    phases: bool = False

    def panels(self) -> Iterator[Panel]:
        """Every panel, top to bottom."""
        for row in self.rows:
            yield from row.panels

    def json(self) -> Json:
        """The dashboard as Grafana provisions it."""
        return {
            "annotations": {"list": _annotations()},
            "description": self.description,
            "editable": False,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "id": None,
            "links": [_links()],
            "panels": list(_laid_out(self.rows)),
            "refresh": "10s",
            "schemaVersion": SCHEMA_VERSION,
            "tags": [TAG],
            "templating": {"list": _variables(self)},
            "time": {"from": "now-30m", "to": "now"},
            "timepicker": {},
            "timezone": "",
            "title": self.title,
            "uid": self.uid,
            "version": 1,
            "weekStart": "",
        }


def _laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    identity, top = 0, 0
    for row in rows:
        identity += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {"collapsed": False, "gridPos": place, "id": identity, "panels": [], "title": row.title, "type": "row"}
        top += 1
        left = height = 0
        for panel in row.panels:
            identity += 1
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {**_KINDS[panel.kind](panel), **_common(panel, identity, place)}
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _common(panel: Panel, identity: int, place: dict[str, int]) -> Json:
    return {
        "datasource": DATASOURCE,
        "description": " ".join([panel.description, *_precisions(panel)]),
        "gridPos": place,
        "id": identity,
        "targets": [_target(panel, number, target) for number, target in enumerate(panel.targets)],
        "title": panel.title,
    }


def _precisions(panel: Panel) -> list[str]:
    """How far its percentiles may be off, each sentence once."""
    return [text for text in dict.fromkeys(precision(target.expr) for target in panel.targets) if text]


def _target(panel: Panel, number: int, target: Target) -> Json:
    content: Json = {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "legendFormat": target.legend,
        "range": panel.kind != "table",
        "refId": chr(ord("A") + number),
    }
    if panel.kind == "heatmap":
        content["format"] = "heatmap"
    if panel.kind == "table":
        content |= {"format": "table", "instant": True}
    return content


def _thresholds(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.bound is not None:
        steps.append({"color": "red", "value": panel.bound})
    return {"mode": "absolute", "steps": steps}


def _timeseries(panel: Panel) -> Json:
    custom = {
        "drawStyle": "line",
        "fillOpacity": 40 if panel.stacked else 8,
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        "thresholdsStyle": {"mode": "off" if panel.bound is None else "line"},
    }
    defaults = {"custom": custom, "min": 0, "thresholds": _thresholds(panel), "unit": panel.unit}
    legend = {"calcs": ["mean", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        "type": "timeseries",
    }


def _stat(panel: Panel) -> Json:
    defaults = {"min": 0, "thresholds": _thresholds(panel), "unit": panel.unit}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        },
        "type": "stat",
    }


def _heatmap(panel: Panel) -> Json:
    return {
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "tooltip": {"mode": "single", "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "unit": panel.unit},
        },
        "type": "heatmap",
    }


def _table(panel: Panel) -> Json:
    return {
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"cellHeight": "sm", "showHeader": True},
        "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}],
        "type": "table",
    }


_KINDS = {"timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap, "table": _table}


def _variables(dashboard: Dashboard) -> list[Json]:
    known_by = dashboard.known_by
    variables = [
        {
            "hide": 0,
            "includeAll": False,
            "label": "Prometheus",
            "multi": False,
            "name": "datasource",
            "query": "prometheus",
            "refresh": 1,
            "type": "datasource",
        },
        _query_variable("job", f"label_values({known_by}, job)"),
        _query_variable("instance", f'label_values({known_by}{{job=~"$job"}}, instance)'),
        # Who scrapes without our files of targets has no such label, and `.*` matches what has none.
        _query_variable("worker", f"label_values({known_by}{{{ONES}}}, worker)", every=".*"),
    ]
    if dashboard.phases:
        query = f"label_values(app_phase_latency_seconds_count{{{ONES}}}, phase)"
        variables.append(_query_variable("phase", query, every=None))
    return variables


def _query_variable(name: str, query: str, *, every: str | None = ".+") -> Json:
    """`every` is what All matches; None: one value is chosen."""
    everything = {"allValue": every, "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return {
        "datasource": DATASOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": every is not None,
        "label": name.capitalize(),
        "multi": every is not None,
        "name": name,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "type": "query",
        **({} if every is None else everything),
    }


def _annotations() -> list[Json]:
    """Marks on the time axis: benches, as `deploy.grafana.annotate` records them, and process starts."""
    tagged = {"limit": 100, "matchAny": False, "tags": [BENCH_TAG], "type": "tags"}
    return [
        {"datasource": GRAFANA, "enable": True, "iconColor": "blue", "name": "Benches", "target": tagged},
        {
            "datasource": DATASOURCE,
            "enable": True,
            "expr": f"process_start_time_seconds{{{CHOSEN}}} * 1000",
            "iconColor": "orange",
            "name": "Starts",
            "step": "15s",
            "titleFormat": "{{job}} {{instance}} started",
            "useValueForTime": True,
        },
    ]


def _links() -> Json:
    return {
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
        "tags": [TAG],
        "targetBlank": False,
        "title": "Turnwise",
        "type": "dashboards",
    }


FAILED = 'status=~"error|timeout"'
"""What failed, of turns and of calls: a user's stop did not."""
OWN_PHASES = ("admission_wait", "session_read", "agent_init", "history_restore", "spool_ack", "db_ack")
"""Phases of depth 0 beside the agent: they do not overlap."""
KNOWLEDGE = ("kf_vector_search",)
"""Calls of knowledge flow; a rerank is part of its search."""
ELSEWHERE = ("llm_invoke", *KNOWLEDGE)
"""Phases in which another process works."""
TURNS = rate("app_turn_seconds_count")
CONNECTIONS_OPENED = Panel(
    "Connections opened a second",
    "More than now and then: the pool is too small, or connections break.",
    "ops",
    [Target(rate("app_db_connections_opened_total", by="pool"), "{{pool}}")],
)


AUDIT = Panel(
    "Audit events that wait, and lost ones",
    "They wait while Postgres is away; what is lost is in no log.",
    "short",
    [Target(level("app_audit_pending"), "waiting"), Target(rate("app_audit_lost_total"), "lost a second")],
    quiet="none waits, and none is lost",
)


def percentiles(histogram: str, *matchers: str) -> list[Target]:
    """p50, p95 and p99, all chosen processes together."""
    return [Target(quantile(q, histogram, *matchers), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)]


def exact_percentiles(gauge: str) -> list[Target]:
    """p50, p95 and p99 of each process, computed from every turn instead of from buckets."""
    return [Target(exact(q, gauge), f"p{q * 100:.0f} {{{{instance}}}}") for q in (0.5, 0.95, 0.99)]


def tail(histogram: str, *labels: str, q: float = 0.95) -> list[Target]:
    """One quantile for each value of the labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return [Target(quantile(q, histogram, by=", ".join(labels)), legend)]


def spent(*phases: str, by: str = "") -> str:
    """Seconds that turns spend in the phases, per second."""
    return rate("app_phase_latency_seconds_sum", f'phase=~"{"|".join(phases)}"', by=by)
