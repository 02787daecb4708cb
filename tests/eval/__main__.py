"""Evaluates search on the Python manual: nDCG@10, recall@50 and MRR by policy, engine and kind of query.

    make eval                                 the test split, bounds and verdicts
    make eval ARGS="--engine pgvector"        one engine
    make eval ARGS=--short                    a tenth of the pages, wider bounds, a minute
    make eval ARGS="--split tune"             what defaults are chosen on; tests.eval.tune tries others
    make eval ARGS="--worst 20"               and the questions that hybrid answers worst

Hypothesis: words and vectors together find at least as well as the better of them, and better than words as a plain
BM25 weighs them. Control: bm25s over the same chunks. Queries are the entries of the manual's index, answers the
places that it names for them. The first run embeds every chunk, 20 ms each; later ones read the vectors from the
product's cache directory.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from knowledge_flow_backend.index import ChunkHit, Policy
from knowledge_flow_backend.ingest.chunks import ChunkRules
from knowledge_flow_backend.settings import CrossencoderModel, Processing, default_home
from tests.eval import manual
from tests.eval.corpus import CachedEmbedder, divide
from tests.eval.engines import NAMES, FilledEngine, filled
from tests.eval.labelled import labelled
from tests.eval.labels import Labels
from tests.eval.plain import PlainBm25
from tests.eval.queries import Kind, Query, sample, split
from tests.eval.report import PLAIN, SHORT_SLACK, Run, print_scores, print_verdicts, print_worst

SHORT_SHARE = 0.1
SHORT_QUERIES = 300


def home() -> Path:
    """Where the product keeps what is made once: models, and here the manual and the vectors."""
    named = os.environ.get("TURNWISE_HOME")
    return Path(named) if named else default_home(os.environ)


async def evaluate(options: argparse.Namespace) -> bool:
    """Print the tables; whether every bound holds."""
    began = time.perf_counter()
    found = manual.find(options.manual, home() / "eval" / "manual")
    pages = found.pages(share=SHORT_SHARE if options.short else 1.0)
    halves = split(labelled(found, pages))
    asked = sample(halves[options.split], min(options.queries, SHORT_QUERIES) if options.short else options.queries)
    divided = divide(pages, options.chunks)
    print(f"Python {found.version} manual: {len(divided)} documents, {sum(len(one.chunks) for one in divided)} chunks")
    for name, half in halves.items():
        print(f"{name} split: {_sizes(half)}")
    print(f"asked: {_sizes(asked)} of the {options.split} split")
    labels = Labels(divided)
    runs = [judged(PLAIN, "", asked, PlainBm25(divided).search([query.text for query in asked]), labels)]
    embedder = CachedEmbedder(home())
    search = {} if options.word_share is None else {"word_share": options.word_share}
    for name in options.engine:
        async with filled(name, embedder, divided, search) as engine:
            runs += await searched(engine, asked, labels)
    embedder.close()
    print_scores(asked, runs)
    if options.worst:
        print_worst(asked, runs[-2], options.worst)
    rerank_is_on = CrossencoderModel().provider != "none"
    held = print_verdicts(asked, runs, rerank_is_on=rerank_is_on, slack=SHORT_SLACK if options.short else 0.0)
    print(f"{time.perf_counter() - began:.0f} s")
    return held


async def searched(engine: FilledEngine, asked: Sequence[Query], labels: Labels) -> list[Run]:
    """Every policy of one engine, and hits that vectors found reranked."""
    runs = []
    for policy in (Policy.STRICT, Policy.SEMANTIC, Policy.HYBRID):
        hits = [await engine.hits(query.text, policy) for query in asked]
        runs.append(judged(engine.name, policy.value, asked, _uids(hits), labels))
        if policy is not Policy.STRICT:
            again = [await engine.reranked(query.text, of_one) for query, of_one in zip(asked, hits, strict=True)]
            runs.append(judged(engine.name, f"{policy.value} + rerank", asked, _uids(again), labels))
    return runs


def _uids(hits: Sequence[Sequence[ChunkHit]]) -> list[list[str]]:
    return [[hit.chunk_uid for hit in of_one] for of_one in hits]


def judged(engine: str, way: str, asked: Sequence[Query], found: Sequence[Sequence[str]], labels: Labels) -> Run:
    """What was found for each query, scored."""
    pairs = zip(asked, found, strict=True)
    return Run(engine, way, {query.text: labels.judged(query, uids) for query, uids in pairs})


def defaults() -> ChunkRules:
    """How the product divides documents."""
    rules = Processing()
    return ChunkRules(rules.chunk_size_chars, rules.chunk_overlap_chars)


def _rules(text: str) -> ChunkRules:
    size, _, overlap = text.partition(",")
    return ChunkRules(int(size), int(overlap))


def _sizes(asked: Sequence[Query]) -> str:
    return ", ".join(f"{sum(query.kind is kind for query in asked)} {kind.value}" for kind in Kind)


def main() -> int:
    """Evaluate; 1 where a bound is missed, 2 where there is no manual."""
    parser = argparse.ArgumentParser(prog="tests.eval", description="How well search finds, on the Python manual.")
    parser.add_argument("--short", action="store_true", help="a tenth of the pages, wider bounds")
    parser.add_argument("--engine", action="append", choices=NAMES, help="default: all of them")
    parser.add_argument("--split", choices=("tune", "test"), default="test")
    parser.add_argument("--queries", type=int, default=1500, help="at most so many of each kind (default: %(default)s)")
    parser.add_argument("--chunks", type=_rules, default=defaults(), metavar="SIZE,OVERLAP", help="characters")
    parser.add_argument("--word-share", type=float, help="instead of search.word_share")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst answered of each kind")
    parser.add_argument("--manual", type=Path, help="html directory of the manual")
    options = parser.parse_args()
    options.engine = options.engine or list(NAMES)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return 0 if runner.run(evaluate(options)) else 1
    except manual.NoManual as missing:
        print(missing, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
