"""What users get: turns, first token, errors."""

from deploy.grafana.model import FAILED, Dashboard, Panel, Row, Target, exact_percentiles, percentiles, tail
from deploy.grafana.promql import OF_ALL, exact, level, quantile, rate, share


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
    worst = f"max({share('app_turns_total', FAILED, by='agent')})"
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
    return Panel(title, description, unit, targets, kind="stat", width=4, height=4, bound=bound)


def _turns() -> Row:
    return Row(
        "Turns",
        [
            Panel(
                "Turns a second by outcome",
                "rejected never began; cancelled is a user's stop.",
                "ops",
                [Target(rate("app_turns_total", by="status"), "{{status}}")],
                stacked=True,
            ),
            Panel(
                "Failing turns by agent",
                "Errors and timeouts.",
                "percentunit",
                [Target(share("app_turns_total", FAILED, by="agent"), "{{agent}}")],
                bound=0.05,
            ),
            Panel(
                "Turn",
                "Ask to final, by all agents: of every turn of the last minute, by process.",
                "s",
                exact_percentiles("app_turn_quantile_seconds"),
            ),
            Panel("Turn p95 by agent", "Ask to final.", "s", tail("app_turn_seconds", "agent")),
            Panel(
                "First token",
                "Ask to the first text of the answer: of every turn of the last minute, by process.",
                "s",
                exact_percentiles("app_time_to_first_token_quantile_seconds"),
                bound=5,
            ),
            Panel(
                "Longest silence within an answer",
                "One observation a turn.",
                "s",
                percentiles("app_stream_gap_seconds"),
            ),
        ],
    )


def _slow() -> str:
    """As in the rules of the objective: another time is another bucket bound, there and here."""
    first = "app_time_to_first_token_seconds"
    soon = rate(f"{first}_bucket", 'le=~"5|5.0"')
    return f"1 - {soon} / ({rate(f'{first}_count')} > 0)"


def _objective() -> Row:
    return Row(
        "Objective: first text within 5 s for 99 % of turns",
        [
            Panel(
                "Turns over 5 s",
                "Their share. An alert pages at 14.4 % in 1 h and 5 min, one for today comes at 6 % in 6 h and 30 min.",
                "percentunit",
                [Target(_slow(), "over 5 s")],
                bound=0.01,
            ),
            Panel(
                "Alerts that fire",
                "Of deploy/prometheus/rules/alerts.yml.",
                "short",
                [
                    Target(
                        "count by (alertname, severity) "
                        f'(ALERTS{{alertstate="firing", job=~"agentic|knowledge-flow", {OF_ALL}}})',
                        "{{severity}} {{alertname}}",
                    )
                ],
                quiet="nothing is wrong",
            ),
        ],
    )
