"""What compressing HTTP bodies costs and saves, and when it pays: two matrices, the codecs alone, and the rule.

Hypothesis: for readers behind 50 Mbit/s and less, zstd pays for answers from 4 KiB on, at no more CPU than gzip;
between services, which share a host or 1 Gbit/s and more, nothing pays (decision 94).
Control: the same request without compression, in turn with the others, round by round.
Command: `make bench-matrix ARGS="--only compression"`, or `python -m tests.bench.compression` (`--short`: two short
rounds, bounds five times as wide; `--only codecs|rest|services`).

`rest`: GET with an answer, and POST with a request, of 1 to 256 KiB, by none, gzip and zstd. `services`: POST as the
agentic service asks knowledge flow, a search (0.4 KiB, answered by 12 KiB) and a rerank (64 KiB, answered by 1 KiB),
both bodies from 1 KiB on compressed, with connections that are kept and one a request. Bodies are hits with passages of
the documentation. The server is the kit's, with the product's own compression, alone on the first core; the client is
aiohttp, as in the product, on the others. One request runs at a time.

CPU is of both processes, from the kernel's account of all their threads; bytes are those of both bodies; a figure is
the median of the rounds, a difference that of the differences in a round. `pays below` is the bandwidth at which the
bytes saved take as long as the CPU that it cost on both sides, one after the other: below it the answer comes sooner.
On an idle machine p50 says the same; where others work, it says more of them. Round trips that fewer segments save come
on top of it; what fits into one segment, some 1.4 KB, saves none.
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import aiohttp
import uvloop

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.bench import Verdicts, cores, pinned_to
from tests.bench.compressing import body_of, decoded, encoded
from tests.bench.deployment import cpu_s
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

KIB: Final = 1024
SIZES: Final = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
ENCODINGS: Final = ("none", "gzip", "zstd")
LINKS: Final = {"10 Mbit/s": 1e7, "100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
PARTS: Final = ("codecs", "rest", "services")
_SMALLEST: Final = KIB
"""The product's `MIN_BYTES`: what is smaller goes as it is."""
_WARM: Final = 5
_CODEC_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """How many rounds there are, the seconds of a cell in one, and how much wider than a full run's the bounds are."""

    rounds: int
    seconds: float
    slack: float


