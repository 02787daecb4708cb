"""Panels and groups of targets that several dashboards draw."""

from deploy.grafana.model import Panel, Target
from deploy.grafana.promql import exact, quantile, rate

OWN_PHASES = ("admission_wait", "session_read", "agent_init", "history_restore", "spool_ack")
"""Phases of depth 0 beside the agent: they do not overlap."""
KNOWLEDGE = ("kf_vector_search", "kf_vector_rerank")
ELSEWHERE = ("llm_invoke", *KNOWLEDGE)
"""Phases in which another process works."""
TURNS = rate("app_turn_seconds_count")
CONNECTIONS_OPENED = Panel(
    "Connections opened a second",
    "More than now and then: the pool is too small, or connections break.",
    "ops",
    [Target(rate("app_db_connections_opened_total", by="pool"), "{{pool}}")],
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
