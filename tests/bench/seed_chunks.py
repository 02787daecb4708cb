"""Fills the index of a bench with deterministic chunks, and writes questions that they answer.

    python -m tests.bench.seed_chunks --config config/knowledge_flow/configuration_bench.yaml --chunks 10000 \
        --questions /tmp/questions.txt --count 1000

Texts are drawn from a vocabulary whose words are as unevenly common as those of a language; each chunk has a few words
of its own, and question N asks with those of one chunk, so that every question is another one and has one best answer.
Vectors are those that the mock model gives for the same text (`ws_bench.fakes.embedding`). The same arguments give the
same index on any machine. What the index held before is removed.
"""

import argparse
import itertools
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from backend_kit.settings import load
from knowledge_flow_backend.engines.pgvector.statements import COUNT_COMMON_WORDS
from knowledge_flow_backend.engines.pgvector.writer import VECTORS_ALONE
from knowledge_flow_backend.index import chunk_uid
from knowledge_flow_backend.index.database import connect_args, migrate
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.support.word_counts import count_anew
from ws_bench.fakes.embedding import DEFAULT_DIMENSIONS, embed

Connection = psycopg.Connection[tuple[object, ...]]
LIBRARY_ID = "bench-library"
OWNER = "admin"
CHUNKS_A_DOCUMENT = 20
COMMON_WORDS = 4000
WORDS_A_CHUNK = 90
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "ol")]


@dataclass(frozen=True)
class SeedChunk:
    """One chunk: its number, its text and the words that only it has."""

    number: int
    text: str
    own: tuple[str, ...]


def word(number: int) -> str:
    """The word of a number: syllables, as the digits of a number system."""
    base, syllables = len(_SYLLABLES), []
    number += base  # at least two syllables, so that no stop word of a language comes out
    while number:
        number, digit = divmod(number, base)
        syllables.append(_SYLLABLES[digit])
    return "".join(syllables)


def seed_chunk(number: int) -> SeedChunk:
    """Chunk `number`, the same one each time."""
    chance = random.Random(number)  # noqa: S311 - a repeatable text
    # u² makes the first words of the vocabulary much more common than the last.
    common = [word(int(COMMON_WORDS * chance.random() ** 2)) for _ in range(WORDS_A_CHUNK)]
    own = tuple(word(COMMON_WORDS + number * 3 + place) for place in range(3))
    for one in own:
        common.insert(chance.randrange(len(common)), one)
    return SeedChunk(number, " ".join(common), own)


def question(number: int, chunks: int) -> str:
    """Question `number` for an index of so many chunks; those of different numbers below `chunks` differ."""
    target = seed_chunk(number * 7919 % chunks)
    common = target.text.split()[:2]
    return f"How is {target.own[0]} with {target.own[1]} done, given {' and '.join(common)}? ({number})"


