"""What to watch while a load test runs."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import TURNS
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
                title="Turns a second",
                description="Turns that ended.",
                unit="ops",
                targets=[Target(rate("app_turns_total", by="status"), "{{status}}")],
            ),
            Panel(
                title="Turn and first token p95",
                description="Beside what ws_bench says of the same minutes; turn and first token of every turn.",
                unit="s",
                targets=[
                    Target(exact(0.95, "app_turn_quantile_seconds"), "turn {{instance}}"),
                    Target(exact(0.95, "app_time_to_first_token_quantile_seconds"), "first token {{instance}}"),
                    Target(quantile(0.95, "app_turn_overhead_seconds"), "overhead"),
                ],
            ),
            Panel(
                title="CPU a turn",
                description="Of the agentic process: what a turn costs.",
                unit="s",
                targets=[Target(f"{rate('process_cpu_seconds_total')} / {TURNS}", "CPU")],
            ),
            Panel(
                title="Loop",
                description="Busy share, and lag.",
                unit="short",
                targets=[
                    Target(level("app_event_loop_busy_ratio"), "busy share"),
                    Target(quantile(0.99, "app_event_loop_lag_seconds"), "lag p99, s"),
                ],
            ),
            Panel(
                title="Sockets and turns",
                description="Load as it arrives.",
                unit="short",
                targets=[
                    Target(level("app_ws_connections"), "sockets"),
                    Target(level("app_turns_in_progress"), "turns in progress"),
                ],
            ),
            Panel(
                title="Persist",
                description="Whether storage keeps up.",
                unit="s",
                targets=[
                    Target(quantile(0.95, "app_persist_lag_seconds"), "lag p95"),
                    Target(quantile(0.95, "app_db_pool_wait_seconds"), "pool wait p95"),
                ],
            ),
        ],
    )
