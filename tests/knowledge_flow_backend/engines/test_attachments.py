"""The guaranteed places, as pure lists."""

import pytest

from knowledge_flow_backend.engines.pgvector.queries import with_attachments
from knowledge_flow_backend.index import ChunkHit


def hit(uid: str, score: float) -> ChunkHit:
    nothing = dict.fromkeys(
        ("page", "file_path", "type", "author", "created", "modified", "language", "license", "repository",
         "pull_location", "session_id", "cosine")
    )  # fmt: skip
    return ChunkHit(
        chunk_uid=uid, document_uid=uid, content="", score=score, title="", section="", token_count=0, file_name="",
        mime_type="", confidential=False, tag_ids=(), tag_names=(), tag_full_paths=(), **nothing,  # type: ignore[arg-type]
    )  # fmt: skip


CORPUS = [hit("a", 0.9), hit("b", 0.8), hit("c", 0.7)]


@pytest.mark.parametrize(
    ("hits", "attached", "limit", "expected"),
    [
        (CORPUS, [], 3, "a b c"),
        (CORPUS, [hit("x", 0.1)], 3, "a b x"),
        (CORPUS, [hit("x", 0.1)], 4, "a b c x"),
        (CORPUS, [hit("x", 0.5), hit("y", 0.4), hit("z", 0.3)], 4, "a x y z"),
        (CORPUS, [hit("b", 0.8), hit("x", 0.1)], 3, "a b x"),
        ([*CORPUS, hit("x", 0.6)], [hit("x", 0.6)], 4, "a b c x"),
        (CORPUS, [hit("x", 0.5), hit("y", 0.4), hit("z", 0.3)], 2, "x y"),
        ([], [hit("x", 0.5)], 3, "x"),
    ],
)
def test_the_best_attached_ones_displace_the_worst_others(
    hits: list[ChunkHit], attached: list[ChunkHit], limit: int, expected: str
) -> None:
    assert " ".join(one.chunk_uid for one in with_attachments(hits, attached, limit)) == expected


def test_scores_go_on_descending() -> None:
    scores = [one.score for one in with_attachments(CORPUS, [hit("x", 5.0), hit("y", 0.1)], 4)]
    assert scores == [0.9, 0.8, 0.8, 0.1]
