"""The bodies of requests to OpenSearch, as pure values: the mapping of an index, its check, documents and queries.

Nothing that a caller sends is ever a key, a script or a query string here: only values of `match`, `term`, `terms`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backend_kit.wire import dumps
from knowledge_flow_backend.engines.opensearch.terms import spelled

VECTOR: Final = "vector_field"
TEXT: Final = "text"
HEADING: Final = "heading"
"""Title and section of a chunk: they stand above its text in TEXT too, and count a little more by this field."""

ORDINAL: Final = "ordinal"

HEADING_BOOST: Final = 0.1
M: Final = 16
EF_CONSTRUCTION: Final = 512
EF_SEARCH: Final = 100
"""Size of the candidate list in the vectors' graph. Without it version 2.19 takes k, and finds far less."""
MAX_DIMENSIONS: Final = 16_000
"""The plugin's limit for the lucene engine."""

MAX_WORDS: Final = 64
MAX_CHARS: Final = 450
"""Characters of a question that are searched by words. The server refuses a query of more than 1,024 terms; a Han
character is one, a name two or three, and each is searched in two fields."""

WORDS: Final = 3
"""Counts changes of what is written for words: an index of another one has to be rebuilt."""
# BM25 without its idf, which would be that of everybody's chunks: how rare a word is comes as the boost of its clause.
# Soon saturated (k1 = 0.6), and the length left out of account, as in Postgres (docs/search-quality.md).
_SIMILARITY: Final = {
    "words": {"type": "scripted", "script": {"source": "return query.boost * doc.freq / (doc.freq + 0.6)"}}
}
_WORDS_FIELD: Final = {"type": "text", "analyzer": "english", "similarity": "words"}
_META: Final = "turnwise"
_WORD: Final = re.compile(r"\w+")
_METHOD: Final = {
    "name": "hnsw",
    # The default of OpenSearch 3 hangs at its first write where the node lacks its native library.
    "engine": "lucene",
    "space_type": "cosinesimil",
    "parameters": {"m": M, "ef_construction": EF_CONSTRUCTION},
}
_KEYWORDS: Final = ("document_uid", "generation", "owner_id", "session_id", "tag_ids")


@dataclass(frozen=True, slots=True)
class Shape:
    """What an index is made for. `token` names the database whose chunks it holds."""

    model: str
    dimension: int
    token: str


@dataclass(frozen=True, slots=True)
class Place:
    """What queries filter the chunks of a document by. `generation` names one writing of it."""

    document_uid: str
    generation: str
    owner_id: str
    session_id: str | None
    retrievable: bool
    tag_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rights:
    """What a search may see, as Postgres has just answered.

    `libraries`: ids that the reader may read and that were asked for. `own`: whether the reader's own documents count
    in any library. `pending`: documents with changes that the index lacks; of those, only chunks of one of
    `generations` are in scope.
    """

    reader: str
    corpus: bool
    own: bool
    libraries: tuple[str, ...]
    documents: tuple[str, ...] | None
    session: str | None
    pending: tuple[str, ...]
    generations: tuple[str, ...]


def index_body(shape: Shape) -> dict[str, Any]:
    """Settings and mapping of a new index."""
    metadata: dict[str, Any] = {name: {"type": "keyword"} for name in _KEYWORDS}
    metadata["retrievable"] = {"type": "boolean"}
    return {
        "settings": {
            "index": {
                "knn": True,
                "number_of_shards": 1,
                "auto_expand_replicas": "0-1",
                "similarity": _SIMILARITY,
            }
        },
        "mappings": {
            "dynamic": False,
            "_meta": {_META: {"model": shape.model, "token": shape.token, "words": WORDS}},
            "properties": {
                TEXT: _WORDS_FIELD,
                HEADING: _WORDS_FIELD,
                VECTOR: {"type": "knn_vector", "dimension": shape.dimension, "method": _METHOD},
                ORDINAL: {"type": "integer"},
                "metadata": {"dynamic": False, "properties": metadata},
            },
        },
    }


