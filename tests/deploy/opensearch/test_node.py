"""`make opensearch`: a node that answers, how knowledge flow is told of it, and an end without remains."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from deploy.opensearch.node import OpenSearchNode
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.checks.source import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from turnwise.errors import PortTaken

pytestmark = pytest.mark.servers


@pytest.mark.java
def test_the_command_starts_a_node_and_ends_it() -> None:
    port = free_port()
    home = public_directory("turnwise-test-home-")
    running = subprocess.Popen(
        [sys.executable, "-m", "deploy.opensearch", "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "TURNWISE_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    try:
        lines = []
        while (line := running.stdout.readline()) and "secure:" not in line:
            lines.append(line)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_cat/plugins", timeout=PATIENCE_S) as answer:
            assert b"KNNPlugin" in answer.read()
        printed = "".join([*lines, line])
        told = yaml.safe_load(printed[printed.index("storage:") :])
        shipped = yaml.safe_load((ROOT / "config/knowledge_flow/configuration_opensearch.yaml").read_text())
        assert told["storage"]["opensearch"] == {"host": f"http://127.0.0.1:{port}", "secure": False}
        assert told["storage"]["vector_store"] == shipped["storage"]["vector_store"]
        KnowledgeFlowSettings.model_validate({**shipped, "storage": {**shipped["storage"], **told["storage"]}})
    finally:
        running.send_signal(signal.SIGINT)
        rest = running.communicate(timeout=PATIENCE_S)[0]
        shutil.rmtree(home)
    assert (running.returncode, rest.strip()) == (0, "")
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        node = OpenSearchNode(ROOT, tmp_path, taken.getsockname()[1])
        with pytest.raises(PortTaken, match="wanted by OpenSearch"):
            node.start()
    assert node.pid is None
