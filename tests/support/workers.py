"""How tests are handed to the workers of pytest-xdist."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WORKER_BYTES = 1.2e9
"""What a worker and its servers may take."""
SHARED = {"opensearch": ("opensearch",), "keycloak": ("test_keycloak", "test_login")}
"""Servers of which there is one for all workers, and the words by which their tests are known: these go to one worker,
since a JVM takes half a minute of CPU to start."""
LONG_FIRST = (
    "tests/turnwise/test_launcher.py",
    "tests/turnwise/test_starters.py",
    "opensearch",
    "keycloak",
    "tests/support/test_hangs.py",
    "tests/integration/test_replicas.py",
    "tests/knowledge_flow_backend/library/test_library.py",
    "tests/browser/test_page_behaviour.py",
    "tests/browser/test_sources.py",
    "tests/knowledge_flow_backend/search/test_rest.py",
    "tests/integration/test_channels.py",
    "tests/ws_bench/test_against_service.py",
    "tests/fuzz/test_openapi.py",
    "tests/conformance/test_floods.py",
    "tests/support/test_programs.py",
    "tests/knowledge_flow_backend/engines/test_strangers.py",
    "tests/integration/test_human.py",
    "tests/linear/test_parsers.py",
    "tests/browser/test_interrupted.py",
    "tests/knowledge_flow_backend/ingest/test_ingest.py",
    "tests/integration/test_recall.py",
    "tests/knowledge_flow_backend/test_app_process.py",
    "tests/browser/test_resume.py",
    "tests/browser/test_markdown.py",
    "tests/deploy/test_prometheus.py",
    "tests/conformance/test_frames.py",
    "tests/agentic_backend/agent/test_mcp.py",
    "tests/ws_bench/test_measures.py",
    "tests/ws_bench/cli/test_knee.py",
    "tests/integration/test_lifecycle.py",
    "tests/knowledge_flow_backend/ingest/test_left.py",
    "tests/knowledge_flow_backend/ingest/test_crash.py",
    "tests/browser/test_api_docs.py",
    "tests/ws_bench/report/test_compare.py",
    "tests/browser/test_chat_page.py",
    "tests/ws_bench/test_accuracy.py",
)
"""What takes longest, so that none of it begins when the others are about to end."""


def worker_count(cores: int, free_bytes: float) -> int:
    """Two for each core, since a test mostly waits for its servers; fewer where memory is short."""
    return max(1, min(2 * cores, int(free_bytes / WORKER_BYTES)))


def scope_of(nodeid: str) -> str:
    """What goes to one worker: a file, so that what its tests share is made once; all tests of a shared server."""
    for server, words in SHARED.items():
        if any(word in nodeid for word in words):
            return server
    return nodeid.partition("::")[0]


def by_length(nodeid: str) -> tuple[int, str]:
    """Sorts tests: the long scopes first, in their order, then the other files by name."""
    scope = scope_of(nodeid)
    return (LONG_FIRST.index(scope), "") if scope in LONG_FIRST else (len(LONG_FIRST), nodeid.partition("::")[0])


class FileScheduling(LoadScopeScheduling):
    """Hands out whole scopes in the order of collection.

    A test that ended its worker has failed: unlike in the library it is not handed out again, to end the next one.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker; the test that it ran when it died, None where it ran none."""
        workload = self.assigned_work.pop(node)
        left = [(tests, test) for tests in workload.values() for test, done in tests.items() if not done]
        if not left:
            return None
        tests, crashed = left[0]
        tests[crashed] = True
        self.workqueue.update({scope: tests for scope, tests in workload.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed
