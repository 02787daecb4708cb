"""A command beside neighbours that take what they can: `python -m tests.busy [--times N] COMMAND…`.

A process that computes on each core, and one that writes and flushes half a gigabyte after the other to the disk. The
command is run so often, or until it fails.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from backend_kit.parent_death import with_parent_death_signal

ROOT = Path(__file__).parents[1]
_COMPUTES = "while True: pass"
_WRITES = """
import os, sys
piece = bytes(1 << 20)
while True:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(512):
            file.write(piece)
        os.fsync(file.fileno())
"""


def main(arguments: list[str]) -> int:
    """The exit code of the first run that failed; 0 where none did, 1 where a neighbour has ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description="Run a command on a busy machine.")
    parser.add_argument("--times", type=int, default=1, help="how often (default: once)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("no command")
    with ExitStack() as stack:
        # Below /tmp may be memory.
        place = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="turnwise-busy-"))
        programs = [[_COMPUTES]] * (os.cpu_count() or 1) + [[_WRITES, str(Path(place, "written"))]]
        neighbours = [
            subprocess.Popen(with_parent_death_signal([sys.executable, "-c", *program], signal.SIGKILL))
            for program in programs
        ]
        for neighbour in neighbours:
            stack.callback(neighbour.wait)
            stack.callback(neighbour.kill)
        for number in range(options.times):
            begun = time.monotonic()
            done = subprocess.run(options.command, cwd=ROOT, check=False).returncode
            print(
                f"run {number + 1} of {options.times}: exit code {done} after {time.monotonic() - begun:.0f} s",
                flush=True,
            )
            if done:
                return done
            if any(neighbour.poll() is not None for neighbour in neighbours):
                print("a neighbour has ended: this was no busy machine", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
