"""`make opensearch`: runs a node until Ctrl-C, and says how knowledge flow is told of it."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from deploy.opensearch.node import OpenSearchNode
from turnwise.errors import StartRefused
from turnwise.home import choose_home

CHECKOUT = Path(__file__).parents[2]
EXIT_REFUSED = 2

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


class _Ended(Exception):
    """A signal that ends the command came."""


def main() -> int:
    """Run it. Exit codes: 0 stopped, 1 the node ended by itself, 2 refused with words."""
    parser = argparse.ArgumentParser(prog="python -m deploy.opensearch", description="Runs one OpenSearch node.")
    parser.add_argument("--port", type=int, default=9200, help="of 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--heap-mb", type=int, default=512, help="memory of the JVM's heap (default: %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        node = OpenSearchNode(
            CHECKOUT, choose_home(CHECKOUT, os.environ) / "opensearch", options.port, heap_mb=options.heap_mb
        )
        return _run(node)
    except StartRefused as refused:
        sys.stderr.write(f"turnwise: {refused}\n")
        return EXIT_REFUSED


def _run(node: OpenSearchNode) -> int:
    try:
        node.start(_say)
        _say(_READY.format(url=node.url, data=node.directory))
        code = node.wait()
    except _Ended:
        return 0
    finally:
        node.stop()
    sys.stderr.write(f"turnwise: OpenSearch ended by itself with code {code}; see {node.log}\n")
    return 1


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
