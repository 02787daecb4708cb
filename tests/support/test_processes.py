"""The helper that runs servers for tests does not hide how they end."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.fork_server import FORKS
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ForkedModule, ModuleProcess

pytestmark = pytest.mark.servers


@dataclass(frozen=True, slots=True)
class Module:
    """Where a module is written that is then run, and as what."""

    path: Path
    kind: type[ModuleProcess]


@pytest.fixture(params=[ModuleProcess, ForkedModule])
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Module:
    """Both kinds of process, in a directory of the test's own."""
    return Module(tmp_path / "sample.py", request.param)


def sample(module: Module, text: str, **options: object) -> ModuleProcess:
    module.path.write_text(text)
    return module.kind("sample", cwd=module.path.parent, **options)  # type: ignore[arg-type]


def test_lines_past_and_to_come_are_found(module: Module) -> None:
    with sample(module, "import time\nprint('port=81')\nprint('second')\ntime.sleep(600)") as process:
        assert process.wait_for_line("second")
        assert process.wait_for_line(r"port=(\d+)")[1] == "81"


def test_a_process_that_ends_before_its_line_fails_the_test_with_its_output(module: Module) -> None:
    with sample(module, "print('only this'); raise SystemExit(4)") as process:
        with pytest.raises(pytest.fail.Exception, match=r"no line with 'more' \(exit code 4\):\nonly this"):
            process.wait_for_line("more")
        assert process.wait() == 4


def test_what_an_ended_process_wrote_last_is_there_when_its_end_is_seen(module: Module) -> None:
    text = "import os, sys\nsys.stdout.write('line\\n' * 12_000 + 'last\\n')\nsys.stdout.flush()\nos._exit(0)"
    with sample(module, text) as process:
        while process.returncode is None:
            pass  # without a pause in which its output could be read
        assert process.output.endswith("line\nlast\n")


def test_a_command_may_run_it_and_is_it_afterwards(module: Module) -> None:
    text = "import os, time\nprint('it is', os.getpid(), os.environ['GIVEN'], flush=True)\ntime.sleep(600)"
    with sample(module, text, under=("/usr/bin/env", "GIVEN=so")) as process:
        assert process.wait_for_line(r"it is (\d+) so")[1] == str(process.pid)


def test_a_traceback_fails_the_test(module: Module) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="ValueError: that"),
        sample(module, "raise ValueError('that')") as it,
    ):
        it.wait()


def test_a_traceback_may_be_allowed(module: Module) -> None:
    with sample(module, "raise ValueError('that')", traceback_allowed=True) as process:
        assert process.wait() == 1


def test_a_server_is_waited_for_by_http(module: Module) -> None:
    port = free_port()
    with module.kind("http.server", "--bind", "127.0.0.1", str(port), cwd=module.path.parent) as process:
        process.wait_for_http(f"http://127.0.0.1:{port}/")
        process.send(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_deaf_process_and_its_children_are_gone_after_the_context(module: Module) -> None:
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


async def test_waits_leave_the_loop_free(module: Module) -> None:
    with sample(module, "print('up'); import time; time.sleep(600)") as process:
        assert (await process.until(process.wait_for_line, "up")).string == "up\n"
        process.kill()
        assert process.returncode == -signal.SIGKILL


SAYS = """
import json, os, signal, sys, time
print(json.dumps({
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "path": sys.path,
    "name": __name__,
    "environment": dict(os.environ),
    "leads": os.getsid(0) == os.getpid(),
    "open": len(os.listdir("/proc/self/fd")),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "zone": time.tzname[0],
}))
"""


@pytest.mark.parametrize("zone", [None, "UTC+3"])
def test_a_fork_is_as_the_program_that_it_stands_for(tmp_path: Path, zone: str | None) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    env = {"MARK": "one"} | ({"TZ": zone} if zone else {})
    told = []
    for kind in (ModuleProcess, ForkedModule):
        with kind("says", "--a", "b c", cwd=tmp_path, env=env) as process:
            told.append(json.loads(process.wait_for_line("{").string))
            assert process.wait() == 0
    assert told[0] == told[1]
    assert told[1]["arguments"][1:] == ["--a", "b c"]
    assert told[1]["environment"]["MARK"] == "one"
    assert told[1]["leads"]


def test_a_fork_has_no_descriptor_of_the_server_or_of_another_fork(module: Module) -> None:
    text = "import os\nprint('open', len(os.listdir('/proc/self/fd')))\nimport time; time.sleep(600)"
    with sample(module, text) as first, sample(module, text) as second:
        assert first.wait_for_line(r"open (\d+)")[1] == second.wait_for_line(r"open (\d+)")[1] == "4"


def test_a_killed_server_takes_its_forks_with_it_and_the_next_start_has_another(tmp_path: Path) -> None:
    module = Module(tmp_path / "sample.py", ForkedModule)
    with sample(module, "print('up'); import time; time.sleep(600)") as process:
        process.wait_for_line("up")
        assert FORKS.pid is not None
        fork = psutil.Process(process.pid)
        os.kill(FORKS.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert psutil.wait_procs([fork], timeout=PATIENCE_S)[1] == []
    with sample(module, "print('again')") as process:
        process.wait_for_line("again")
