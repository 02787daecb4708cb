"""`ws_bench run` against the real service in both protocols: what is released together works together."""

import json
from pathlib import Path

import pytest

from tests.support.service import StartService
from tests.ws_bench.lab import bench


@pytest.mark.parametrize("native", ["true", "false"])
async def test_every_turn_succeeds(start_service: StartService, tmp_path: Path, native: str) -> None:
    out = tmp_path / "out.json"
    async with start_service(model="mock;tokens=20;gap=5") as running:
        done = await bench(
            f"-native={native}", "-url", running.ws_url, "-clients=5", "-requests-per-client=4", "-ramp-duration=0",
            "-json", str(out),
        )  # fmt: skip
        assert await running.get("/chatbot/sessions") == []
    assert done.code == 0, done.stdout
    result = json.loads(out.read_text())
    assert result["counts"] == {"total": 20, "success": 20, "errors": 0, "not_sent": 0}
    assert result["first_token_ms"]["count"] == 20
    assert (result["gap_ms"] is not None) is (native == "true")
    assert result["sessions"] == {"created": 5, "deleted": 5, "delete_failed": 0}


async def test_a_model_that_refuses_makes_a_failed_run(start_service: StartService, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with start_service(model="mock;status=400") as running:
        done = await bench(
            "-url", running.ws_url, "-clients=1", "-requests-per-client=2", "-ramp-duration=0", "-json", str(out)
        )
    assert done.code == 3
    assert sum(json.loads(out.read_text())["errors_by_class"].values()) == 2


async def test_prompts_are_asked_in_order_and_over_again(start_service: StartService, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one?\ntwo?\n")
    async with start_service() as running:
        session_id = await running.create_session()
        done = await bench(
            "-url", running.ws_url, "-clients=1", "-requests-per-client=3", "-ramp-duration=0",
            "-session", session_id, "-prompts", str(prompts),
        )  # fmt: skip
        asked = [m["parts"][0]["text"] for m in await running.history(session_id) if m["role"] == "user"]
    assert done.code == 0, done.stdout
    assert asked == ["one?", "two?", "one?"]
