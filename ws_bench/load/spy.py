"""py-spy, which samples the stacks of a process of this machine from outside, without stopping it."""

import shutil
import subprocess
import sys
from pathlib import Path

from ws_bench.errors import BenchError

_RATE = 500


def find_spy() -> str | None:
    """The program: of this Python's environment, else of the path; None where there is none."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def record(spy: str, pid: int, form: str, path: Path, seconds: float) -> None:
    """Sample a process into a file: `raw` (collapsed stacks) or `flamegraph` (SVG). Blocks for that time.

    Raises `BenchError` with what to do where the kernel does not let it.
    """
    options = ["--rate", str(_RATE), "--format", form, "--output", str(path), "--duration", str(max(round(seconds), 1))]
    done = subprocess.run(  # noqa: S603 - py-spy itself, with arguments that are no text of others
        [spy, "record", "--pid", str(pid), "--nonblocking", "--full-filenames", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not path.exists():
        said = done.stderr.strip().splitlines()[-1:] or ["py-spy failed"]
        raise BenchError(
            f"{said[0]}; may py-spy look at process {pid}? Run as root, or set kernel.yama.ptrace_scope to 0"
        )
