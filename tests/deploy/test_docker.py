"""The Dockerfile, as far as it can be held to something without an engine, and the health check that it calls."""

import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agentic_backend.settings import AgenticApp
from knowledge_flow_backend.settings import KnowledgeFlowApp
from tests.support.ports import free_port
from tests.support.processes import ROOT

FILE = ROOT / "deploy/docker/Dockerfile"
HEALTH = ROOT / "deploy/docker/health.py"
SERVICES = {
    "agentic": ("agentic_backend", AgenticApp()),
    "knowledge-flow": ("knowledge_flow_backend", KnowledgeFlowApp()),
}


@dataclass
class Stage:
    """One FROM and what follows it; `base` is an image or an earlier stage."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]


def parsed() -> tuple[dict[str, str], dict[str, Stage]]:
    """The build arguments before the first stage, and the stages."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        assert name in {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "STOPSIGNAL", "EXPOSE",
                        "HEALTHCHECK", "CMD"}, name  # fmt: skip
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            current = stages[stage] = Stage(stage, base)
        elif current is None:
            assert name == "ARG"
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            current.steps.append((name, rest.strip()))
    return arguments, stages


ARGUMENTS, STAGES = parsed()


def lineage(stage: str) -> list[Stage]:
    """A stage and those that it is built upon, itself first."""
    found = [STAGES[stage]]
    while found[-1].base in STAGES:
        found.append(STAGES[found[-1].base])
    return found


def last(stage: str, instruction: str) -> str:
    """What holds in the end for an instruction of which the last one counts."""
    return next(each[-1] for each in (one.all(instruction) for one in lineage(stage)) if each)


def test_every_base_is_an_earlier_stage_or_an_image_of_a_version() -> None:
    known: set[str] = set()
    for stage in STAGES.values():
        base = re.sub(r"\$\{(\w+)\}", lambda found: ARGUMENTS[found[1]], stage.base)
        if base not in known | {"scratch"}:
            assert re.fullmatch(r"[a-z/]+:\d+\.\d+\.\d+-[a-z-]+", base), base
        known.add(stage.name)


def test_everything_that_is_copied_exists_and_is_not_kept_out() -> None:
    ignored = (FILE.with_name("Dockerfile.dockerignore")).read_text().splitlines()
    admitted = [line[1:] for line in ignored if line.startswith("!")]
    assert next(line for line in ignored if line and not line.startswith("#")) == "*"
    copied: set[str] = set()
    for stage in STAGES.values():
        for rest in stage.all("COPY"):
            *sources, _ = shlex.split(rest)
            if sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in STAGES
                continue
            copied |= set(sources)
    assert all((ROOT / source).exists() for source in copied)
    assert {source.partition("/")[0] for source in copied} == set(admitted)


def test_every_package_of_the_wheel_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {*wheel["packages"], *wheel["force-include"]}
    early = {source for rest in STAGES["build"].all("COPY") for source in shlex.split(rest)[:-1]}
    assert {shlex.split(rest)[0] for rest in STAGES["packages"].all("COPY")} == wanted - early


def test_the_weights_of_the_embedder_are_in_the_image() -> None:
    build, image = STAGES["build-knowledge-flow"], STAGES["knowledge-flow"]
    (fetch,) = (rest for rest in build.all("RUN") if "embed.weights" in rest)
    place = shlex.split(fetch)[-1]
    assert f"--from=build-knowledge-flow {place} {place}" in image.all("COPY")
    assert f"TURNWISE_WEIGHTS={place}" in last("knowledge-flow", "ENV").split()


def test_what_is_installed_is_what_is_locked_by_the_pinned_uv_and_compiled() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = re.search(r"^UV_PINNED=(\S+)$", (ROOT / "deploy/toolchain.sh").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"uv=={pinned[1]}" in STAGES["build"].all("RUN")[0]
    assert "UV_COMPILE_BYTECODE=1" in STAGES["build"].all("ENV")[0].split()
    for service in SERVICES:
        commands = [rest for rest in STAGES[f"build-{service}"].all("RUN") if rest.startswith("uv sync")]
        assert len(commands) == 2
        for command in commands:
            words = shlex.split(command)
            assert {"--frozen", "--no-default-groups"} <= set(words)
            extras = {words[place + 1] for place, word in enumerate(words) if word == "--extra"}
            assert service in extras
            assert extras <= set(project["project"]["optional-dependencies"])
        assert "--no-editable" in commands[-1]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_as_nobody_of_note_and_gets_its_signals_itself(service: str) -> None:
    module, _ = SERVICES[service]
    assert last(service, "USER") == "10001:10001"
    assert json.loads(last(service, "CMD")) == ["python", "-m", module]
    assert last(service, "STOPSIGNAL") == "SIGTERM"
    assert not any(rest for stage in lineage(service) for rest in stage.all("RUN") if "uv " in rest)
    assert json.loads(last(service, "VOLUME")) == [last(service, "WORKDIR")]


@pytest.mark.parametrize("service", SERVICES)
def test_the_health_check_asks_where_the_service_listens(service: str) -> None:
    _, app = SERVICES[service]
    check = last(service, "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    assert command[:2] == ["python", "-I"]
    assert command[-1] == f"http://127.0.0.1:{app.port}{app.base_url}/healthz"
    copied = [shlex.split(rest) for stage in lineage(service) for rest in stage.all("COPY")]
    assert [str(HEALTH.relative_to(ROOT)), command[2]] in copied
    assert {str(app.port), str(app.metrics_port)} <= set(last(service, "EXPOSE").split())


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK if self.path == "/ready" else HTTPStatus.SERVICE_UNAVAILABLE)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's signature
        pass


@pytest.fixture
def answering() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def health(url: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(HEALTH), url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.servers
def test_the_health_check_succeeds_on_200_alone(answering: str) -> None:
    assert health(f"{answering}/ready").returncode == 0
    draining = health(f"{answering}/draining")
    assert (draining.returncode, draining.stderr) == (
        1,
        f"{answering}/draining: HTTP Error 503: Service Unavailable\n",
    )
    assert health(f"http://127.0.0.1:{free_port()}/ready").returncode == 1


@pytest.mark.servers
def test_the_health_check_asks_no_proxy(answering: str) -> None:
    proxy = f"http://127.0.0.1:{free_port()}"
    assert health(f"{answering}/ready", http_proxy=proxy, HTTP_PROXY=proxy).returncode == 0


def test_the_ignore_file_keeps_secrets_and_leftovers_out() -> None:
    lines = Path(f"{FILE}.dockerignore").read_text().splitlines()
    assert {"**/.env", "**/__pycache__"} <= set(lines)
    assert max(lines.index(line) for line in lines if line.startswith("!")) < lines.index("**/.env")
