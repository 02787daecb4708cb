"""How often a service's garbage collector ran, and how long it stopped it: read from its metrics."""

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import HANGS_S

_LONG_S = (0.05, 0.1, 0.25)
_GENERATIONS = 3


@dataclass(frozen=True, slots=True)
class Pauses:
    """What there was so far. `collections` by generation, youngest first; `seconds` of all pauses together; `within`
    is how many pauses took at most so many seconds, by bucket of `app_gc_pause_seconds`."""

    collections: tuple[int, ...]
    seconds: float
    within: dict[float, int]

    @classmethod
    def of(cls, metrics_port: int) -> "Pauses":
        """What a service on loopback says now. Raises OSError where it does not answer."""
        url = f"http://127.0.0.1:{metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=HANGS_S) as answer:
            return cls.read(answer.read().decode())

    @classmethod
    def read(cls, metrics: str) -> "Pauses":
        """What stands in an exposition. Raises KeyError where it has no such metrics."""
        values = {
            (one.name, one.labels.get("generation", one.labels.get("le", ""))): one.value
            for family in text_string_to_metric_families(metrics)
            if family.name in {"app_gc_pause_seconds", "python_gc_collections"}
            for one in family.samples
        }
        within = {
            float(at): int(count) for (name, at), count in values.items() if name == "app_gc_pause_seconds_bucket"
        }
        collections = tuple(int(values["python_gc_collections_total", str(age)]) for age in range(_GENERATIONS))
        return cls(collections, values["app_gc_pause_seconds_sum", ""], within)

    def since(self, before: "Pauses") -> "Pauses":
        """What came after an earlier look."""
        return Pauses(
            tuple(now - then for now, then in zip(self.collections, before.collections, strict=True)),
            self.seconds - before.seconds,
            {bound: count - before.within[bound] for bound, count in self.within.items()},
        )

    @property
    def longest_s(self) -> float:
        """The upper bound of the bucket of the longest pause; 0 where there was none."""
        in_all = self.within[float("inf")]
        return min((bound for bound, count in self.within.items() if count == in_all), default=0.0) if in_all else 0.0

    def __str__(self) -> str:
        in_all = self.within[float("inf")]
        ages = " + ".join(map(str, self.collections))
        above = ", ".join(f"{in_all - self.within[bound]} above {bound * 1e3:.0f} ms" for bound in _LONG_S)
        longest = f"longest at most {self.longest_s * 1e3:.0f} ms"
        return f"{ages} collections (youngest first), {self.seconds * 1e3:.0f} ms in all; {above}; {longest}"
