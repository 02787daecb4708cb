"""`micro`, `ladder`, `matrix`, `profile` and `verdict` against one real service, as its deployer would ask it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.service import StartService
from tests.ws_bench.scripted import Outcome, bench, scripted_service
from ws_bench.__main__ import main

FEW = ("-clients=2", "-requests-per-client=2", "-no-live", "-timeout=60s")
SHORT = ("-clients=2", "-duration=2s", "-no-live", "-timeout=60s")


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def rows(done: Outcome) -> dict[str, list[str]]:
    """The lines of a table by their first word."""
    return {words[0]: words for line in done.stdout.splitlines() if (words := line.split())}


async def test_each_tells_of_a_service_what_it_is_for(start_service: StartService, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with start_service(model="mock;tokens=10;gap=1;floor=120") as running:
        url = ("-url", running.ws_url)

        micro = await bench("micro", *url, "-seconds=10ms", "-dir", str(tmp_path), "-json", str(out))
        assert all(us for us in read(out)["samples_us"].values())
        assert micro.code in (0, 1), micro.stderr
        for piece in ("frame encode: an ask", "websocket: echo", "disk: commit", "service: ping of a chat socket"):
            assert piece in micro.stdout

        ladder = await bench("ladder", *url, *FEW, "-agents=Georges", "-rounds=2", "-json", str(out))
        assert ladder.code == 0, ladder.stderr + ladder.stdout
        assert list(read(out)["turns"]) == ["ws-baseline: one model call", "Georges"]
        assert all(len(samples) == 2 for samples in read(out)["turns"].values())
        assert all(ms > 0 for times in read(out)["requests_ms"].values() for ms in times)
        [phases] = [line for line in ladder.stdout.splitlines() if line.startswith("Georges: ")]
        assert phases.startswith("Georges: llm_invoke 1")

        matrix = await bench("matrix", *url, *FEW, "-rounds=3", "-json", str(out))
        assert matrix.code == 0, matrix.stderr + matrix.stdout
        named = [f"protocol={one}" for one in ("compatible", "native", "sse", "openai", "langgraph")]
        assert list(read(out)["samples"]) == [*named, "(the first once more)"]
        assert all(one["p50_ms"] >= 120 for samples in read(out)["samples"].values() for one in samples)

        verdict = await bench("verdict", *url, *SHORT, "-levels=1,2", "-expect=llm_floor", "-json", str(out))
        assert verdict.code == 0, verdict.stderr + verdict.stdout
        assert [step["verdict"]["bound_by"] for step in read(out)["steps"]] == ["llm_floor"] * 2
        assert all(step["verdict"]["turns"] > 0 for step in read(out)["steps"])
        assert "Bound by: llm_floor from 1 client(s) on" in verdict.stdout

        profile = await bench("profile", *url, *SHORT, "-pid", str(os.getpid()), "-json", str(out))
        assert profile.code == 0, profile.stderr + profile.stdout
        assert float(rows(profile)["llm_invoke"][1]) >= 100
        assert "bound by (GET /kpi/verdict): llm_floor" in profile.stdout
        assert ("source: py-spy" in profile.stdout) or ("no stacks" in profile.stdout)
        assert await running.get("/chatbot/sessions") == []


async def test_what_is_not_expected_ends_with_one(start_service: StartService) -> None:
    async with start_service(model="mock;tokens=10;floor=120") as running:
        done = await bench("verdict", "-url", running.ws_url, *SHORT, "-levels=1", "-expect=sql,nobody")
        unknown = await bench("ladder", "-url", running.ws_url, *FEW, "-agents=Georges,Nobody")
    assert (done.code, unknown.code) == (1, 2)
    assert "NOT EXPECTED" in done.stdout
    assert "the service has no Nobody" in unknown.stderr


@pytest.mark.servers
@pytest.mark.parametrize("command", ["ladder", "matrix", "profile", "verdict", "micro"])
def test_a_service_that_is_away_is_said_to_be(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-url", f"ws://127.0.0.1:{free_port()}/agentic/v1/chatbot/query/ws"]) == 2
    assert "the service cannot be reached: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("matrix", "-vary", "protocol=smoke"), "one of compatible"),
        (("matrix", "-vary", "html=a,b"), "with a name of"),
        (("matrix", "-vary", "clients=" + ",".join(map(str, range(1, 66)))), "at most 64"),
        (("matrix", "-vary", "deflate=true", "-vary", "protocol=sse"), "no combination can be run"),
        (("matrix", "-rate", "3/s", "-duration", "3s"), "closed loop"),
        (("ladder", "-protocol", "sse"), "-protocol ws"),
        (("verdict", "-duration", "1s"), "at least 2s"),
        (("profile", "-pid", "999999999"), "no such process"),
        (("profile", "-flame", "x.svg"), "-flame needs -pid"),
        (("micro", "-dir", "/nowhere"), "a directory"),
        *(
            ((command, flag, value), "are for one run")
            for command in ("ladder", "matrix", "profile", "verdict", "micro")
            for flag, value in (("-html", "x.html"), ("-threshold", "errors:rate<1%"), ("-watch-pid", "1"))
        ),
    ],
)
def test_what_makes_no_sense_is_refused(argv: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert why in capsys.readouterr().err


@pytest.mark.servers
async def test_pieces_that_are_not_there_are_said_to_be() -> None:
    micro = await bench("micro", "-seconds=1ms", "-only=no piece's name")
    assert (micro.code, micro.stderr) == (2, "ws_bench: -only no piece's name: no piece is called so\n")


@pytest.mark.servers
async def test_a_run_that_cannot_be_prepared_is_said_to_be() -> None:
    async with scripted_service(verdict={"bound_by": "nobody"}) as service:
        service.create_status = 503
        profile = await bench("profile", "-url", service.url, *SHORT, "-prepare-sessions")
    assert profile.code == 2
    assert profile.stderr.startswith("ws_bench: ")
    assert "Traceback" not in profile.stderr


@pytest.mark.servers
@pytest.mark.parametrize(("says", "why"), [(403, "operator_roles"), (None, "does not have it")])
async def test_a_service_without_a_verdict_for_us_is_said_to_be(says: int | None, why: str) -> None:
    async with scripted_service(verdict=says) as service:
        verdict = await bench("verdict", "-url", service.url, *SHORT)
        profile = await bench("profile", "-url", service.url, *SHORT)
    assert (verdict.code, profile.code) == (2, 2)
    assert f"answered {says or 404}: " in verdict.stderr
    assert why in verdict.stderr
    assert "nothing says where the CPU goes" in profile.stderr
    assert service.asks == []
