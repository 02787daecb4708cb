"""A callback handler that cannot be made ends the start, before anything else has begun."""

import socket
from pathlib import Path

import pytest
import yaml

from tests.support.processes import ROOT, ForkedModule

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("workers", [1, 2])  # several are tried by `--check`
def test_it_is_one_line_and_exit_code_2(tmp_path: Path, workers: int) -> None:
    data = yaml.safe_load((ROOT / "config/agentic/configuration.yaml").read_text())
    data["tracing"] = {"callbacks": ["no_such_module:Handler"]}
    data["persistence"] = data.get("persistence", {}) | {"replicas": "many"}
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends in any case
        data["app"] |= {"port": taken.getsockname()[1], "workers": workers}
        (tmp_path / "configuration.yaml").write_text(yaml.safe_dump(data))
        env = {"CONFIG_FILE": "configuration.yaml", "ENV_FILE": ""}
        with ForkedModule("agentic_backend", env=env, cwd=tmp_path) as process:
            assert process.wait() == 2
    (line,) = process.output.strip().splitlines()
    assert line.endswith("tracing.callbacks: no_such_module:Handler cannot be made: ModuleNotFoundError")
