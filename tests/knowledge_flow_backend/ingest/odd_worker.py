"""A parsing child whose parsers misbehave on demand: the file's content says how."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from knowledge_flow_backend.ingest.blocks import Parsed
from knowledge_flow_backend.ingest.parsers import text
from knowledge_flow_backend.ingest.worker import main


def parse(data: bytes) -> Parsed:
    """Obey the first word of the file; the second, where there is one, names a file to touch first."""
    words = data.decode().split()
    if len(words) > 1:
        with open(words[1], "w") as touched:  # noqa: PTH123 - the shortest way
            touched.write(str(os.getpid()))
    return ODDITIES.get(words[0], text.parse)(data)


def block(data: bytes) -> Parsed:
    """Hold the processor for a second."""
    end = time.perf_counter() + 1.0
    while time.perf_counter() < end:
        pass
    return text.parse(data)


def burn(data: bytes) -> Parsed:
    """Compute for so long, however busy the machine is."""
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
    return text.parse(data)


def hang(data: bytes) -> Parsed:
    """Do nothing for longer than any test."""
    time.sleep(600)
    return text.parse(data)


def crash(data: bytes) -> Parsed:
    """Die of a segmentation fault."""
    return text.parse(ctypes.string_at(0) + data)


def memory(_data: bytes) -> Parsed:
    """Ask for a terabyte."""
    return text.parse(bytes(bytearray(1 << 40)[:1]))


def bug(_data: bytes) -> Parsed:
    """Fail in a way that nobody foresaw."""
    raise SystemError("words of the document")


def broken(_data: bytes) -> Parsed:
    """Fail in a way that damaged files make parsers fail."""
    raise ValueError("words of the document")


def endless(data: bytes) -> Parsed:
    """Answer more than anybody reads."""
    return replace(text.parse(data), cut="words " * 50_000)


def garbage(data: bytes) -> Parsed:
    """Print where answers are written."""
    os.write(1, b"printed by a library\n")
    return text.parse(data)


def environment(_data: bytes) -> Parsed:
    """Tell the names of the environment."""
    return text.parse(" ".join(sorted(os.environ)).encode())


def parse_deep(depth: int) -> Parsed:
    """Call itself until Python refuses."""
    return parse_deep(depth + 1)


ODDITIES: dict[str, Callable[[bytes], Parsed]] = {
    "block": block,
    "burn": burn,
    "hang": hang,
    "exit": lambda _data: os._exit(3),
    "crash": crash,
    "memory": memory,
    "bug": bug,
    "endless": endless,
    "garbage": garbage,
    "broken": broken,
    "recurse": lambda _data: parse_deep(0),
    "environment": environment,
}

if __name__ == "__main__":
    sys.exit(main({"text": parse}))
