"""`-watch-pid`: memory, CPU, files and sockets of other processes, once a second, from a thread."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from ws_bench.record.dialects import clock

_INTERVAL_S = 1.0


class ProcessMonitor:
    """Samples processes while it is entered. A process that ends or may not be inspected gets no more samples."""

    def __init__(self, pids: Sequence[int], begin: float) -> None:
        """`begin` is the start of the run on `clock`."""
        self._pids = pids
        self._begin = begin
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.samples: dict[int, list[dict[str, Any]]] = {pid: [] for pid in pids}

    def __enter__(self) -> "ProcessMonitor":
        if self._pids:
            self._thread = threading.Thread(target=self._run, name="process-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def as_json(self) -> dict[str, Any]:
        """Samples and the highest value of each figure by pid; empty if no process was given."""
        if not self._pids:
            return {}
        names = ("rss_mb", "cpu_pct", "fds", "sockets")
        peaks = {
            str(pid): {name: max(one[name] for one in samples) for name in names}
            for pid, samples in self.samples.items()
            if samples
        }
        return {"peaks": peaks, "samples": {str(pid): samples for pid, samples in self.samples.items()}}

    def _run(self) -> None:
        processes: dict[int, psutil.Process] = {}
        for pid in self._pids:
            try:
                processes[pid] = psutil.Process(pid)
                processes[pid].cpu_percent()
            except psutil.Error:
                continue
        while processes and not self._stop.wait(_INTERVAL_S):
            for pid, process in list(processes.items()):
                try:
                    self.samples[pid].append(self._sample(process))
                except psutil.Error:
                    del processes[pid]

    def _sample(self, process: psutil.Process) -> dict[str, Any]:
        with process.oneshot():
            states = Counter(connection.status for connection in process.net_connections("inet"))
            return {
                "at": round(clock() - self._begin, 3),
                "rss_mb": round(process.memory_info().rss / 2**20, 1),
                "cpu_pct": process.cpu_percent(),
                "fds": process.num_fds(),
                "sockets": states.total(),
                "states": dict(states),
            }
