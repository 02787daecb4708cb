"""What this version does not have ends the start with words, whatever the configuration file asks for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "opensearch": (
        {"storage": {"vector_store": {"type": "opensearch"}, "opensearch": {"host": "http://127.0.0.1:9200"}}},
        "storage.vector_store.type",
    ),
}


@pytest.mark.parametrize(("changes", "key"), CHANGES.values(), ids=CHANGES)
def test_it_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    config = yaml.safe_load((ROOT / "config/knowledge_flow/configuration_bench.yaml").read_text())
    for name, section in changes.items():
        config[name] = {**config[name], **section}
    file = tmp_path / "configuration.yaml"
    file.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "knowledge_flow_backend"],
        env={**os.environ, "CONFIG_FILE": str(file)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(key)
    assert "not available in this version" in done.stderr
    assert "Traceback" not in done.stderr
