"""The one-command start as a whole: real Postgres, real mock model, the real services, on ports of the test's own."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import yaml

from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ROOT, ModuleProcess
from turnwise.__main__ import main


class Stack:
    """A launcher with its configuration files, its own ports and its own home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self.metrics_port, self.model_port, self.postgres_port = (free_port() for _ in range(4))
        self.agentic = self._file("agentic", self.port, self.metrics_port)
        self.knowledge_flow = self._file("knowledge_flow", free_port(), free_port())

    def _file(self, service: str, port: int, metrics_port: int) -> Path:
        data = yaml.safe_load((ROOT / "config" / service / "configuration.yaml").read_text())
        data["app"] |= {"port": port, "metrics_port": metrics_port}
        if service == "agentic":
            data["ai"]["default_chat_model"]["settings"]["base_url"] = f"http://127.0.0.1:{self.model_port}/v1"
        data["storage"]["postgres"] |= {"host": "127.0.0.1", "port": self.postgres_port}
        file = self.home / f"{service}.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    @property
    def arguments(self) -> list[str]:
        return ["--config-agentic", str(self.agentic), "--config-knowledge-flow", str(self.knowledge_flow)]

    def launch(self) -> ModuleProcess:
        env = {"TURNWISE_HOME": str(self.home / "data"), "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "ENV_FILE": ""}
        return ModuleProcess("turnwise", *self.arguments, env=env, stop_s=60)

    def free_ports(self) -> bool:
        ports = (self.port, self.metrics_port, self.model_port, self.postgres_port)
        return all(_is_free(port) for port in ports)

    def sessions(self) -> int:
        """How many sessions the database holds."""
        password = (self.home / "data/postgres-password").read_text()
        dsn = f"postgresql://postgres:{password}@127.0.0.1:{self.postgres_port}/turnwise"
        with psycopg.connect(dsn) as connection:
            row = connection.execute("SELECT count(*) FROM session").fetchone()
            assert row is not None
            return int(row[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def stack() -> Iterator[Stack]:
    home = public_directory("turnwise-test-stack-")
    yield Stack(home)
    shutil.rmtree(home)


def ready(launcher: ModuleProcess, stack: Stack) -> None:
    line = launcher.wait_for_line("^Turnwise is ready", 90).string
    metrics = f"http://127.0.0.1:{stack.metrics_port}/metrics"
    assert line == f"Turnwise is ready: http://127.0.0.1:{stack.port}  (metrics {metrics}, Ctrl-C stops)\n"


def test_it_answers_a_turn_before_it_says_ready_and_leaves_nothing_behind(stack: Stack) -> None:
    with stack.launch() as launcher:
        ready(launcher, stack)
        assert "a first turn failed" not in launcher.output
        assert stack.sessions() == 0  # that of the first turn is deleted
        children = psutil.Process(launcher.pid).children(recursive=True)
        leaders = {child.pid for child in psutil.Process(launcher.pid).children()}
        assert {os.getsid(pid) for pid in leaders} == leaders  # each in a session of its own
        launcher.send(signal.SIGINT)
        assert launcher.wait() == 0
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert stack.free_ports()
    ends = [
        line.split("|")[0].strip() for line in launcher.output.splitlines() if "shut down" in line or "ended" in line
    ]
    # Both are the last words; the line of Postgres comes through a pipe of its own and may be read later.
    assert set(ends[-2:]) == {"postgres", "turnwise"}


def test_a_killed_service_is_said_and_comes_back(stack: Stack) -> None:
    with stack.launch() as launcher:
        ready(launcher, stack)
        (agentic,) = (
            child for child in psutil.Process(launcher.pid).children() if child.cmdline()[-1] == "agentic_backend"
        )
        agentic.kill()
        launcher.wait_for_line(r"^agentic  \| was ended by SIGKILL; it starts again in 0.5 s")
        launcher.wait_for_http(f"http://127.0.0.1:{stack.port}/agentic/v1/ready")


def test_nothing_outlives_a_killed_launcher_and_the_next_start_works(stack: Stack) -> None:
    with stack.launch() as launcher:
        ready(launcher, stack)
        children = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        assert psutil.wait_procs(children, timeout=60)[1] == []
    with stack.launch() as launcher:
        ready(launcher, stack)


def test_a_second_signal_kills(stack: Stack) -> None:
    with stack.launch() as launcher:
        ready(launcher, stack)
        children = {child.cmdline()[-1]: child for child in psutil.Process(launcher.pid).children()}
        children["agentic_backend"].suspend()  # it will not end by itself
        launcher.send(signal.SIGINT)
        launcher.wait_for_line("stopping; once more to kill")
        launcher.send(signal.SIGINT)
        assert launcher.wait() == 0
    assert stack.free_ports()


def test_a_service_that_cannot_start_ends_the_start_with_its_reason(stack: Stack) -> None:
    stack.agentic.write_text(stack.agentic.read_text() + "\nnonsense: 1\n")
    with stack.launch() as launcher:
        assert launcher.wait(60) == 1
    assert "nonsense" in launcher.output
    assert "turnwise | the agentic service cannot start: its lines above say why" in launcher.output
    assert stack.free_ports()


def test_a_taken_port_is_said_at_once_and_nothing_is_started(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNWISE_HOME", str(stack.home / "data"))
    with socket.create_server(("127.0.0.1", stack.metrics_port)):
        assert main(stack.arguments) == 1
    expected = f"turnwise: port {stack.metrics_port} (127.0.0.1), wanted by agentic metrics, is taken\n"
    assert capsys.readouterr() == ("", expected)
    assert not (stack.home / "data").exists()
