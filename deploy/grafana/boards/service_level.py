"""What users get: turns, first token, errors."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import exact_percentiles, percentiles, tail
from deploy.grafana.promql import exact, level, quantile, rate


def service_level() -> Dashboard:
    """What users get."""
    return Dashboard(
        uid="turnwise-service-level",
        title="Turnwise / Service level",
        rows=[_figures(), _turns(), _objective()],
        description="What users get: turns, first token, errors. Begin here.",
        known_by="app_turns_in_progress",
    )


def _figures() -> Row:
    worst = 'max(agent:app_turns:error_ratio_5m{job=~"$job"})'
    return Row(
        "Now",
        [
            _figure("Turns a second", "Turns that ended.", "ops", rate("app_turns_total")),
            _figure(
                "Turn p95",
                "Ask to final, of every turn of the last minute, a figure for each process.",
                "s",
                exact(0.95, "app_turn_quantile_seconds"),
            ),
            _figure(
                "First token p95",
                "Ask to first text, of every turn of the last minute, a figure for each process.",
                "s",
                exact(0.95, "app_time_to_first_token_quantile_seconds"),
                5,
            ),
            _figure("Overhead p95", "Turn minus model and search.", "s", quantile(0.95, "app_turn_overhead_seconds")),
            _figure("Failing turns", "Errors and timeouts of the worst agent.", "percentunit", worst, 0.05),
            _figure("Turns in progress", "Turns that hold a slot.", "short", level("app_turns_in_progress")),
        ],
    )


def _figure(title: str, description: str, unit: str, expr: str, bound: float | None = None) -> Panel:
    targets = [Target(expr, title)]
    return Panel(
        title=title,
        description=description,
        unit=unit,
        kind="stat",
        width=4,
        height=4,
        bound=bound,
        targets=targets,
    )


def _turns() -> Row:
    return Row(
        "Turns",
        [
            Panel(
                title="Turns a second by outcome",
                description="rejected never began; cancelled is a user's stop.",
                unit="ops",
                stacked=True,
                targets=[Target(rate("app_turns_total", by="status"), "{{status}}")],
            ),
            Panel(
                title="Failing turns by agent",
                description="Errors and timeouts over five minutes (recording rule).",
                unit="percentunit",
                bound=0.05,
                targets=[Target('agent:app_turns:error_ratio_5m{job=~"$job"}', "{{agent}}")],
            ),
            Panel(
                title="Turn",
                description="Ask to final, by all agents: of every turn of the last minute, by process.",
                unit="s",
                targets=exact_percentiles("app_turn_quantile_seconds"),
            ),
            Panel(
                title="Turn p95 by agent",
                description="Ask to final.",
                unit="s",
                targets=tail("app_turn_seconds", "agent"),
            ),
            Panel(
                title="First token",
                description="Ask to the first text of the answer: of every turn of the last minute, by process.",
                unit="s",
                bound=5,
                targets=exact_percentiles("app_time_to_first_token_quantile_seconds"),
            ),
            Panel(
                title="Longest silence within an answer",
                description="One observation a turn.",
                unit="s",
                targets=percentiles("app_stream_gap_seconds"),
            ),
        ],
    )


def _objective() -> Row:
    return Row(
        "Objective: first text within 5 s for 99 % of turns",
        [
            Panel(
                title="Turns over 5 s",
                description="Share over four windows; a page at 14.4 % in 1 h and 5 min, a "
                "ticket at 6 % in 6 h and 30 min.",
                unit="percentunit",
                bound=0.01,
                targets=[
                    Target(f'job:app_time_to_first_token:slow_ratio_{window}{{job=~"$job"}}', window)
                    for window in ("5m", "30m", "1h", "6h")
                ],
            ),
            Panel(
                title="Alerts that fire",
                description="Of deploy/prometheus/rules/alerts.yml.",
                unit="short",
                targets=[
                    Target(
                        'count by (alertname, severity) (ALERTS{alertstate="firing", job=~"agentic|knowledge-flow"})',
                        "{{severity}} {{alertname}}",
                    )
                ],
                quiet="nothing is wrong",
            ),
        ],
    )
