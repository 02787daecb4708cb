"""Which commit runs, and what a service does with streams that are closed or that nobody reads."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backend_kit.process import LogStream, git_sha
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t")


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    git(place, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "one")
    return place


@pytest.mark.servers
def test_the_checkout_that_runs_these_tests_is_known() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("these tests do not run from a checkout")
    assert git_sha({}) == git(ROOT, "rev-parse", "HEAD")


@pytest.mark.servers
def test_a_commit_is_found_wherever_git_keeps_it(checkout: Path, tmp_path: Path) -> None:
    sha = git(checkout, "rev-parse", "HEAD")
    assert git_sha({}, checkout) == sha
    git(checkout, "pack-refs", "--all")
    assert git_sha({}, checkout) == sha
    worktree = tmp_path / "worktree"
    git(checkout, "worktree", "add", "-q", str(worktree), "-b", "part/one")
    git(worktree, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "two")
    other = git(worktree, "rev-parse", "HEAD")
    assert git_sha({}, worktree) == other != sha
    git(worktree, "checkout", "-q", "--detach", sha)
    assert git_sha({}, worktree) == sha


@pytest.mark.servers
def test_the_variable_wins_unless_it_does_not_know_either(checkout: Path) -> None:
    assert git_sha({"TURNWISE_GIT_SHA": "abc"}, checkout) == "abc"
    for nothing in ("", "unknown"):
        assert git_sha({"TURNWISE_GIT_SHA": nothing}, checkout) == git(checkout, "rev-parse", "HEAD")


def test_what_is_no_checkout_is_not_known(tmp_path: Path) -> None:
    assert git_sha({}, tmp_path) == "unknown"
    (tmp_path / ".git").mkdir()
    assert git_sha({}, tmp_path) == "unknown"
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/none\n")
    assert git_sha({}, tmp_path) == "unknown"


SAYS_WHERE_ITS_STREAMS_LEAD = """
import os, sys
from backend_kit.process import open_streams
open_streams()
found = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
sys.stderr.write("to nobody\\n")
print("to nobody")
with open(sys.argv[1], "w") as file:
    print(*found, file.fileno() > 2, sep="\\n", file=file)
"""


@pytest.mark.servers
@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
def test_a_closed_stream_is_no_number_for_the_next_file(tmp_path: Path, closed: str) -> None:
    said = tmp_path / "said"
    script = "exec " + " ".join(f"{number}>&-" for number in closed.split()) + ' "$@"'
    command = [sys.executable, "-c", SAYS_WHERE_ITS_STREAMS_LEAD, str(said)]
    subprocess.run(
        ["sh", "-c", script, "sh", *command], check=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=PATIENCE_S
    )
    *streams, apart = said.read_text().splitlines()
    assert all(streams[int(number)] == os.devnull for number in closed.split())
    assert apart == "True"


LOGS_MUCH = """
import logging, os, sys
from backend_kit.process import open_streams
open_streams()
logging.basicConfig(level=logging.INFO, format="%(message)s")
for number in range(5_000):
    logging.info("line %d of a log that nobody reads, and more than a pipe takes", number)
os.write(1, b"still here")
sys.stdin.read(1)
logging.info("read again")
"""


@pytest.mark.servers
def test_a_log_that_nobody_reads_stops_nothing_and_says_what_it_lacks() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LOGS_MUCH], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == b"still here"
        log = b""
        while b" taken" not in log and process.stderr is not None and len(log) < 60_000:
            log += os.read(process.stderr.fileno(), 4096)
        _, rest = process.communicate(b"x", timeout=PATIENCE_S)
    lines = (log + rest).decode().splitlines()
    kept = [line for line in lines if line.startswith("line ")]
    assert lines[0].startswith("line 0 ")
    assert lines[-2:] == [f"{5_000 - len(kept)} lines of the log were dropped: nobody read it", "read again"]


def test_a_long_line_is_whole_where_somebody_reads(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        assert LogStream(file.fileno()).write(b"x" * 100_000) == 100_000
    assert (tmp_path / "log").read_bytes() == b"x" * 100_000


def test_threads_may_log_at_the_same_time() -> None:
    """While one waits for the reader, others have lines too: none fails, and none is torn."""
    reading, writing = os.pipe()
    stream = LogStream(writing, patience_s=PATIENCE_S)
    with ThreadPoolExecutor(4) as threads:
        lines = [b"%d" % (number % 9) * 4095 + b"\n" for number in range(180)]
        written = [threads.submit(stream.write, line) for line in lines]
        read = b""
        while len(read) < 180 * 4096 and not any(one.done() and one.exception() for one in written):
            time.sleep(0.001)  # so that they wait
            read += os.read(reading, 16_384)
        assert [one.result() for one in written] == [4096] * 180
    assert sorted(read.splitlines(keepends=True)) == sorted(lines)
    os.close(reading)
    os.close(writing)


STARTS_FOR_LONG = """
import time
from backend_kit.process import end_quietly
end_quietly()
print("starting", flush=True)
time.sleep(600)
"""


@pytest.mark.servers
def test_ctrl_c_in_a_start_ends_it_without_a_word() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", STARTS_FOR_LONG], cwd=ROOT, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"starting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
        assert process.returncode == -signal.SIGINT


LEAVES_GARBAGE = """
from backend_kit.process import end_at_once

class Garbage:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        print("collected")

Garbage()
"""


@pytest.mark.servers
@pytest.mark.parametrize(("last", "said"), [("", "collected\n"), ("end_at_once()", "")])
def test_a_process_ends_without_looking_for_garbage(last: str, said: str) -> None:
    command = [sys.executable, "-c", LEAVES_GARBAGE + last]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == said
