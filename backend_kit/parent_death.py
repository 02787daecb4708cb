"""Parent-death signals: run a program that ends with the process that started it, optionally as another user.

Run as `python -I -S parent_death.py PARENT_PID SIGNAL UID:GID|- PROGRAM ARG…`. It is a script, not code
between fork and exec, because the kernel clears the signal when the user changes and because Python code between fork
and exec can deadlock once the parent has threads. The kernel watches the parent's *thread*: start such programs from a
thread that lives as long as the process. On systems other than Linux the program gets no signal.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def with_parent_death_signal(
    command: list[str], stop_signal: signal.Signals, ids: tuple[int, int] | None = None
) -> list[str]:
    """The argument vector that runs `command` (its program an absolute path) with a parent-death signal.

    `stop_signal` is what the program receives when this process dies, however it dies. `ids` is the (uid, gid) to run
    as, which only root may set.
    """
    owner = f"{ids[0]}:{ids[1]}" if ids else "-"
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(stop_signal)), owner, *command]


def _set_parent_death_signal(parent: int, stop_signal: int) -> None:
    """Ask the kernel to send this process the signal when its parent dies. Raises OSError if the kernel refuses.

    Exits with 1 if the parent has already died.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the call
        sys.exit(1)


def _main(arguments: list[str]) -> None:
    """Change to the user, set the signal and replace this process by the program. Raises OSError."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback when it ends while it is still this script
    parent, stop_signal, owner, *command = arguments
    if owner != "-":
        uid, gid = (int(part) for part in owner.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    _set_parent_death_signal(int(parent), int(stop_signal))
    # The interpreter ignores these two; an ignored signal would stay ignored in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 - replacing this process is the purpose


if __name__ == "__main__":
    _main(sys.argv[1:])