def misfit(mapping: Mapping[str, Any], shape: Shape) -> str | None:
    """Why an index with this mapping does not fit, as a sentence; None where it fits."""
    properties = mapping.get("properties", {})
    field = properties.get(VECTOR, {})
    method = field.get("method", {})
    if field.get("type") != "knn_vector":
        return f"its {VECTOR} is no knn_vector"
    if method.get("engine") != "lucene" or method.get("name") != "hnsw":
        return f"its vectors are for {method.get('engine', 'the default engine')}, only hnsw of lucene is used"
    if method.get("space_type") != "cosinesimil":
        return f"its vectors are compared by {method.get('space_type', 'another measure')}, not by cosinesimil"
    if field.get("dimension") != shape.dimension:
        return f"its vectors have {field.get('dimension')} numbers, those of {shape.model} have {shape.dimension}"
    meta = mapping.get("_meta", {}).get(_META, {})
    if meta.get("model") != shape.model:
        return f"it was made for vectors of {meta.get('model', 'an unknown model')}, not of {shape.model}"
    if token_of(mapping) != shape.token:
        return "it holds the chunks of another database"
    if meta.get("words") != WORDS:
        return "its words were written by another version of the program"
    known = properties.get("metadata", {}).get("properties", {})
    missing = [name for name in (*_KEYWORDS, "retrievable") if name not in known]
    if missing or properties.get(TEXT, {}).get("type") != "text" or properties.get(HEADING, {}).get("type") != "text":
        return "it lacks fields that a search needs"
    return None


def token_of(mapping: Mapping[str, Any]) -> str | None:
    """Which database's chunks an index holds; None where this service did not create it."""
    token: str | None = mapping.get("_meta", {}).get(_META, {}).get("token")
    return token


def key_of(generation: str, ordinal: int) -> str:
    """The `_id` of a chunk."""
    return f"{generation}-{ordinal}"


def parts_of(key: str) -> tuple[str, int]:
    """Generation and ordinal of an `_id` of ours."""
    generation, _, ordinal = key.rpartition("-")
    return generation, int(ordinal)


def metadata_of(place: Place) -> dict[str, Any]:
    """The part of a chunk that queries filter by."""
    fields: dict[str, Any] = {
        "document_uid": place.document_uid,
        "generation": place.generation,
        "owner_id": place.owner_id,
        "retrievable": place.retrievable,
        "tag_ids": list(place.tag_ids),
    }
    if place.session_id is not None:
        fields["session_id"] = place.session_id
    return fields


def bulk_lines(place: Place, ordinal: int, heading: str, content: str, vector: str) -> bytes:
    """The two lines that write one chunk; `vector` is its JSON."""
    action = dumps({"index": {"_id": key_of(place.generation, ordinal)}})
    words = {TEXT: spelled(f"{heading}\n{content}"), HEADING: spelled(heading)}
    source = dumps({**words, ORDINAL: ordinal, "metadata": metadata_of(place)})
    # The vector is text, also from the database: it is not parsed and encoded again.
    return b'%b\n%b,"%b":%b}\n' % (action, source[:-1], VECTOR.encode(), vector.encode())


def heading_of(title: str, section: str) -> str:
    """The title and section above a chunk's text."""
    return f"{title} {section}".strip()


def visible(rights: Rights) -> dict[str, Any]:
    """The filter of every query: the chunks that the reader may see, of the valid writing of each document.

    A document with changes that the index lacks is left out, except for the chunks of its valid generation.
    """
    settled: list[dict[str, Any]] = []
    if rights.corpus and (rights.own or rights.libraries):
        settled.append(_in_corpus(rights))
    if rights.session is not None:
        settled.append(
            {
                "bool": {
                    "filter": [
                        {"term": {"metadata.session_id": rights.session}},
                        {"term": {"metadata.owner_id": rights.reader}},
                    ]
                }
            }
        )
    scopes: list[dict[str, Any]] = []
    if settled:
        condition: dict[str, Any] = {
            "filter": [{"term": {"metadata.retrievable": True}}, _any_of(settled)],
        }
        if rights.pending:
            condition["must_not"] = [_terms("document_uid", rights.pending)]
        scopes.append({"bool": condition})
    if rights.generations:
        scopes.append(_terms("generation", rights.generations))
    return _any_of(scopes)


