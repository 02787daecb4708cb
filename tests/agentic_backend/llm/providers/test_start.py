"""A model of another provider that cannot be made ends the start, before anything else has begun."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT, ForkedModule

pytestmark = pytest.mark.servers
Start = Callable[..., tuple[int, str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the service with a model; its port is taken, so that it ends in any case. Its exit code and output."""

    def started(model: dict[str, Any], *flags: str) -> tuple[int, str]:
        data = yaml.safe_load((ROOT / "config/agentic/configuration.yaml").read_text())
        data["ai"] |= {"chat_models": [{"id": "further", "name": "m", **model}]}
        env = {"CONFIG_FILE": "configuration.yaml", "ENV_FILE": ""}
        with socket.create_server(("127.0.0.1", 0)) as taken:
            data["app"] |= {"port": taken.getsockname()[1]}
            (tmp_path / "configuration.yaml").write_text(yaml.safe_dump(data))
            with ForkedModule("agentic_backend", *flags, env=env, cwd=tmp_path) as process:
                return process.wait(), process.output

    return started


@pytest.mark.parametrize("flags", [(), ("--check",)])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"provider": "groq"},
            "ai.chat_models[0].provider: needs langchain_groq, which is not installed: pip install langchain-groq",
        ),
        ({"provider": "ollama", "settings": {"options": {"numctx": 5}}}, "model m: options: ChatOllama has no numctx"),
        ({"provider": "azure_openai", "settings": {"api_key": "k"}}, "model m: "),
    ],
)
def test_it_is_one_line_and_exit_code_2(start: Start, flags: tuple[str, ...], model: dict[str, Any], said: str) -> None:
    code, printed = start(model, *flags)
    assert code == 2
    lines = printed.strip().splitlines()
    assert said in lines[-1]
    assert len(lines) == 1


def test_one_that_can_be_made_does_not(start: Start) -> None:
    assert start({"provider": "ollama", "settings": {"options": {"num_ctx": 5}}}, "--check") == (0, "")
