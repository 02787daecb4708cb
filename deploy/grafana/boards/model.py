"""The chat model: how fast, how often it fails, what it costs."""

from deploy.grafana.model import FAILED, TURNS, Dashboard, Panel, Row, Target, percentiles
from deploy.grafana.promql import mean, rate, share

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
                "Calls a second",
                "By model and outcome.",
                "reqps",
                [Target(rate("app_llm_request_seconds_count", by="model, status"), "{{model}} {{status}}")],
                stacked=True,
            ),
            Panel(
                "Failing calls",
                "Errors and timeouts.",
                "percentunit",
                [Target(share("app_llm_request_seconds_count", FAILED, by="model"), "{{model}}")],
                bound=0.1,
            ),
            Panel(
                "Fallbacks a second",
                "Calls that a model did not answer, so that another was asked.",
                "reqps",
                [Target(rate("app_llm_fallbacks_total", by="model, cause"), "{{model}} {{cause}}")],
                quiet="all models answer",
            ),
            Panel(
                "First token of the model", "Retries included.", "s", percentiles("app_llm_time_to_first_chunk_seconds")
            ),
            Panel("Whole call", "To the end of the stream.", "s", percentiles("app_llm_request_seconds")),
            Panel(
                "Model against agent",
                "`llm_invoke` well above the call: the time goes between the "
                "model's bytes and the agent, which is the loop.",
                "s",
                [
                    Target(mean("app_llm_request_seconds"), "call, mean"),
                    Target(mean("app_phase_latency_seconds", 'phase="llm_invoke"'), "llm_invoke, mean"),
                ],
            ),
            Panel(
                "Cache look-ups that hit",
                "By cache.",
                "percentunit",
                [
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
                "Tokens a second",
                "As the model counted them. Cached ones are a part of the input, reasoning one of the output.",
                "short",
                [Target(rate("app_llm_tokens_total", by="model, type"), "{{model}} {{type}}")],
            ),
            Panel(
                "Tokens a turn",
                "Input grows with history and passages.",
                "short",
                [
                    Target(
                        f"{rate('app_llm_tokens_total', by='type')} / ignoring(type) group_left() {TURNS}", "{{type}}"
                    )
                ],
            ),
            Panel(
                "Cost an hour",
                "By the price table of the configuration, in its currency.",
                "short",
                [Target(f"3600 * {rate('app_llm_cost_total', by='model')}", "{{model}}")],
                quiet="there is no price table",
            ),
            Panel(
                "Cost a turn",
                "By the price table of the configuration, in its currency.",
                "short",
                [Target(f"{rate('app_llm_cost_total')} / {TURNS}", "cost")],
                quiet="there is no price table",
            ),
        ],
    )
