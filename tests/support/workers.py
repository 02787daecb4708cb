"""How tests are handed to the workers of pytest-xdist."""

from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WORKER_BYTES = 1.2e9
"""What a worker and its servers may take."""
SHARED = {"opensearch": ("opensearch",), "keycloak": ("keycloak", "test_login")}
"""Servers of which there is one for all workers, and the words by which their tests are known: these go to one worker,
since a JVM takes half a minute of CPU to start."""
SHARED_FIXTURES = {"opensearch_node": "opensearch", "keycloak": "keycloak"}
"""The servers of these fixtures."""
LONG_FIRST = (
    "opensearch",
    "tests/turnwise/test_launcher.py",
    "tests/integration/test_takeover.py",
    "tests/langgraph/test_cut.py",
    "tests/langgraph/test_use_stream.py",
    "tests/integration/test_fleet.py",
    "tests/deploy/test_proxy.py",
    "tests/fuzz/test_openapi.py",
    "tests/support/test_hangs.py",
    "keycloak",
    "tests/turnwise/test_starters.py",
    "tests/agentic_backend/persist/test_failover.py",
    "tests/doors/test_doors_page.py",
    "tests/knowledge_flow_backend/library/test_library.py",
    "tests/knowledge_flow_backend/ingest/test_ingest.py",
    "tests/integration/test_replicas.py",
    "tests/integration/test_fleet_limits.py",
    "tests/hosted/test_conversation.py",
    "tests/integration/test_lifecycle.py",
    "tests/integration/test_restart.py",
    "tests/browser/test_sources.py",
    "tests/ws_bench/test_against_service.py",
    "tests/knowledge_flow_backend/test_app_process.py",
    "tests/agentic_backend/persist/test_outage.py",
    "tests/deploy/test_prometheus.py",
    "tests/support/test_programs.py",
    "tests/browser/test_human.py",
    "tests/backend_kit/http/test_ws.py",
    "tests/browser/test_page_behaviour.py",
    "tests/linear/test_parsers.py",
    "tests/knowledge_flow_backend/ingest/test_left.py",
    "tests/integration/test_agui_door.py",
    "tests/integration/test_limits.py",
    "tests/browser/test_thinking.py",
    "tests/integration/test_responses_door.py",
    "tests/backend_kit/http/test_server.py",
    "tests/page/test_page.py",
    "tests/conformance/test_floods.py",
    "tests/integration/test_clocks.py",
    "tests/knowledge_flow_backend/engines/test_strangers.py",
    "tests/integration/test_recall.py",
    "tests/ws_bench/test_measures.py",
    "tests/contracts/test_langchain_core.py",
    "tests/browser/test_api_docs.py",
    "tests/agentic_backend/agent/test_mcp_program.py",
    "tests/browser/test_chat_page.py",
    "tests/ws_bench/cli/test_knee.py",
    "tests/ws_bench/cli/test_run_program.py",
    "tests/browser/test_resume.py",
    "tests/browser/test_interrupted.py",
    "tests/deploy/test_grafana.py",
    "tests/agentic_backend/peers/test_events.py",
    "tests/ws_bench/test_accuracy.py",
    "tests/browser/test_conversations.py",
    "tests/turnwise/test_postgres.py",
    "tests/hosted/test_outage.py",
    "tests/agentic_backend/test_settings.py",
    "tests/integration/test_human.py",
    "tests/knowledge_flow_backend/embed/test_weights.py",
    "tests/knowledge_flow_backend/access/test_matrix.py",
    "tests/agentic_backend/spool/test_full_disk.py",
    "tests/integration/test_broken_inside.py",
    "tests/browser/test_markdown.py",
)
"""What takes longest, so that none of it begins when the others are about to end."""


def worker_count(cores: int, free_bytes: float) -> int:
    """Two for each core and one more, since a test mostly waits for its servers; fewer where memory is short."""
    return max(1, min(2 * cores + 1, int(free_bytes / WORKER_BYTES)))


def scope_of(nodeid: str) -> str:
    """What goes to one worker: a file, so that what its tests share is made once; all tests of a shared server."""
    for server, words in SHARED.items():
        if any(word in nodeid for word in words):
            return server
    return nodeid.partition("::")[0]


def misplaced(nodeid: str, fixtures: Iterable[str]) -> str | None:
    """Why a test with these fixtures would start another one of a shared server; None: it would not."""
    for server in (SHARED_FIXTURES[name] for name in fixtures if name in SHARED_FIXTURES):
        if scope_of(nodeid) != server:
            return f"{nodeid} uses the shared {server}: its name must contain {' or '.join(SHARED[server])}"
    return None


class SharedServers:
    """A plugin that fails a test which would start another one of a shared server, before it does."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before its fixtures."""
        if isinstance(item, pytest.Function) and (why := misplaced(item.nodeid, item.fixturenames)) is not None:
            pytest.fail(why, pytrace=False)


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
