"""Where the time of a turn goes."""

from deploy.grafana.model import (
    ELSEWHERE,
    KNOWLEDGE,
    OWN_PHASES,
    TURNS,
    Dashboard,
    Panel,
    Row,
    Target,
    percentiles,
    spent,
    tail,
)
from deploy.grafana.promql import cells, quantile, rate


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
                "Where the time of a turn goes",
                "The mean turn in parts that do not overlap. `agent` is its own code between its calls.",
                "s",
                [
                    Target(f"{spent('llm_invoke')} / {TURNS}", "model"),
                    Target(f"{spent(*KNOWLEDGE)} / {TURNS}", "knowledge flow"),
                    Target(f"({spent('stream_agent_response')} - {spent(*ELSEWHERE)}) / {TURNS}", "agent"),
                    *ours,
                ],
                stacked=True,
                width=24,
                height=10,
            ),
            Panel(
                "Around the agent",
                "The same without model, search and agent: what the service adds.",
                "s",
                ours,
                stacked=True,
            ),
            Panel(
                "Share of a turn",
                "Model, search and the rest, which is ours.",
                "percentunit",
                [
                    Target(f"{spent('llm_invoke')} / {turn}", "model"),
                    Target(f"{spent(*KNOWLEDGE)} / {turn}", "knowledge flow"),
                    Target(f"{rate('app_turn_overhead_seconds_sum')} / {turn}", "ours"),
                ],
                stacked=True,
            ),
        ],
    )


def _phases() -> Row:
    return Row(
        "Phases (they nest: never add them up)",
        [
            Panel(
                "Phases p95",
                "Each phase of the chosen processes.",
                "s",
                tail("app_phase_latency_seconds", "phase"),
                height=10,
            ),
            Panel(
                "Phases that fail, a second",
                "By how they ended.",
                "ops",
                [
                    Target(
                        rate("app_phase_latency_seconds_count", 'status!="ok"', by="phase, status"),
                        "{{phase}} {{status}}",
                    )
                ],
                height=10,
                quiet="nothing fails",
            ),
            Panel(
                "Knowledge flow as the agents see it p95",
                "Well above its own requests: the way there, or the loop here, is slow.",
                "s",
                [
                    Target(
                        quantile(
                            0.95, "app_phase_latency_seconds", 'phase=~"kf_vector_search|kf_vector_rerank"', by="phase"
                        ),
                        "{{phase}}",
                    )
                ],
            ),
            Panel("Overhead", "Turn minus model and search.", "s", percentiles("app_turn_overhead_seconds")),
            Panel(
                "Unattributed",
                "What no phase accounts for: should stay under 3 ms.",
                "s",
                percentiles("app_turn_unattributed_seconds"),
                bound=0.01,
            ),
        ],
    )


def _maps() -> Row:
    return Row(
        "Distributions",
        [
            Panel("Turns", "Ask to final.", "s", [Target(cells("app_turn_seconds"), "{{le}}")], kind="heatmap"),
            Panel(
                "Phase $phase",
                "The phase that is chosen above.",
                "s",
                [Target(cells("app_phase_latency_seconds", 'phase="$phase"'), "{{le}}")],
                kind="heatmap",
            ),
        ],
    )
