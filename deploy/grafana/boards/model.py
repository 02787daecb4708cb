"""The chat model: how fast, how often it fails, what it costs."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import TURNS, percentiles
from deploy.grafana.promql import mean, rate

_HIT = 'result="hit"'


def model() -> Dashboard:
    """The chat model and what it costs."""
    return Dashboard(
        uid="turnwise-model",
        title="Turnwise / Model and cost",
        rows=[_calls(), _cost()],
        description="The chat model: how fast, how often it fails, what it costs.",
        known_by="app_turns_in_progress",
    )


def _calls() -> Row:
    return Row(
        "Calls",
        [
            Panel(
                title="Calls a second",
                description="By model and outcome.",
                unit="reqps",
                stacked=True,
                targets=[Target(rate("app_llm_request_seconds_count", by="model, status"), "{{model}} {{status}}")],
            ),
            Panel(
                title="Failing calls",
                description="Over five minutes (recording rule).",
                unit="percentunit",
                bound=0.1,
                targets=[Target('model:app_llm_requests:error_ratio_5m{job=~"$job"}', "{{model}}")],
            ),
            Panel(
                title="First token of the model",
                description="Retries included.",
                unit="s",
                targets=percentiles("app_llm_time_to_first_chunk_seconds"),
            ),
            Panel(
                title="Whole call",
                description="To the end of the stream.",
                unit="s",
                targets=percentiles("app_llm_request_seconds"),
            ),
            Panel(
                title="Model against agent",
                description="`llm_invoke` well above the call: the time goes between the "
                "model's bytes and the agent, which is the loop.",
                unit="s",
                targets=[
                    Target(mean("app_llm_request_seconds"), "call, mean"),
                    Target(mean("app_phase_latency_seconds", 'phase="llm_invoke"'), "llm_invoke, mean"),
                ],
            ),
            Panel(
                title="Cache look-ups that hit",
                description="By cache.",
                unit="percentunit",
                targets=[
                    Target(
                        f"{rate('app_cache_requests_total', _HIT, by='cache')} / "
                        f"{rate('app_cache_requests_total', by='cache')}",
                        "{{cache}}",
                    )
                ],
            ),
        ],
    )


def _cost() -> Row:
    return Row(
        "Tokens and cost",
        [
            Panel(
                title="Tokens a second",
                description="As the model counted them.",
                unit="short",
                targets=[Target(rate("app_llm_tokens_total", by="model, type"), "{{model}} {{type}}")],
            ),
            Panel(
                title="Tokens a turn",
                description="Input grows with history and passages.",
                unit="short",
                targets=[
                    Target(
                        f"{rate('app_llm_tokens_total', by='type')} / ignoring(type) group_left() {TURNS}", "{{type}}"
                    )
                ],
            ),
            Panel(
                title="Cost an hour",
                description="By the price table of the configuration, in its currency.",
                unit="short",
                targets=[Target(f"3600 * {rate('app_llm_cost_total', by='model')}", "{{model}}")],
                quiet="there is no price table",
            ),
            Panel(
                title="Cost a turn",
                description="By the price table of the configuration, in its currency.",
                unit="short",
                targets=[Target(f"{rate('app_llm_cost_total')} / {TURNS}", "cost")],
                quiet="there is no price table",
            ),
        ],
    )
