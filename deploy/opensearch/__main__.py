"""`make opensearch`: runs a node until Ctrl-C, and prints the settings that make knowledge flow use it."""

import argparse
import os
import sys
from pathlib import Path

from deploy.java.command import run_until_ended
from deploy.opensearch.node import OpenSearchNode
from turnwise.home import choose_home

CHECKOUT = Path(__file__).parents[2]

_READY = """OpenSearch is ready at {url} (data in {data}). Ctrl-C stops it.
knowledge flow uses it with these lines in its configuration file,
as in config/knowledge_flow/configuration_opensearch.yaml:

storage:
  vector_store:
    type: opensearch
    index: turnwise-opensearch
  opensearch:
    host: {url}
    secure: false
"""


def main() -> int:
    """Run it; the exit codes are those of `run_until_ended`."""
    parser = argparse.ArgumentParser(prog="python -m deploy.opensearch", description="Runs one OpenSearch node.")
    parser.add_argument("--port", type=int, default=9200, help="of 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--heap-mb", type=int, default=512, help="memory of the JVM's heap (default: %(default)s)")
    options = parser.parse_args()

    def make() -> OpenSearchNode:
        directory = choose_home(CHECKOUT, os.environ) / "opensearch"
        return OpenSearchNode(CHECKOUT, directory, options.port, heap_mb=options.heap_mb)

    def ready(node: OpenSearchNode) -> str:
        return _READY.format(url=node.url, data=node.directory)

    return run_until_ended(make, ready)


if __name__ == "__main__":
    sys.exit(main())
