"""Tries other ways to search on the tune split alone: what the defaults beside docs/search-quality.md were chosen by.

    python -m tests.eval.tune shares [--engine opensearch]    how words and vectors share a hybrid score
    python -m tests.eval.tune words                           how a text becomes words, and what a title weighs

For sizes of chunks: `python -m tests.eval --split tune --chunks 1000,100`. Never give a default by what the test split
says: it would no longer be one.
"""

import argparse
import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg

from knowledge_flow_backend.engines.opensearch.index import Ranked, fused, ordered
from knowledge_flow_backend.engines.pgvector import statements
from knowledge_flow_backend.index import Policy
from tests.eval.__main__ import defaults, home, judged
from tests.eval.corpus import OWNER, CachedEmbedder, divide
from tests.eval.engines import INDEX, NAMES, FilledEngine, filled
from tests.eval.labelled import labelled
from tests.eval.labels import Labels
from tests.eval.manual import find
from tests.eval.queries import Query, sample, split
from tests.eval.report import print_scores
from tests.eval.scores import DEEP
from tests.support.word_counts import count_anew

SHARES: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RECIPROCAL: Final = ((60, 1), (60, 3), (10, 1), (5, 3))
"""Constant of reciprocal rank fusion, and the weight of the words beside the vector's 1."""

_SHIPPED: Final = "search_words({})"
_BLANKED: Final = r"regexp_replace({}, '[^0-9A-Za-z]+', ' ', 'g')"
ANALYSES: Final = {
    "as shipped: stems, names whole and in parts": _SHIPPED,
    "stems, names as Postgres parses them": "to_tsvector('english', {})",
    "stems, names in parts": f"to_tsvector('english', {_BLANKED})",
    "words as they stand, names in parts": f"to_tsvector('simple', {_BLANKED})",
}
_FORMULA: Final = "ts_rank('{0.9, 0.9, 0.9, 1.0}', m.words, term.query)"
FORMULAS: Final = {
    f"title weighs {1 / weight:.2f}, lengths {'count' if flag else 'do not count'}": (
        f"ts_rank('{{{weight}, {weight}, {weight}, 1.0}}', m.words, term.query, {flag})"
    )
    for weight, flag in ((0.5, 0), (0.7, 0), (0.8, 0), (0.9, 0), (1.0, 0), (0.9, 1), (1.0, 1))
}


def reciprocal(words: Ranked, nearest: Ranked, k: int, times: int) -> Ranked:
    """Reciprocal rank fusion, which knows no scores."""
    scores: dict[str, float] = {}
    for half, counts in ((words, times), (nearest, 1)):
        for rank, (key, _) in enumerate(half, start=1):
            scores[key] = scores.get(key, 0.0) + counts / (k + rank)
    return ordered(list(scores.items()))


async def shares(engine: FilledEngine, asked: Sequence[Query], labels: Labels) -> None:
    """Fuse the same halves in every way."""
    halves = []
    for query in asked:
        hits = [await engine.hits(query.text, policy) for policy in (Policy.STRICT, Policy.SEMANTIC)]
        halves.append([[(hit.chunk_uid, hit.score) for hit in half[: engine.candidates]] for half in hits])
    ways: dict[str, Callable[[Ranked, Ranked], Ranked]] = {
        "words alone": lambda words, _: words,
        "vector alone": lambda _, nearest: nearest,
        **{f"word_share {share}": partial(fused, word_share=share) for share in SHARES},
        **{f"ranks, k {k}, words x {times}": partial(reciprocal, k=k, times=times) for k, times in RECIPROCAL},
    }
    runs = []
    for name, way in ways.items():
        found = [[key for key, _ in way(words, nearest)][:DEEP] for words, nearest in halves]
        runs.append(judged(engine.name, name, asked, found, labels))
    print_scores(asked, runs)


async def words(engine: FilledEngine, asked: Sequence[Query], labels: Labels) -> None:
    """Search by words in every way, in the Postgres of the engine."""
    runs = []
    with psycopg.connect(engine.dsn, autocommit=True, options=f'-c search_path="{INDEX}",public') as connection:
        for name, formula in FORMULAS.items():
            statement = _replaced(statements.STRICT.named, _FORMULA, formula)
            runs.append(judged("", name, asked, [_found(connection, statement, query) for query in asked], labels))
        print_scores(asked, runs)
        runs = []
        for name, analysis in ANALYSES.items():
            statement = _replaced(statements.STRICT.named, _SHIPPED.format("CAST(:question AS text)"),
                                  analysis.format("CAST(:question AS text)"))  # fmt: skip
            with _analysed(connection, analysis):
                runs.append(judged("", name, asked, [_found(connection, statement, query) for query in asked], labels))
    print_scores(asked, runs)


@contextmanager
def _analysed(connection: "psycopg.Connection[Any]", analysis: str) -> Iterator[None]:
    """The words of every chunk, made in another way."""
    heading = analysis.format("title || ' ' || section")
    made = f"setweight({heading}, 'A') || {analysis.format('content')}"
    connection.execute(f"ALTER TABLE chunks ALTER COLUMN words SET EXPRESSION AS ({made})".encode())
    connection.execute("VACUUM ANALYZE chunks")
    connection.execute(statements.COUNT_COMMON_WORDS.text.encode())
    count_anew(connection)
    yield


def _found(connection: "psycopg.Connection[Any]", statement: str, query: Query) -> list[str]:
    nowhere: dict[str, object] = dict.fromkeys(("libraries", "documents", "session", "vector"))
    scope = {"reader": OWNER, "groups": [], "corpus": True, **nowhere}
    named = re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement.replace("%", "%%"))
    rows = connection.execute(
        named.encode(), {**scope, "question": query.text, "candidates": DEEP, "limit": DEEP}
    ).fetchall()
    return [row[0] for row in rows]


def _replaced(statement: str, part: str, by: str) -> str:
    if part not in statement:
        raise RuntimeError(f"the statement of the product no longer has {part!r}: follow it here")
    return statement.replace(part, by)


async def tune(options: argparse.Namespace) -> None:
    """Fill the engine, then try."""
    found = find(options.manual, home() / "eval" / "manual")
    pages = found.pages()
    asked = sample(split(labelled(found, pages))["tune"], options.queries)
    divided = divide(pages, defaults())
    labels = Labels(divided)
    embedder = CachedEmbedder(home())
    async with filled(options.engine, embedder, divided) as engine:
        await (shares if options.what == "shares" else words)(engine, asked, labels)
    embedder.close()


def main() -> None:
    """Try."""
    parser = argparse.ArgumentParser(prog="tests.eval.tune", description="Other ways to search, on the tune split.")
    parser.add_argument("what", choices=("shares", "words"))
    parser.add_argument("--engine", choices=NAMES, default="pgvector")
    parser.add_argument("--queries", type=int, default=1500)
    parser.add_argument("--manual", default=None)
    asyncio.run(tune(parser.parse_args()))


if __name__ == "__main__":
    main()