def words_of(question: str) -> list[str]:
    """The words of a question that are searched, each once."""
    return list(dict.fromkeys(spelled(cut(question)).lower().split()))


def by_words(rarities: Mapping[str, float], rights: Rights, size: int) -> dict[str, Any]:
    """The best chunks for these words (BM25), each weighted by its rarity; words without one are left out."""
    clauses = [
        {"match": {field: {"query": word, "boost": share * rarity}}}
        for word, rarity in rarities.items()
        if rarity > 0
        for field, share in ((TEXT, 1.0), (HEADING, HEADING_BOOST))
    ]
    return _best({"bool": {"must": [_any_of(clauses)], "filter": [visible(rights)]}}, size)


def by_vector(vector: Sequence[float], rights: Rights, size: int, *, exact: bool) -> dict[str, Any]:
    """The chunks whose vectors are nearest, scored (1 + cosine) / 2; `exact` compares every visible one."""
    if exact:
        parameters = {"field": VECTOR, "query_value": vector, "space_type": "cosinesimil"}
        script = {"lang": "knn", "source": "knn_score", "params": parameters}
        query: dict[str, Any] = {"script_score": {"query": {"bool": {"filter": [visible(rights)]}}, "script": script}}
    else:
        nearest = {
            "vector": vector,
            "k": size,
            "filter": visible(rights),
            "method_parameters": {"ef_search": max(EF_SEARCH, size)},
        }
        query = {"knn": {VECTOR: nearest}}
    return _best(query, size)


def of_generations(generations: Iterable[str]) -> dict[str, Any]:
    """The query for all chunks of these writings."""
    return {"query": _terms("generation", sorted(generations))}


def of_documents(uids: Iterable[str]) -> dict[str, Any]:
    """The query for all chunks of these documents."""
    return {"query": _terms("document_uid", sorted(uids))}


def moved(place: Place) -> dict[str, Any]:
    """The update that gives the chunks of a document's valid generation what queries filter by now."""
    return {
        **of_generations([place.generation]),
        "script": {
            "lang": "painless",
            "source": "ctx._source.metadata = params.metadata",
            "params": {"metadata": metadata_of(place)},
        },
    }


def cut(question: str) -> str:
    """The part of a question that is searched by words: its beginning."""
    head = question[:MAX_CHARS]
    words = [match.end() for match in _WORD.finditer(head)]
    return head if len(words) <= MAX_WORDS else head[: words[MAX_WORDS - 1]]


def _in_corpus(rights: Rights) -> dict[str, Any]:
    readable: list[dict[str, Any]] = []
    if rights.own:
        readable.append({"term": {"metadata.owner_id": rights.reader}})
    if rights.libraries:
        readable.append(_terms("tag_ids", rights.libraries))
    chosen = [_any_of(readable)]
    if rights.documents is not None:
        chosen.append(_terms("document_uid", rights.documents))
    return {"bool": {"filter": chosen, "must_not": [{"exists": {"field": "metadata.session_id"}}]}}


def _best(query: dict[str, Any], size: int) -> dict[str, Any]:
    """The best hits of a query. Of equal ones the same come each time, however the index is merged meanwhile."""
    order = [{"_score": "desc"}, {"metadata.generation": "asc"}, {ORDINAL: "asc"}]
    return {"size": size, "_source": False, "track_total_hits": False, "sort": order, "query": query}


def _terms(field: str, values: Sequence[str]) -> dict[str, Any]:
    return {"terms": {f"metadata.{field}": list(values)}}


def _any_of(conditions: list[dict[str, Any]]) -> dict[str, Any]:
    if not conditions:
        return {"match_none": {}}
    return conditions[0] if len(conditions) == 1 else {"bool": {"should": conditions, "minimum_should_match": 1}}
