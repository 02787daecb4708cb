"""One real OpenSearch node for the test session, and names of indices that no two tests share."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.opensearch.node import OpenSearchNode
from tests.support.ports import free_port

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class OpenSearchIndex:
    """Where a test's own index is: a node, and the name of an alias that is not there yet."""

    url: str
    name: str

    def settings(self) -> dict[str, Any]:
        """The part of `storage.opensearch` that says where."""
        return {"host": self.url, "secure": False}


@pytest.fixture(scope="session")
def opensearch_node() -> Iterator[OpenSearchNode]:
    """One node for the whole session. A test that asks for it carries the marker `java`."""
    directory = Path(tempfile.mkdtemp(prefix="turnwise-test-os-"))
    node = OpenSearchNode(CHECKOUT, directory, free_port(), short_lived=True)
    try:
        node.start()
        yield node
    finally:
        node.stop()
        shutil.rmtree(directory)


@pytest.fixture
def opensearch(opensearch_node: OpenSearchNode) -> OpenSearchIndex:
    """A name of the test's own on the session's node. What is left there ends with the node."""
    return OpenSearchIndex(opensearch_node.url, f"test-{secrets.token_hex(6)}")
