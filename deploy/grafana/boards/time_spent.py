"""Where the time of a turn goes."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import ELSEWHERE, KNOWLEDGE, OWN_PHASES, TURNS, percentiles, spent, tail
from deploy.grafana.promql import cells, rate


def time_spent() -> Dashboard:
    """Where the time of a turn goes."""
    return Dashboard(
        uid="turnwise-time",
        title="Turnwise / Where the time goes",
        rows=[_whole(), _phases(), _maps()],
        description="The parts of a turn: whose time it is.",
        known_by="app_turns_in_progress",
        phases=True,
    )


def _whole() -> Row:
    ours = [
        Target(f"{spent(*OWN_PHASES, by='phase')} / ignoring(phase) group_left() {TURNS}", "{{phase}}"),
        Target(f"{rate('app_turn_unattributed_seconds_sum')} / {TURNS}", "unattributed"),
    ]
    turn = rate("app_turn_seconds_sum")
    return Row(
        "The mean turn",
        [
            Panel(
                title="Where the time of a turn goes",
                description="The mean turn in parts that do not overlap. `agent` is its own code between its calls.",
                unit="s",
                stacked=True,
                width=24,
                height=10,
                targets=[
                    Target(f"{spent('llm_invoke')} / {TURNS}", "model"),
                    Target(f"{spent(*KNOWLEDGE)} / {TURNS}", "knowledge flow"),
                    Target(f"({spent('stream_agent_response')} - {spent(*ELSEWHERE)}) / {TURNS}", "agent"),
                    *ours,
                ],
            ),
            Panel(
                title="Around the agent",
                description="The same without model, search and agent: what the service adds.",
                unit="s",
                stacked=True,
                targets=ours,
            ),
            Panel(
                title="Share of a turn",
                description="Model, search and the rest, which is ours.",
                unit="percentunit",
                stacked=True,
                targets=[
                    Target(f"{spent('llm_invoke')} / {turn}", "model"),
                    Target(f"{spent(*KNOWLEDGE)} / {turn}", "knowledge flow"),
                    Target(f"{rate('app_turn_overhead_seconds_sum')} / {turn}", "ours"),
                ],
            ),
        ],
    )


def _phases() -> Row:
    return Row(
        "Phases (they nest: never add them up)",
        [
            Panel(
                title="Phases p95",
                description="Each phase of the chosen processes.",
                unit="s",
                height=10,
                targets=tail("app_phase_latency_seconds", "phase"),
            ),
            Panel(
                title="Phases that fail, a second",
                description="By how they ended.",
                unit="ops",
                height=10,
                targets=[
                    Target(
                        rate("app_phase_latency_seconds_count", 'status!="ok"', by="phase, status"),
                        "{{phase}} {{status}}",
                    )
                ],
                quiet="nothing fails",
            ),
            Panel(
                title="Overhead",
                description="Turn minus model and search.",
                unit="s",
                targets=percentiles("app_turn_overhead_seconds"),
            ),
            Panel(
                title="Unattributed",
                description="What no phase accounts for: should stay under 3 ms.",
                unit="s",
                bound=0.01,
                targets=percentiles("app_turn_unattributed_seconds"),
            ),
        ],
    )


def _maps() -> Row:
    return Row(
        "Distributions",
        [
            Panel(
                title="Turns",
                description="Ask to final.",
                unit="s",
                kind="heatmap",
                targets=[Target(cells("app_turn_seconds"), "{{le}}")],
            ),
            Panel(
                title="Phase $phase",
                description="The phase that is chosen above.",
                unit="s",
                kind="heatmap",
                targets=[Target(cells("app_phase_latency_seconds", 'phase="$phase"'), "{{le}}")],
            ),
        ],
    )
