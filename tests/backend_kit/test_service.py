"""The frame of a service: when it runs, what it says of its readiness, and the first steps of its process."""

import asyncio
import gc
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from backend_kit.aio import TaskRegistry
from backend_kit.auth import HmacVerifier, IssuerVerifier, NoAuth
from backend_kit.process import arguments, configure, heavy_imports
from backend_kit.service import Identify, Service, kpi_options, make_verifier
from backend_kit.settings import ServiceSettings
from tests.support.clock import Clock
from tests.support.patience import PATIENCE_S

REALM = "http://127.0.0.1:1/realms/app"
"""Nobody listens there."""


@dataclass
class Loop:
    lag_s: float = 0.0


@dataclass
class Runtime:
    """What the frame asks of a `KpiRuntime`, with a lag that the test sets."""

    loop: Loop = field(default_factory=Loop)
    metrics_port: int | None = 9
    begun: list[str] = field(default_factory=list)

    def begin(self, line: str) -> None:
        self.begun.append(line)


@dataclass
class State:
    tasks: TaskRegistry
    runtime: Any
    hindrance: str | None = None


class Sample(Service[ServiceSettings, State]):
    def __init__(self, settings: ServiceSettings, clock: Clock | None = None) -> None:
        super().__init__(settings, freeze_gc=False, clock=clock or Clock())
        self.ended: list[str] = []
        self.app = self._make_app("Sample", max_body_bytes=1, file_paths=(), scopes={}, costs={})

    async def drain(self) -> None:
        self._draining = True

    async def _build(self, stack: AsyncExitStack) -> State:
        stack.callback(self.ended.append, "parts")
        tasks = TaskRegistry()
        self._start_tasks(tasks, stack)
        stack.callback(self.ended.append, "what came last")
        return State(tasks, Runtime())

    def _add_routes(self, app: FastAPI, identify: Identify, base: str) -> None:  # noqa: ARG002 - the shape of the frame
        @app.get(f"{base}/own")
        async def own() -> None: ...

    def _hindrance(self, state: State) -> str | None:
        return state.hindrance

    def _dependencies(self, state: State, status: str) -> dict[str, Any]:
        return {"own": state.hindrance, "status": status, "issuer": self._identity_provider()}


def settings(**security: Any) -> ServiceSettings:
    app = {"name": "sample", "base_url": "/base", "port": 1, "metrics_port": 1, "metrics_enabled": False}
    return ServiceSettings.model_validate({"app": app, "security": security or {"user": {"enabled": False}}})


def started(service: Sample) -> Any:
    return service.app.router.lifespan_context(service.app)


async def test_what_runs_is_there_between_start_and_end_alone() -> None:
    service = Sample(settings())
    with pytest.raises(RuntimeError):
        service.running  # noqa: B018 - to ask is what is tested
    assert (service.metrics_port, service.state()) == (None, (False, "starting", {}))
    async with started(service):
        assert service.running.hindrance is None
        assert service.metrics_port == 9
        assert service.ended == []
    assert service.ended == ["what came last", "parts"]
    with pytest.raises(RuntimeError):
        service.running  # noqa: B018 - to ask is what is tested
    assert (service.metrics_port, service.state()) == (None, (False, "starting", {}))


async def test_readiness_is_the_first_word_that_speaks_against_new_work() -> None:
    service = Sample(settings())
    async with started(service):
        assert service.running.runtime.begun == []
        assert service.state() == (True, "ready", {"own": None, "status": "ready", "issuer": None})
        (line,) = service.running.runtime.begun
        assert "status=ready" in line, "what is measured begins with the first word that it is ready"
        service.running.hindrance = "storage_full"
        told = {"own": "storage_full", "status": "storage_full", "issuer": None}
        assert service.state() == (False, "storage_full", told)
        await service.drain()
        assert service.state()[:2] == (False, "draining")


async def test_a_loop_that_was_late_for_ten_seconds_is_not_ready_until_it_is_not_late() -> None:
    clock = Clock()
    service = Sample(settings(), clock)
    async with started(service):
        service.running.runtime.loop.lag_s = 1.0
        assert service.state()[1] == "ready"
        clock.now += 9.9
        assert service.state()[1] == "ready"
        clock.now += 0.1
        assert service.state()[1] == "loop_late"
        service.running.runtime.loop.lag_s = 0.9
        assert service.state()[1] == "ready"
        service.running.runtime.loop.lag_s = 1.0
        assert service.state()[1] == "ready"  # late again, since just now


async def test_an_issuer_is_a_dependency_and_its_keys_are_fetched_by_an_essential_task() -> None:
    service = Sample(settings(user={"enabled": True, "client_id": "app", "realm_url": REALM}))
    assert isinstance(service._tokens, IssuerVerifier)
    assert service._identity_provider() == "unknown", "it was not asked yet"
    async with started(service):
        assert "issuer-keys" in service.running.tasks.vigil._essential
        async with asyncio.timeout(PATIENCE_S):
            while service.state()[2]["issuer"] != "down":  # noqa: ASYNC110 - readiness tells nobody
                await asyncio.sleep(0.01)


async def test_the_application_has_its_own_routes_and_those_of_every_service() -> None:
    documented = Sample(settings()).app
    paths = {getattr(route, "path", "") for route in documented.routes}
    assert {"/base/own", "/base/healthz", "/base/ready", "/openapi.json", "/docs"} <= paths
    assert [str(entry.cls).rsplit(".", 1)[1][:-2] for entry in documented.user_middleware] == [
        "RequestId",
        "BodyLimit",
        "RequestMetrics",
    ]


def test_the_verifier_is_what_the_settings_say(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(make_verifier(settings().security), NoAuth)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    secret = settings(hs256_secret="a secret of at least thirty-two bytes")
    assert isinstance(make_verifier(secret.security), HmacVerifier)
    issuer = settings(user={"realm_url": REALM, "client_id": "app"})
    caplog.clear()
    assert isinstance(make_verifier(issuer.security), IssuerVerifier)
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "no mark is demanded"
    caplog.clear()
    marked = settings(user={"realm_url": REALM, "client_id": "app", "access_token_mark": "Bearer"})
    assert isinstance(make_verifier(marked.security), IssuerVerifier)
    assert caplog.records == []


def test_what_observes_the_process_has_the_switches_of_the_configuration() -> None:
    options = kpi_options(settings())
    assert (options.metrics_enabled, options.metrics_port, options.summary_top_n) == (False, 1, 20)
    assert len(options.config_hash) == 12


def test_heavy_imports_leave_garbage_collection_on() -> None:
    with heavy_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_arguments_of_a_service_begin_with_a_check() -> None:
    parser = arguments("backend_kit", "A sample.")
    assert parser.parse_args(["--check"]).check
    assert not parser.parse_args([]).check


def test_to_check_a_configuration_ends_the_process_by_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "configuration.yaml"
    monkeypatch.setenv("CONFIG_FILE", str(file))
    sample = "app: {name: sample, base_url: /base, port: 1, metrics_port: 2}\nsecurity: {user: {enabled: false}}\n"
    for text, code in ((sample, 0), (sample + "zzz: 1\n", 2)):
        file.write_text(text)
        with pytest.raises(SystemExit) as ended:
            configure(ServiceSettings, check=True)
        assert ended.value.code == code
    assert "configuration.yaml:3: zzz: unknown key" in capsys.readouterr().err
