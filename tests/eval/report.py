"""Prints what was found: scores with their intervals, bounds with verdicts, the worst questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from tests.eval.queries import Kind, Query
from tests.eval.scores import Interval, Scores, bootstrap, difference

PLAIN: Final = "plain BM25"
PROSE_GAIN: Final = 0.03
SHORT_SLACK: Final = 0.05
"""By how much a bound may be missed in a short run, whose sets are a tenth."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way to search, on one engine ("" for the plain BM25): the scores by the text of the query."""

    engine: str
    way: str
    scores: Mapping[str, Scores]

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.engine} {self.way}".strip()


def print_scores(asked: Sequence[Query], runs: Sequence[Run]) -> None:
    """A table for each kind of query."""
    for kind in Kind:
        texts = [query.text for query in asked if query.kind is kind]
        print(f"\n{kind.value} ({len(texts)} queries)")
        print(f"{'':44} {'nDCG@10':22} {'recall@50':22} {'MRR':22} {'in 10,000 characters':22}")
        for run in runs:
            columns = [bootstrap([_pick(run.scores[text], name) for text in texts]) for name in _NAMES]
            print(f"{run.name:44} {' '.join(f'{column!s:22}' for column in columns)}".rstrip())


_NAMES: Final = ("ndcg", "recall", "reciprocal", "in_context")


def _pick(scores: Scores, name: str) -> float:
    value: float = getattr(scores, name)
    return value


def print_verdicts(asked: Sequence[Query], runs: Sequence[Run], *, rerank_is_on: bool, slack: float) -> bool:
    """The bounds, each engine's by itself; whether all of them hold. Differences are of nDCG@10, paired by query."""
    print(f"\n{'difference of nDCG@10':64} {'mean [95 %]':25} {'bound':>8}  verdict")
    by_way = {(run.engine, run.way): run for run in runs}
    held = True
    for engine in dict.fromkeys(run.engine for run in runs if run.engine != PLAIN):
        strict, semantic, hybrid, reranked = (
            by_way[engine, way] for way in ("strict", "semantic", "hybrid", "hybrid + rerank")
        )
        for kind in Kind:
            texts = [query.text for query in asked if query.kind is kind]
            bounds = [
                (hybrid, strict, 0.0),
                (hybrid, semantic, 0.0),
                (hybrid, by_way[PLAIN, ""], PROSE_GAIN if kind is Kind.PROSE else 0.0),
                (reranked, hybrid, 0.0 if rerank_is_on else None),
            ]
            for one, other, bound in bounds:
                held &= _judge(kind, texts, one, other, bound, slack)
    return held


def _judge(kind: Kind, texts: Sequence[str], one: Run, other: Run, bound: float | None, slack: float) -> bool:
    found = compared(texts, one, other)
    held = bound is None or found.mean >= bound - slack
    limit = "none: off" if bound is None else f"{bound - slack:+.3f}"
    verdict = "-" if bound is None else "holds" if held else f"MISSED by {bound - slack - found.mean:.3f}"
    print(f"{kind.value + ': ' + one.name + ' - ' + other.name:64} {found!s:25} {limit:>8}  {verdict}")
    return held


def compared(texts: Sequence[str], one: Run, other: Run) -> Interval:
    """The paired difference of nDCG@10 on these queries."""
    return difference(
        {text: one.scores[text].ndcg for text in texts}, {text: other.scores[text].ndcg for text in texts}
    )


def print_worst(asked: Sequence[Query], run: Run, most: int) -> None:
    """The queries of each kind that a run answers worst, and where their answers are."""
    for kind in Kind:
        print(f"\nworst {kind.value} queries of {run.name}")
        of_kind = [query for query in asked if query.kind is kind]
        # Of equally bad ones not those that come first in the alphabet, but the same ones each time.
        for query in sorted(of_kind, key=lambda query: (run.scores[query.text].ndcg, crc32(query.text.encode())))[
            :most
        ]:
            scores = run.scores[query.text]
            where = ", ".join(f"{target.page}:{target.start}" for target in query.targets[:3])
            print(f"  nDCG@10 {scores.ndcg:.3f}  recall@50 {scores.recall:.2f}  {query.text!r}  in {where}")
