"""The one-command start as a whole: real Postgres, real mock model, the real services, on ports of the test's own."""

import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import yaml

from knowledge_flow_backend.settings import default_home
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_block, free_port
from tests.support.postgres import public_directory
from tests.support.processes import ROOT, ModuleProcess
from tests.support.weights import weights
from turnwise.__main__ import main

pytestmark = pytest.mark.servers


GRAPH = """
from langgraph.graph import MessagesState, StateGraph
graph = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [("ai", state["messages"][-1].content)]})
graph = graph.set_entry_point("say").compile()
"""
NO_CHANNEL = """
from typing import TypedDict
from langgraph.graph import StateGraph
State = TypedDict("State", {"answer": str})
graph = StateGraph(State).add_node("say", lambda state: {}).set_entry_point("say").compile()
"""


class Stack:
    """A launcher with its configuration files, its own ports and its own home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self.metrics_port, self.model_port, self.postgres_port = (free_port() for _ in range(4))
        self.knowledge_port, self.tools_port = free_port(), free_port()
        self.agentic = self._file("agentic", self.port, self.metrics_port)
        self.knowledge_flow = self._file("knowledge_flow", self.knowledge_port, free_port())

    def _file(self, service: str, port: int, metrics_port: int) -> Path:
        data = yaml.safe_load((ROOT / "config" / service / "configuration.yaml").read_text())
        data["app"] |= {"port": port, "metrics_port": metrics_port}
        if service == "agentic":
            data["ai"]["default_chat_model"]["settings"]["base_url"] = f"http://127.0.0.1:{self.model_port}/v1"
            data["ai"]["knowledge_flow_url"] = f"http://127.0.0.1:{self.knowledge_port}/knowledge-flow/v1"
            data["mcp"]["servers"][0]["url"] = f"http://127.0.0.1:{self.tools_port}/mcp"
        data["storage"]["postgres"] |= {"host": "127.0.0.1", "port": self.postgres_port}
        # The machine may be busy: only a hang is a failure.
        data["storage"]["postgres"] |= {"connect_timeout": 120, "pool_timeout": 120}
        file = self.home / f"{service}.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    @property
    def arguments(self) -> list[str]:
        return ["--config-agentic", str(self.agentic), "--config-knowledge-flow", str(self.knowledge_flow)]

    def launch(self, *flags: str, traceback_allowed: bool = False, **environ: str) -> ModuleProcess:
        env = {"TURNWISE_HOME": str(self.home / "data"), "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "ENV_FILE": ""}
        env |= {"TURNWISE_WEIGHTS": str(weights()), "PORT": "", **environ}
        self._share_the_model()
        return ModuleProcess(
            "turnwise", "run", *self.arguments, *flags, env=env, stop_s=60, traceback_allowed=traceback_allowed
        )

    def _share_the_model(self) -> None:
        """The model file is made once for the machine: to make it is what other tests are for."""
        shared, mine = default_home(os.environ) / "models", self.home / "data/models"
        shared.mkdir(parents=True, exist_ok=True)
        mine.parent.mkdir(parents=True, exist_ok=True)
        if not mine.is_symlink():
            mine.symlink_to(shared)

    @property
    def log(self) -> str:
        """What the programs have written."""
        return (self.home / "data/log/turnwise.log").read_text()

    def change(self, change: Callable[[Any], object]) -> None:
        """Change the agentic service's configuration."""
        data = yaml.safe_load(self.agentic.read_text())
        change(data)
        self.agentic.write_text(yaml.safe_dump(data))

    def have_one_agent(self, module: str) -> Path:
        """Let the graph of this module be the only agent; the module's file."""
        file = self.home / "agents/weather_agent.py"
        file.parent.mkdir()
        file.write_text(module)
        agents = [{"id": "Weather", "name": "Weather", "graph": "weather_agent"}]
        self.change(lambda data: data["ai"].update(agents_path=str(file.parent), agents=agents))
        return file

    def agents(self) -> list[dict[str, Any]]:
        """What the running service lists."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/agentic/v1/agents") as answer:
            return list(json.load(answer))

    def free_ports(self) -> bool:
        ports = (self.port, self.metrics_port, self.model_port, self.postgres_port, self.tools_port)
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


@pytest.fixture(scope="module")
def standing() -> Iterator[tuple[Stack, ModuleProcess]]:
    """A start that is ready, one for the file: a start takes a dozen seconds of CPU."""
    home = public_directory("turnwise-test-standing-")
    stack = Stack(home)
    with stack.launch("--no-samples") as launcher:
        ready(launcher, stack)
        yield stack, launcher
    shutil.rmtree(home)


def ready(launcher: ModuleProcess, stack: Stack) -> None:
    line = launcher.wait_for_line("^Turnwise is ready", PATIENCE_S).string
    metrics = f"http://127.0.0.1:{stack.metrics_port}/metrics"
    assert line == f"Turnwise is ready: http://127.0.0.1:{stack.port}  (metrics {metrics}, Ctrl-C stops)\n"


def test_it_answers_a_turn_before_it_says_ready_and_leaves_nothing_behind(stack: Stack) -> None:
    with stack.launch("--no-samples") as launcher:
        ready(launcher, stack)
        assert stack.sessions() == 0  # that of the first turn is deleted
        children = psutil.Process(launcher.pid).children(recursive=True)
        leaders = {child.pid for child in psutil.Process(launcher.pid).children()}
        assert {os.getsid(pid) for pid in leaders} == leaders  # each in a session of its own
        launcher.send(signal.SIGINT)
        assert launcher.wait() == 0
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert stack.free_ports()
    ends = [line.split("|")[0].strip() for line in stack.log.splitlines() if "shut down" in line or "ended" in line]
    # Both are the last words; the line of Postgres comes through a pipe of its own and may be read later.
    assert set(ends[-2:]) == {"postgres", "turnwise"}


def test_a_port_of_ones_own_moves_everything_and_the_tools_are_not_waited_for(stack: Stack) -> None:
    (stack.home / "data/notes.json").mkdir(parents=True)  # whatever is wrong with their notes
    port = free_block(6)
    with stack.launch("--no-samples", PORT=str(port)) as launcher:
        line = launcher.wait_for_line("^Turnwise is ready", PATIENCE_S).string
        assert line.startswith(f"Turnwise is ready: http://127.0.0.1:{port}  (metrics http://127.0.0.1:{port + 1}")
        launcher.wait_for_http(f"http://127.0.0.1:{port + 2}/knowledge-flow/v1/ready", PATIENCE_S)
        assert stack.free_ports()


def test_a_model_that_refuses_the_key_ends_the_start_with_that_as_the_last_line(
    stack: Stack, mock_llm: MockModel
) -> None:
    """A first turn that failed is not ready."""
    with stack.launch(OPENAI_BASE_URL=mock_llm.base_url, OPENAI_MODEL="mock;status=401") as launcher:
        assert launcher.wait(PATIENCE_S) == 1
    last = launcher.output.splitlines()[-1]
    assert last.startswith("turnwise: not ready: the first turn failed; ")
    assert "llm_" in last
    assert "401" in last
    assert last.endswith(f"OPENAI_BASE_URL is {mock_llm.base_url} (--no-first-turn starts without one)")
    assert "[KPI]" not in last
    assert "Turnwise is ready" not in launcher.output
    assert stack.free_ports()


def test_a_key_is_made_beside_it_by_the_command_and_opens_the_service(
    standing: tuple[Stack, ModuleProcess], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Postgres has a password that nobody else knows."""
    stack, _ = standing
    monkeypatch.setenv("TURNWISE_HOME", str(stack.home / "data"))
    assert main(["key", "--config", str(stack.agentic), "create", "a script"]) == 0
    headers = {"Authorization": f"Bearer {capsys.readouterr().out.strip()}"}
    models = f"http://127.0.0.1:{stack.port}/v1/models"
    with urllib.request.urlopen(urllib.request.Request(models, headers=headers)) as answer:
        assert json.load(answer)["data"]


