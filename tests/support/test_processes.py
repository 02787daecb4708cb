"""The helper that runs servers for tests does not hide how they end."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

pytestmark = pytest.mark.servers


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A directory in which `python -m sample` runs what the test writes into sample.py."""
    return tmp_path / "sample.py"


def sample(module: Path, text: str, **options: object) -> ModuleProcess:
    module.write_text(text)
    return ModuleProcess("sample", cwd=module.parent, **options)  # type: ignore[arg-type]


def test_lines_past_and_to_come_are_found(module: Path) -> None:
    with sample(module, "import time\nprint('port=81')\nprint('second')\ntime.sleep(600)") as process:
        assert process.wait_for_line("second")
        assert process.wait_for_line(r"port=(\d+)")[1] == "81"


def test_a_process_that_ends_before_its_line_fails_the_test_with_its_output(module: Path) -> None:
    with sample(module, "print('only this'); raise SystemExit(4)") as process:
        with pytest.raises(pytest.fail.Exception, match=r"no line with 'more' \(exit code 4\):\nonly this"):
            process.wait_for_line("more")
        assert process.wait() == 4


def test_a_traceback_fails_the_test(module: Path) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="ValueError: that"),
        sample(module, "raise ValueError('that')") as it,
    ):
        it.wait()


def test_a_traceback_may_be_allowed(module: Path) -> None:
    with sample(module, "raise ValueError('that')", traceback_allowed=True) as process:
        assert process.wait() == 1


def test_a_server_is_waited_for_by_http(module: Path) -> None:
    port = free_port()
    with ModuleProcess("http.server", "--bind", "127.0.0.1", str(port), cwd=module.parent) as process:
        process.wait_for_http(f"http://127.0.0.1:{port}/")
        process.send(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_deaf_process_and_its_children_are_gone_after_the_context(module: Path) -> None:
    text = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid)\ntime.sleep(600)\n"
    )
    with sample(module, text, stop_s=0.2) as process:
        child = psutil.Process(int(process.wait_for_line(r"child (\d+)")[1]))
    assert process.returncode == -signal.SIGKILL
    assert psutil.wait_procs([child], timeout=PATIENCE_S)[1] == []


async def test_waits_leave_the_loop_free(module: Path) -> None:
    with sample(module, "print('up'); import time; time.sleep(600)") as process:
        assert (await process.until(process.wait_for_line, "up")).string == "up\n"
        process.kill()
        assert process.returncode == -signal.SIGKILL
