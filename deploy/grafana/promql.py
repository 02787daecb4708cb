"""The few forms of query that the dashboards use, over the processes chosen in their variables."""

ONES = 'job=~"$job", instance=~"$instance"'
CHOSEN = f'{ONES}, worker=~"$worker"'
"""The processes that are chosen in the variables of a dashboard."""
OF_ALL = 'job=~"$job", instance=~"$instance|"'
"""What a rule makes of all processes of a service has no instance, and is there whichever of them is chosen."""
WINDOW = "$__rate_interval"
FINE = frozenset({"app_turn_seconds", "app_time_to_first_token_seconds", "app_turn_overhead_seconds"})
"""Histograms whose bucket bounds are a tenth apart from 50 ms to 60 s."""


def select(metric: str, *matchers: str) -> str:
    """The series of the chosen processes."""
    return f"{metric}{{{', '.join([CHOSEN, *matchers])}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """A counter's increase per second, summed over the chosen processes, for each value of the labels `by`."""
    return f"{_sum(by)} (rate({select(metric, *matchers)}[{WINDOW}]))"


def quantile(q: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile over the window, all chosen processes together."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', *matchers, by=labels)})"


def exact(q: float, gauge: str) -> str:
    """A quantile that each process computed over its last minute: must not be added up or averaged."""
    return select(gauge, f'q="{q}"')


def precision(expr: str) -> str:
    """A sentence for a panel on how far a quantile may be off; empty if the query interpolates no buckets."""
    if "histogram_quantile" not in expr:
        return ""
    if any(f"{family}_bucket" in expr for family in FINE):
        return "A percentile here is interpolated within its bucket: up to a tenth off."
    return (
        "A percentile here is interpolated within its bucket, whose bounds lie up to 3 times apart: "
        "the summary log and ws_bench are exact."
    )


def mean(histogram: str, *matchers: str, by: str = "") -> str:
    """The mean observation over the window: sum by count."""
    return f"{rate(f'{histogram}_sum', *matchers, by=by)} / {rate(f'{histogram}_count', *matchers, by=by)}"


def share(counter: str, matcher: str, by: str = "") -> str:
    """The part of a counter's increase that `matcher` selects: 0 where it selects none, absent where nothing is
    counted."""
    whole = rate(counter, by=by)
    return f"({rate(counter, matcher, by=by)} or 0 * {whole}) / ({whole} > 0)"


def level(gauge: str, *matchers: str, by: str = "") -> str:
    """A gauge, summed over the chosen processes."""
    return f"{_sum(by)} ({select(gauge, *matchers)})"


def cells(histogram: str, *matchers: str) -> str:
    """Observations in each bucket, for a heat map."""
    return f"sum by (le) (increase({select(f'{histogram}_bucket', *matchers)}[{WINDOW}]))"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