def test_the_doctor_finds_nothing_wrong_with_it(
    standing: tuple[Stack, ModuleProcess], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, launcher = standing
    for name, value in {"TURNWISE_HOME": str(stack.home / "data"), "TURNWISE_WEIGHTS": str(weights())}.items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ENV_FILE", "FRED_POSTGRES_PASSWORD", "PORT"):
        monkeypatch.delenv(name, raising=False)
    launcher.wait_for_http(f"http://127.0.0.1:{stack.knowledge_port}/knowledge-flow/v1/ready", PATIENCE_S)
    code = main(["doctor", str(stack.agentic), str(stack.knowledge_flow), "--json"])
    told = json.loads(capsys.readouterr().out)
    found = {(one["title"], row["what"]): row["state"] for one in told["sections"] for row in one["findings"]}
    assert code == 0, told
    for title in ("agentic", "knowledge flow"):
        assert found[title, "service"] == found[title, "version"] == found[title, "postgres"] == "ok"
    assert found["agentic", "model mock"] == found["agentic", "knowledge flow"] == "ok"
    assert found["together", "connections together"] == "ok"


def test_a_killed_service_is_said_and_comes_back(standing: tuple[Stack, ModuleProcess]) -> None:
    stack, launcher = standing
    (agentic,) = (
        child for child in psutil.Process(launcher.pid).children() if child.cmdline()[-1] == "agentic_backend"
    )
    agentic.kill()
    launcher.wait_for_line(r"^agentic  \| was ended by SIGKILL; it starts again in 0.5 s")
    launcher.wait_for_http(f"http://127.0.0.1:{stack.port}/agentic/v1/ready")


def test_killed_tools_are_said_and_come_back(standing: tuple[Stack, ModuleProcess]) -> None:
    stack, launcher = standing
    (tools,) = (
        child for child in psutil.Process(launcher.pid).children() if "turnwise.sample_tools" in child.cmdline()
    )
    tools.kill()
    launcher.wait_for_line(r"^tools    \| was ended by SIGKILL; it starts again in 0.5 s")
    give_up = time.monotonic() + PATIENCE_S
    while _is_free(stack.tools_port):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_nothing_outlives_a_killed_launcher_and_the_next_start_works_until_a_second_signal_kills_it(
    stack: Stack,
) -> None:
    with stack.launch("--no-samples") as launcher:
        ready(launcher, stack)
        orphans = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        assert psutil.wait_procs(orphans, timeout=PATIENCE_S)[1] == []
    with stack.launch("--no-samples") as launcher:
        ready(launcher, stack)
        children = {child.cmdline()[-1]: child for child in psutil.Process(launcher.pid).children()}
        children["agentic_backend"].suspend()  # it will not end by itself
        launcher.send(signal.SIGINT)
        launcher.wait_for_line("stopping; once more to kill")
        launcher.send(signal.SIGINT)
        assert launcher.wait() == 0, launcher.output
    assert stack.free_ports()


def test_a_signal_in_the_middle_of_the_first_turn_is_no_failure(stack: Stack) -> None:
    stack.change(lambda data: data["ai"]["default_chat_model"].update(name="mock;ttft=600000"))
    with stack.launch("--no-samples") as launcher:
        launcher.wait_for_http(f"http://127.0.0.1:{stack.port}/agentic/v1/ready")
        while stack.sessions() == 0:
            time.sleep(0.1)
        children = {child.cmdline()[-1]: child for child in psutil.Process(launcher.pid).children()}
        children["agentic_backend"].suspend()  # neither does the turn end
        launcher.send(signal.SIGINT)
        launcher.wait_for_line("stopping; once more to kill")
        launcher.send(signal.SIGINT)
        assert launcher.wait() == 0, launcher.output


@pytest.mark.parametrize("service", ["agentic", "knowledge_flow"])
def test_a_bad_file_of_either_service_is_said_before_anything_starts(stack: Stack, service: str) -> None:
    file: Path = getattr(stack, service)
    file.write_text(file.read_text() + "\nnonsense: 1\n")
    with stack.launch("--no-samples") as launcher:
        assert launcher.wait(PATIENCE_S) == 2
    (line,) = launcher.output.splitlines()
    assert line.startswith(f"turnwise: {file}:")
    assert "nonsense: unknown key" in line
    assert not (stack.home / "data/postgres").exists()


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("import langgraph\nimport nowhere.at_all\n", "2: no module nowhere is installed or on the path"),
        (NO_CHANNEL, "5: has no messages channel: its channels are answer"),
        # Its cause looks like a line of the log, which would be shortened.
        (f"{GRAPH}async def graph():\n    raise OSError('FATAL:  no password')\n", "6: OSError: FATAL: no password"),
        # What it has started keeps the output open.
        ("import subprocess\nsubprocess.Popen(['sleep', '600'])\n1 / 0\n", "3: ZeroDivisionError: division by zero"),
    ],
    ids=["not imported", "no channel", "not made", "with a program of its own"],
)
def test_an_agent_that_cannot_be_used_is_said_in_one_line_before_anything_starts(
    stack: Stack, module: str, cause: str
) -> None:
    file = stack.have_one_agent(module)
    with stack.launch("--no-samples") as launcher:
        assert launcher.wait(PATIENCE_S) == 2
    assert launcher.output == f"turnwise: agent Weather: {file}:{cause}\n"
    assert not (stack.home / "data/postgres").exists()


