"""The few shapes of query that the dashboards are made of, over the processes that are chosen in them."""

CHOSEN = 'job=~"$job", instance=~"$instance"'
WINDOW = "$__rate_interval"


def select(metric: str, *matchers: str) -> str:
    """The series of the chosen processes."""
    return f"{metric}{{{', '.join([CHOSEN, *matchers])}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """A counter's increase a second, summed over the chosen processes, for each value of the labels `by`."""
    return f"{_sum(by)} (rate({select(metric, *matchers)}[{WINDOW}]))"


def quantile(q: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile over the window, all chosen processes together."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', *matchers, by=labels)})"


def mean(histogram: str, *matchers: str, by: str = "") -> str:
    """Sum by count over the window."""
    return f"{rate(f'{histogram}_sum', *matchers, by=by)} / {rate(f'{histogram}_count', *matchers, by=by)}"


def level(gauge: str, *matchers: str, by: str = "") -> str:
    """A gauge, summed over the chosen processes."""
    return f"{_sum(by)} ({select(gauge, *matchers)})"


def cells(histogram: str, *matchers: str) -> str:
    """What fell into each bucket, for a heat map."""
    return f"sum by (le) (increase({select(f'{histogram}_bucket', *matchers)}[{WINDOW}]))"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
