"""Whole files go to workers, the long ones first, those of a shared server to one; a fatal test is not run again."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.workers import LONG_FIRST, SHARED, FileScheduling, by_length, misplaced, scope_of, worker_count


def test_two_workers_a_core_and_one_more_unless_memory_is_short() -> None:
    assert worker_count(2, 16e9) == 5
    assert worker_count(8, 16e9) == 13
    assert worker_count(2, 1e8) == 1


def test_a_file_is_a_scope_and_so_are_the_tests_of_a_shared_server() -> None:
    assert scope_of("tests/a/test_b.py::test_c[d::e]") == "tests/a/test_b.py"
    assert scope_of("tests/a/test_b.py::test_c[opensearch-1]") == "opensearch"
    assert scope_of("tests/integration/test_keycloak.py::test_c") == "keycloak"


def test_a_test_that_would_start_a_second_shared_server_is_named() -> None:
    assert misplaced("tests/a/test_b.py::test_c", ["opensearch_node"]) == (
        "tests/a/test_b.py::test_c uses the shared opensearch: its name must contain opensearch"
    )
    assert misplaced("tests/a/test_b.py::test_c_in_opensearch", ["tmp_path", "opensearch_node"]) is None
    assert misplaced("tests/a/test_b.py::test_c", ["tmp_path"]) is None


def test_long_files_come_first() -> None:
    files = [scope for scope in LONG_FIRST if scope.endswith(".py")]
    tests = ["tests/b.py::x", f"{files[1]}::y", "tests/a.py::x", f"{files[0]}::y"]
    assert sorted(tests, key=by_length) == [tests[3], tests[1], tests[2], tests[0]]


def test_long_files_exist(pytestconfig: pytest.Config) -> None:
    files = [scope for scope in LONG_FIRST if scope not in SHARED]
    assert [file for file in files if not (pytestconfig.rootpath / file).is_file()] == []
    assert len(set(LONG_FIRST)) == len(LONG_FIRST)


class Worker:
    """What a scheduler sees of a worker."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.ended = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.ended = True


def test_a_test_that_ends_its_worker_is_not_run_again_but_the_rest_of_its_file_is(
    pytestconfig: pytest.Config,
) -> None:
    option = SimpleNamespace(tx=["popen"] * 2, loadscopereorder=True, maxprocesses=None)
    config: Any = SimpleNamespace(option=option, getvalue={"tx": option.tx}.get)
    scheduling = FileScheduling(config, None)
    first, second, third = workers = [Worker("gw0"), Worker("gw1"), Worker("gw2")]
    tests = [f"a.py::{n}" for n in range(4)] + [f"b.py::{n}" for n in range(4)]
    for worker in workers[:2]:
        scheduling.add_node(worker)  # type: ignore[arg-type]
        scheduling.add_node_collection(worker, tests)  # type: ignore[arg-type]
    scheduling.schedule()
    assert (first.sent, second.sent) == ([0, 1, 2, 3], [4, 5, 6, 7])
    scheduling.mark_test_complete(first, 0)  # type: ignore[arg-type]
    assert scheduling.remove_node(first) == "a.py::1"  # type: ignore[arg-type]
    scheduling.add_node(third)  # type: ignore[arg-type]
    scheduling.add_node_collection(third, tests)  # type: ignore[arg-type]
    scheduling.schedule()
    assert third.sent == [2, 3]