def test_a_langgraph_json_that_cannot_be_read_is_said_before_anything_starts(stack: Stack) -> None:
    listed = stack.home / "langgraph.json"
    listed.write_text('{"graphs": {"parrot": ""}}')
    with stack.launch("--no-samples", "--langgraph", str(listed)) as launcher:
        assert launcher.wait(PATIENCE_S) == 2
    assert launcher.output == (
        f"turnwise: {listed}:1: graphs.parrot: must be package.module:name or ./path/file.py:name\n"
    )
    assert not (stack.home / "data/postgres").exists()


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("os.write(2, b'that was all\\n'); os._exit(7)", "ended with code 7: that was all"),
    ],
)
def test_a_check_that_does_not_come_to_its_end_is_no_verdict_on_the_configuration(
    stack: Stack, end: str, how: str
) -> None:
    """A machine without memory, for instance, kills it: the same start may do later."""
    stack.have_one_agent(f"import os\n{end}\n")
    with stack.launch("--no-samples") as launcher:
        assert launcher.wait(PATIENCE_S) == 1
    assert launcher.output == f"turnwise: agentic: python -m agentic_backend --check {how}\n"
    assert not (stack.home / "data/postgres").exists()


def test_the_graphs_of_a_langgraph_json_are_agents_of_the_start(stack: Stack) -> None:
    stack.change(lambda data: data["ai"].update(agents=[]))
    (stack.home / "talk").mkdir()
    (stack.home / "talk/agent.py").write_text(GRAPH)
    listed = stack.home / "langgraph.json"
    listed.write_text('{"dependencies": ["./talk"], "graphs": {"parrot": "./talk/agent.py:graph"}, "env": {}}')
    with stack.launch("--no-samples", "--langgraph", str(listed)) as launcher:
        ready(launcher, stack)
        agents = stack.agents()
        assert [(agent["id"], agent["name"], agent["graph"]) for agent in agents] == [
            ("parrot", "parrot", "./talk/agent.py:graph")
        ]
        # Broken while it runs: the next start of the service cannot be its last word again and again.
        (stack.home / "talk/agent.py").write_text(f"{GRAPH}flow = graph\ndel graph\n")
        (agentic,) = (
            child for child in psutil.Process(launcher.pid).children() if child.cmdline()[-1] == "agentic_backend"
        )
        agentic.kill()
        assert launcher.wait(PATIENCE_S) == 2
    expected = f"agent parrot: {stack.home}/talk/agent.py:1: has no graph: it has flow"
    assert launcher.output.splitlines()[-1] == f"turnwise: agentic cannot run: {expected}"
    assert stack.log.count("starts again") == 1