def seed(settings: KnowledgeFlowSettings, chunks: int, *, graph: bool = True) -> None:
    """Replace the content of the configured index. Blocks. Without `graph`, most of the work, pgvector finds slowly."""
    migrate(settings.storage.postgres, settings.storage.vector_store.index)
    with _connect(settings) as connection:
        _empty(connection, settings.embedding_model.name)
        _documents(connection, chunks)
        with connection.cursor().copy(
            "COPY chunks (uid, document_uid, version, ordinal, title, section, content, char_start, char_end,"
            " token_count, embedding) FROM STDIN"
        ) as copy:
            for row in _chunk_rows(chunks):
                copy.write_row(row)
        connection.execute(VECTORS_ALONE)
        if graph:
            connection.execute("SET LOCAL maintenance_work_mem = '1GB'")
            connection.execute("CREATE INDEX chunks_embedding ON chunks USING hnsw (embedding vector_cosine_ops)")
    # Outside of the transaction: the planner has to know what is there now.
    with _connect(settings, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE chunks, documents, document_tags, tags")
        connection.execute(COUNT_COMMON_WORDS.text.encode())
        count_anew(connection)
        connection.execute("VACUUM ANALYZE word_counts, word_places")


def _connect(settings: KnowledgeFlowSettings, *, autocommit: bool = False) -> Connection:
    postgres = settings.storage.postgres
    return psycopg.connect(
        host=postgres.host,
        port=postgres.port,
        dbname=postgres.database,
        user=postgres.username,
        password=postgres.password.get_secret_value() if postgres.password else None,
        autocommit=autocommit,
        **connect_args(
            "turnwise-seed",
            settings.storage.vector_store.index,
            postgres.connect_timeout,
            600_000,
        ),  # type: ignore[arg-type]
    )


def _empty(connection: Connection, model: str) -> None:
    connection.execute("TRUNCATE common_words, documents, tags, index_info, index_pending CASCADE")
    connection.execute("DROP INDEX IF EXISTS chunks_embedding, chunks_vectors")
    connection.execute(f"ALTER TABLE chunks ALTER COLUMN embedding TYPE vector({DEFAULT_DIMENSIONS})".encode())
    connection.execute("ALTER TABLE chunks ALTER COLUMN embedding SET STORAGE PLAIN")
    connection.execute(
        "INSERT INTO index_info (embedding_model, dimension) VALUES (%s, %s)", (model, DEFAULT_DIMENSIONS)
    )
    connection.execute("INSERT INTO tags (id, name, owner_id) VALUES (%s, 'bench', %s)", (LIBRARY_ID, OWNER))


def _documents(connection: Connection, chunks: int) -> None:
    for first in range(0, chunks, CHUNKS_A_DOCUMENT):
        numbers = range(first, min(first + CHUNKS_A_DOCUMENT, chunks))
        uid = _uid(first)
        text = "\n\n".join(seed_chunk(number).text for number in numbers)
        connection.execute(
            "INSERT INTO documents (uid, owner_id, title, file_name, mime_type, content_hash, size_bytes, version,"
            " status, chunk_count, token_count) VALUES (%s, %s, %s, %s, 'text/markdown', %s, %s, 1, 'ready', %s, %s)",
            (uid, OWNER, f"Document {uid}", f"{uid}.md", uid, len(text), len(numbers), len(numbers) * WORDS_A_CHUNK),
        )
        connection.execute("INSERT INTO document_contents VALUES (%s, %s, %s)", (uid, text, text.encode()))
        connection.execute("INSERT INTO document_tags VALUES (%s, %s)", (uid, LIBRARY_ID))


def _chunk_rows(chunks: int) -> Iterator[tuple[object, ...]]:
    starts = itertools.count()
    start = next(starts)
    for number in range(chunks):
        made = seed_chunk(number)
        uid, ordinal = _uid(number), number % CHUNKS_A_DOCUMENT
        start = 0 if ordinal == 0 else start
        end = start + len(made.text)
        vector = "[" + ",".join(f"{value:.7g}" for value in embed(made.text)) + "]"
        title, section = f"Document {uid}", f"Section {ordinal}"
        yield (
            chunk_uid(uid, uid, ordinal), uid, 1, ordinal, title, section, made.text, start, end, WORDS_A_CHUNK, vector,
        )  # fmt: skip
        start = end + 2


def _uid(number: int) -> str:
    return f"seed-{number // CHUNKS_A_DOCUMENT:06d}"


def main() -> None:
    """Seed, and say how long it took."""
    parser = argparse.ArgumentParser(description="Fill the index of a bench.")
    parser.add_argument("--config", type=Path, default=Path("config/knowledge_flow/configuration_bench.yaml"))
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--questions", type=Path, help="file to write questions to, one a line")
    parser.add_argument("--count", type=int, default=1000, help="how many questions")
    options = parser.parse_args()
    begun = time.perf_counter()
    seed(load(KnowledgeFlowSettings, options.config, os.environ), options.chunks)
    print(f"{options.chunks} chunks in {time.perf_counter() - begun:.1f} s")
    if options.questions is not None:
        lines = [question(number, options.chunks) for number in range(options.count)]
        options.questions.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
