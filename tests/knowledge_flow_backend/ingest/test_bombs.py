"""docs/trust.md#F2: small files that unpack to hundreds of megabytes, read by a real child: refused, and cheap."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from knowledge_flow_backend.ingest.pool import ParserPool, ParserPoolRules
from knowledge_flow_backend.library.reasons import Reason
from tests.knowledge_flow_backend.ingest import files, office
from tests.knowledge_flow_backend.ingest.test_pool import job, refused

pytestmark = pytest.mark.servers

MB = 1 << 20
GROWTH_MB = 50


def media() -> bytes:
    """A Word file with a picture of 200 MB."""
    return office.repacked(office.word(), {"media/image.png": bytes(200 * MB)})


def part() -> bytes:
    """A workbook whose sheet is 200 MB of blanks."""
    return office.repacked(office.workbook(), {"xl/worksheets/sheet1.xml": b"<a>" + b" " * (200 * MB) + b"</a>"})


def blanks(times: int = 1) -> bytes:
    """A PDF whose only page is 200 MB of blanks, packed so many times."""
    return page(b" " * (200 * MB), times)


def page(text: bytes, times: int = 1) -> bytes:
    """A PDF whose only page is this, packed so many times."""
    for _ in range(times):
        text = zlib.compress(text, 9)
    filters = b" ".join([b"/FlateDecode"] * times)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream" % (len(text), filters, text),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 3 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    return files.assembled(objects, b"")


def operators() -> bytes:
    """A PDF whose only page draws a million letters."""
    return page(b"BT /F1 12 Tf (a) Tj ET\n" * (11 * MB // 10))


BOMBS: dict[str, tuple[str, Callable[[], bytes], Callable[[], bytes]]] = {
    "a picture": ("docx", office.word, media),
    "a sheet": ("xlsx", office.workbook, part),
    "a page": ("pdf", lambda: files.pdf([["Hello."]]), blanks),
    "a page packed twice": ("pdf", lambda: files.pdf([["Hello."]]), lambda: blanks(2)),
    "a page of operators": ("pdf", lambda: files.pdf([["Hello."]]), operators),
}


@pytest.fixture
async def pool() -> AsyncIterator[ParserPool]:
    made = ParserPool(ParserPoolRules(1, 1024, 60.0, base_s=60.0))
    yield made
    await made.aclose()


@pytest.mark.parametrize(("format_", "small", "bomb"), BOMBS.values(), ids=BOMBS)
async def test_a_bomb_is_refused_and_costs_its_child_little_memory(
    pool: ParserPool, tmp_path: Path, format_: str, small: Callable[[], bytes], bomb: Callable[[], bytes]
) -> None:
    data = await asyncio.to_thread(bomb)
    assert len(data) < MB // 2
    await pool.read(job(tmp_path / "small", small(), format_=format_), "user", 0)
    pid = pool._idle[0]._process.pid
    before = peak_mb(pid)
    assert await refused(pool, job(tmp_path / "bomb", data, format_=format_)) is Reason.UNPACKS_TOO_LARGE
    assert peak_mb(pid) - before <= GROWTH_MB
    assert (pool.stats.started, pool.stats.died, pool.stats.killed) == (1, 0, 0)


def peak_mb(pid: int) -> float:
    """The most that a process has held."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
