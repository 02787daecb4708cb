"""Becomes another program that ends with the process that started it, optionally as another user.

Run as `python -I -S tether.py PARENT_PID SIGNAL UID:GID|- PROGRAM ARG…`. It exists as a process of its own because
the kernel forgets the wish on a change of user and because Python code between fork and exec can deadlock once the
parent has threads. The kernel watches the parent's *thread*: start tethered programs from one that lives as long as
the process. Elsewhere than on Linux the program runs untethered.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tethered(command: list[str], stop_signal: signal.Signals, ids: tuple[int, int] | None = None) -> list[str]:
    """The argument vector that runs `command` (its program an absolute path) on a tether to the calling process.

    `stop_signal` is what the program gets when this process dies, however it dies. `ids` is the (uid, gid) to run
    as, which only root may give.
    """
    owner = f"{ids[0]}:{ids[1]}" if ids else "-"
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(stop_signal)), owner, *command]


def tie(parent: int, stop_signal: int) -> None:
    """Have this process get the signal when its parent dies; exit where that has died already."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the knot was tied
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Drop to the user, tie the knot, become the program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback when it ends while it is still this script
    parent, stop_signal, owner, *command = arguments
    if owner != "-":
        uid, gid = (int(part) for part in owner.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    tie(int(parent), int(stop_signal))
    # The interpreter ignores these two; an ignored signal would stay ignored in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 - to become it is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
