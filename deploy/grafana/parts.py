"""Groups of targets that several dashboards draw."""

from deploy.grafana.model import Target
from deploy.grafana.promql import exact, quantile, rate

OWN_PHASES = ("admission_wait", "session_read", "agent_init", "history_restore", "spool_ack")
"""Phases of depth 0 beside the agent: they do not overlap."""
KNOWLEDGE = ("kf_vector_search", "kf_vector_rerank")
ELSEWHERE = ("llm_invoke", *KNOWLEDGE)
"""Phases that another process fills."""
TURNS = rate("app_turn_seconds_count")


def percentiles(histogram: str, *matchers: str) -> list[Target]:
    """The usual three."""
    return [Target(quantile(q, histogram, *matchers), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)]


def exact_percentiles(gauge: str) -> list[Target]:
    """The usual three of each process, of every turn instead of by buckets."""
    return [Target(exact(q, gauge), f"p{q * 100:.0f} {{{{instance}}}}") for q in (0.5, 0.95, 0.99)]


def tail(histogram: str, *labels: str, q: float = 0.95) -> list[Target]:
    """One quantile for each value of the labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return [Target(quantile(q, histogram, by=", ".join(labels)), legend)]


def spent(*phases: str, by: str = "") -> str:
    """Seconds a second that turns spend in the phases."""
    return rate("app_phase_latency_seconds_sum", f'phase=~"{"|".join(phases)}"', by=by)
