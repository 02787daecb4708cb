"""What to watch while a load test runs."""

from deploy.grafana.model import TURNS, Dashboard, Panel, Row, Target
from deploy.grafana.promql import exact, level, quantile, rate


def bench() -> Dashboard:
    """What to look at beside a load test, whose begin and end are marked on every dashboard."""
    return Dashboard(
        uid="turnwise-bench",
        title="Turnwise / Bench",
        rows=[_marks()],
        description="One page to watch while a load test runs.",
        known_by="app_turns_in_progress",
    )


def _marks() -> Row:
    return Row(
        "Benches are the blue regions (deploy.grafana.annotate)",
        [
            Panel(
                "Turns a second",
                "Turns that ended.",
                "ops",
                [Target(rate("app_turns_total", by="status"), "{{status}}")],
            ),
            Panel(
                "Turn and first token p95",
                "Beside what ws_bench says of the same minutes; turn and first token of every turn.",
                "s",
                [
                    Target(exact(0.95, "app_turn_quantile_seconds"), "turn {{instance}}"),
                    Target(exact(0.95, "app_time_to_first_token_quantile_seconds"), "first token {{instance}}"),
                    Target(quantile(0.95, "app_turn_overhead_seconds"), "overhead"),
                ],
            ),
            Panel(
                "CPU a turn",
                "Of the agentic process: what a turn costs.",
                "s",
                [Target(f"{rate('process_cpu_seconds_total')} / {TURNS}", "CPU")],
            ),
            Panel(
                "Loop",
                "Busy share, and lag.",
                "short",
                [
                    Target(level("app_event_loop_busy_ratio"), "busy share"),
                    Target(quantile(0.99, "app_event_loop_lag_seconds"), "lag p99, s"),
                ],
            ),
            Panel(
                "Sockets and turns",
                "Load as it arrives.",
                "short",
                [
                    Target(level("app_ws_connections"), "sockets"),
                    Target(level("app_turns_in_progress"), "turns in progress"),
                ],
            ),
            Panel(
                "Persist",
                "Whether storage keeps up.",
                "s",
                [
                    Target(quantile(0.95, "app_persist_lag_seconds"), "lag p95"),
                    Target(quantile(0.95, "app_db_pool_wait_seconds"), "pool wait p95"),
                ],
            ),
        ],
    )
