"""One suite over every engine: an index in Postgres, and one in OpenSearch in both states it can be in."""

from collections.abc import AsyncIterator

import pytest

from tests.knowledge_flow_backend.corpus import Corpus
from tests.support.opensearch import OpenSearchIndex
from tests.support.postgres import Database

OPENSEARCH = ("opensearch", "opensearch-behind")
ENGINES = ["pgvector", *(pytest.param(name, marks=pytest.mark.java) for name in OPENSEARCH)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> tuple[str, OpenSearchIndex | None]:
    """The name of an engine's state and where its index is. The node starts here, outside of every loop."""
    place = None if request.param == "pgvector" else request.getfixturevalue("opensearch")
    return request.param, place


@pytest.fixture
async def any_corpus(engine: tuple[str, OpenSearchIndex | None], database: Database) -> AsyncIterator[Corpus]:
    """An index without documents, of each engine. `opensearch-behind` has followed no change that a test makes."""
    name, place = engine
    if place is None:
        async with Corpus.on(database) as made:
            yield made
    else:
        async with Corpus.on_opensearch(database, place, follow=name == "opensearch") as made:
            yield made