def test_a_spool_that_another_process_has_ends_the_start_with_who_has_it(
    standing: tuple[Stack, ModuleProcess], stack: Stack
) -> None:
    spool = standing[0].home / "data/spool"
    with stack.launch("--no-samples", TURNWISE_SPOOL_DIR=str(spool)) as second:
        assert second.wait(PATIENCE_S) == 1
    last = second.output.splitlines()[-1]
    assert last.startswith("turnwise: agentic cannot run: ")
    assert str(spool) in last
    assert "starts again" not in stack.log


def test_a_directory_of_another_postgres_ends_the_start_with_both_versions(stack: Stack) -> None:
    (stack.home / "data/postgres/data").mkdir(parents=True)
    (stack.home / "data/postgres/data/PG_VERSION").write_text("15\n")
    with stack.launch("--no-samples") as launcher:
        assert launcher.wait(PATIENCE_S) == 1
    assert "was written by Postgres 15, the server here is 18" in launcher.output.splitlines()[-1]


def test_a_taken_port_is_said_at_once_and_nothing_is_started(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNWISE_HOME", str(stack.home / "data"))
    with socket.create_server(("127.0.0.1", stack.metrics_port)):
        assert main(["run", *stack.arguments]) == 2
    expected = f"turnwise: port {stack.metrics_port} (127.0.0.1), wanted by agentic metrics, is taken\n"
    assert capsys.readouterr() == ("", expected)
    assert not (stack.home / "data").exists()