FULL = Size(rounds=9, seconds=0.25, slack=1.0)
SHORT = Size(rounds=2, seconds=0.05, slack=5.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of request: sizes in bytes of its body and its answer's, and how both are encoded."""

    kind: str
    request: int
    answer: int
    encoding: str
    keepalive: bool = True

    @property
    def plain(self) -> "Cell":
        """Its control."""
        return Cell(self.kind, self.request, self.answer, "none", self.keepalive)


@dataclass(frozen=True, slots=True)
class Round:
    """What a request took in one round: milliseconds, CPU in µs of the server and of the client, bytes of bodies."""

    p50_ms: float
    p95_ms: float
    server_us: float
    client_us: float
    wire_bytes: int

    @property
    def cpu_us(self) -> float:
        """CPU of both: they work one after the other, so that it is time, too."""
        return self.server_us + self.client_us


@dataclass(slots=True)
class Measured:
    """The rounds of a cell."""

    rounds: list[Round] = field(default_factory=list)

    def of(self, what: str) -> float:
        """The median of a field of `Round`."""
        return median(float(getattr(one, what)) for one in self.rounds)

    def less(self, other: "Measured", what: str) -> float:
        """By how much a field is less than that of another cell: the median of the differences, round by round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return median(float(getattr(theirs, what)) - float(getattr(ours, what)) for ours, theirs in pairs)


Matrix = dict[Cell, Measured]


def pays_below(cell: Measured, plain: Measured) -> float:
    """Bits a second below which a compressed request is done sooner; 0: never, infinite: always."""
    saved, more_us = cell.less(plain, "wire_bytes"), -cell.less(plain, "cpu_us")
    if saved <= 0:
        return 0.0
    return saved * 8 / (more_us / 1e6) if more_us > 0 else float("inf")


def pays_from(points: Sequence[tuple[int, float]], link: float) -> int | None:
    """The least size from which on each pays over a link of so many bits a second; None where the largest does not."""
    sizes = [size for size, _ in itertools.takewhile(lambda one: one[1] > link, sorted(points, reverse=True))]
    return min(sizes) if sizes else None


async def one_request(http: aiohttp.ClientSession, url: str, cell: Cell) -> int:
    """Encode, ask, decode; how many bytes both bodies had."""
    headers = {"Accept-Encoding": "identity" if cell.encoding == "none" else cell.encoding}
    body = body_of(cell.request) if cell.request else b""
    if cell.encoding != "none" and len(body) >= _SMALLEST:
        body = encoded(body, cell.encoding)
        headers["Content-Encoding"] = cell.encoding
    method = "POST" if cell.request else "GET"
    async with http.request(method, f"{url}?bytes={cell.answer}", data=body or None, headers=headers) as response:
        answer = await response.read()
        plain = decoded(answer, response.headers.get("Content-Encoding", "none"))
    if response.status != 200 or plain != body_of(cell.answer):
        raise RuntimeError(f"{cell}: HTTP {response.status}, {len(plain)} bytes")
    return len(body) + len(answer)


async def one_round(url: str, pid: int, cell: Cell, seconds: float) -> Round:
    """One cell for so many seconds, at least 20 requests."""
    connector = aiohttp.TCPConnector(force_close=not cell.keepalive)
    took: list[float] = []
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
        for _ in range(_WARM):
            wire = await one_request(http, url, cell)
        server, client, begun = cpu_s(pid), cpu_s(os.getpid()), time.perf_counter()
        while len(took) < 20 or time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            await one_request(http, url, cell)
            took.append((time.perf_counter() - asked) * 1e3)
        server, client = cpu_s(pid) - server, cpu_s(os.getpid()) - client
    ordered = sorted(took)
    p50_ms, p95_ms = nearest_rank(ordered, 0.5), nearest_rank(ordered, 0.95)
    return Round(p50_ms, p95_ms, server / len(took) * 1e6, client / len(took) * 1e6, wire)


def rest_cells() -> Iterator[Cell]:
    """GET by the size of its answer, POST by that of its request."""
    for size, encoding in itertools.product(SIZES, ENCODINGS):
        yield Cell("GET", 0, size, encoding)
        yield Cell("POST", size, 64, encoding)


def service_cells() -> Iterator[Cell]:
    """The two calls from service to service."""
    for encoding, keepalive in itertools.product(ENCODINGS, (True, False)):
        yield Cell("search", 400, 12 * KIB, encoding, keepalive)
        yield Cell("rerank", 64 * KIB, KIB, encoding, keepalive)


def measure(cells: Sequence[Cell], size: Size) -> Matrix:
    """All cells, one after the other, as many times as there are rounds, each round from another one on."""
    found: Matrix = {cell: Measured() for cell in cells}
    service_cores, other_cores = cores()
    with ExitStack() as stack:
        port = free_port()
        with pinned_to(service_cores):
            server = stack.enter_context(ModuleProcess("tests.bench.compressing", "--port", str(port)))
        url = f"http://127.0.0.1:{port}/"
        server.wait_for_http(url, HANGS_S)
        stack.enter_context(pinned_to(other_cores))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        for number in range(size.rounds):
            shift = number * len(cells) // size.rounds
            for cell in [*cells[shift:], *cells[:shift]]:
                found[cell].rounds.append(runner.run(one_round(url, server.pid, cell, size.seconds)))
    return found


def print_matrix(matrix: Matrix, title: str) -> None:
    """A row for each cell."""
    print(f"\n{title}")
    print(
        f"{'request':8} {'body':>8} {'encoding':8} {'kept':4} {'bytes':>8} {'p50 ms':>8} {'p95 ms':>8} "
        f"{'server µs':>10} {'client µs':>10} {'CPU µs/KiB saved':>17} {'pays below':>12}"
    )
    for cell, measured in sorted(matrix.items(), key=lambda one: _order(one[0])):
        body = max(cell.request, cell.answer)
        row = (
            f"{cell.kind:8} {body / KIB:5.0f}KiB {cell.encoding:8} {'yes' if cell.keepalive else 'no':4} "
            f"{measured.of('wire_bytes'):8.0f} {measured.of('p50_ms'):8.3f} {measured.of('p95_ms'):8.3f} "
            f"{measured.of('server_us'):10.0f} {measured.of('client_us'):10.0f}"
        )
        if cell.encoding != "none":
            plain = matrix[cell.plain]
            cpu_us = -measured.less(plain, "cpu_us")
            saved = measured.less(plain, "wire_bytes") / KIB
            row += (
                f" {cpu_us / saved if saved > 0 else float('nan'):17.1f} {_bandwidth(pays_below(measured, plain)):>12}"
            )
        print(row)


def print_rule(matrix: Matrix) -> None:
    """From which size each encoding pays, by direction and link."""
    print("\npays from (it is done sooner than plain):")
    for kind, encoding in itertools.product(("GET", "POST"), ENCODINGS[1:]):
        points = points_of(matrix, kind, encoding)
        said = [
            f"{link}: {'nothing' if (size := pays_from(points, bits)) is None else f'{size // KIB} KiB'}"
            for link, bits in LINKS.items()
        ]
        print(f"  {kind:5} {encoding:5} {', '.join(said)}")


def points_of(matrix: Matrix, kind: str, encoding: str) -> list[tuple[int, float]]:
    """Size and `pays_below` of the kept connections of a kind."""
    return [
        (max(cell.request, cell.answer), pays_below(measured, matrix[cell.plain]))
        for cell, measured in matrix.items()
        if (cell.kind, cell.encoding, cell.keepalive) == (kind, encoding, True)
    ]


def measure_codecs() -> None:
    """The codecs alone, in this process: the best of many."""
    print(f"\n{'codec':6} {'plain':>8} {'bytes':>8} {'ratio':>6} {'encode µs':>10} {'decode µs':>10}")
    for size, encoding in itertools.product(SIZES, ENCODINGS[1:]):
        plain = body_of(size)
        packed = encoded(plain, encoding)
        encode_us, decode_us = _best_us(encoded, plain, encoding), _best_us(decoded, packed, encoding)
        ratio = len(plain) / len(packed)
        print(f"{encoding:6} {len(plain):8} {len(packed):8} {ratio:6.2f} {encode_us:10.1f} {decode_us:10.1f}")


def hold_rest(matrix: Matrix, verdicts: Verdicts, slack: float) -> None:
    """What the defaults of `server.http_compression` stand on."""
    print()
    below = dict(points_of(matrix, "GET", "zstd"))
    verdicts.hold_at_least("zstd, answer of 4 KiB, pays below", below[4 * KIB] / 1e6, 50 / slack, "Mbit/s")
    for size in (4 * KIB, 64 * KIB):
        zstd, gzip = (matrix[Cell("GET", 0, size, encoding)] for encoding in ("zstd", "gzip"))
        ratio = median(one.server_us / other.server_us for one, other in zip(zstd.rounds, gzip.rounds, strict=True))
        verdicts.hold(f"server's CPU, zstd / gzip, answer of {size // KIB} KiB", ratio, slack, "x")


def hold_services(matrix: Matrix, verdicts: Verdicts, slack: float) -> None:
    """What plain bodies between the services stand on."""
    print()
    for cell, measured in matrix.items():
        if cell.encoding != "none" and cell.keepalive:
            below = pays_below(measured, matrix[cell.plain]) / 1e9
            verdicts.hold(f"{cell.kind} by {cell.encoding} pays below", below, slack, "Gbit/s")


def run_compression(verdicts: Verdicts, *, short: bool = False, parts: Sequence[str] = PARTS) -> None:
    """Measure and print the parts, and hold what the decision stands on."""
    size = SHORT if short else FULL
    print(f"load average {os.getloadavg()[0]:.2f} at the beginning; {size.rounds} rounds of {size.seconds} s a cell")
    if "codecs" in parts:
        measure_codecs()
    if "rest" in parts:
        rest = measure(list(rest_cells()), size)
        print_matrix(rest, "REST: an answer to GET, a request by POST")
        print_rule(rest)
        hold_rest(rest, verdicts, size.slack)
    if "services" in parts:
        services = measure(list(service_cells()), size)
        print_matrix(services, "service to service: the agentic service asks knowledge flow")
        hold_services(services, verdicts, size.slack)


def _order(cell: Cell) -> tuple[str, int, bool, int]:
    return cell.kind, max(cell.request, cell.answer), not cell.keepalive, ENCODINGS.index(cell.encoding)


def _bandwidth(bits: float) -> str:
    if bits == 0:
        return "never"
    return "always" if bits == float("inf") else f"{bits / 1e6:.0f} Mbit/s"


def _best_us(do: Callable[[bytes, str], bytes], body: bytes, encoding: str) -> float:
    best, ends = float("inf"), time.perf_counter() + _CODEC_S
    while time.perf_counter() < ends:
        begun = time.perf_counter()
        do(body, encoding)
        best = min(best, time.perf_counter() - begun)
    return best * 1e6


def main() -> int:
    """All parts, or one; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two short rounds, bounds five times as wide")
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    options = parser.parse_args()
    verdicts = Verdicts()
    run_compression(verdicts, short=options.short, parts=[options.only] if options.only else PARTS)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
