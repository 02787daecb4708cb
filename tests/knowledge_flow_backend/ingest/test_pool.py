import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from knowledge_flow_backend.ingest.pool import WORKER, ParserPool, ParserPoolRules
from knowledge_flow_backend.ingest.work import Job
from knowledge_flow_backend.library.reasons import Reason, Refused
from tests.knowledge_flow_backend.ingest import files
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

ODD = (sys.executable, "-m", "tests.knowledge_flow_backend.ingest.odd_worker")


def job(directory: Path, content: bytes | str, *, format_: str = "text", name: str = "a.txt") -> Job:
    directory.mkdir(exist_ok=True)
    source = directory / "raw"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Job(str(source), format_, name, str(directory / "content"), str(directory / "chunks"), 400, 40)


@pytest.fixture
async def odd() -> AsyncIterator[ParserPool]:
    """One child that misbehaves on demand, with all the time for a file."""
    pool = ParserPool(ParserPoolRules(1, 512, PATIENCE_S, base_s=PATIENCE_S), command=ODD)
    yield pool
    await pool.aclose()


@pytest.fixture
async def real() -> AsyncIterator[ParserPool]:
    pool = ParserPool(ParserPoolRules(1, 1024, PATIENCE_S, base_s=PATIENCE_S))
    yield pool
    await pool.aclose()


def pipe(directory: Path) -> Path:
    """A name that a child writes its process id to, and that is read without looking again and again."""
    made = directory / "pid"
    os.mkfifo(made)
    return made


async def pid_from(made: Path) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return int(await asyncio.to_thread(made.read_text))


async def refused(pool: ParserPool, work: Job) -> Reason:
    with pytest.raises(Refused) as caught:
        await pool.read(work, "user", 0)
    return caught.value.reason


async def test_one_child_reads_every_format(real: ParserPool, tmp_path: Path) -> None:
    for format_, data, title in (
        ("markdown", files.MARKDOWN.encode(), "Front title"),
        ("html", files.HTML.encode(), "Turning the wheel"),
        ("pdf", files.pdf([["Page."]], title="A paper"), "A paper"),
        ("text", b"Plain.", "notes"),
    ):
        outline = await real.read(job(tmp_path / format_, data, format_=format_, name="notes.x"), "user", 0)
        assert outline.title == title
        assert outline.chunks > 0
        assert len((tmp_path / format_ / "content").read_text()) == outline.chars
    assert (real.stats.started, real.stats.files) == (1, 4)


@pytest.mark.parametrize(
    ("format_", "data", "reason"),
    [
        ("text", b"", Reason.EMPTY),
        ("text", b" \n\t ", Reason.EMPTY),
        ("markdown", b"---\ntitle: x\n---\n", Reason.NO_TEXT),
        ("html", b"<nav>menu</nav>", Reason.NO_TEXT),
        ("pdf", files.pdf([[]]), Reason.NO_TEXT),
        ("pdf", b"no pdf at all", Reason.UNREADABLE),
        ("pdf", files.pdf([["x"]])[:200], Reason.UNREADABLE),
        (
            "pdf",
            b"%PDF-1.4\n1 0 obj << /Type /Catalog /Pages 1 0 R >> endobj\ntrailer << /Root 1 0 R >>",
            Reason.UNREADABLE,
        ),
        ("text", bytes(range(256)) * 40, Reason.NOT_TEXT),
        ("html", b"<div>" * 3000, Reason.TOO_COMPLEX),
    ],
)
async def test_a_file_that_cannot_be_read_says_why_in_one_word(
    real: ParserPool, tmp_path: Path, format_: str, data: bytes, reason: Reason
) -> None:
    assert await refused(real, job(tmp_path / "x", data, format_=format_)) is reason
    assert (await real.read(job(tmp_path / "y", "fine"), "user", 0)).chunks == 1
    assert real.stats.started == 1


@pytest.mark.parametrize("limits", [["--nofile=40:40"], ["--fsize=1000000:1000000"], ["--as=400000000:400000000"]])
async def test_a_child_lives_with_lower_limits_than_its_own(tmp_path: Path, limits: list[str]) -> None:
    """An operator's `ulimit` cannot be raised again, which once ended every child before its file."""
    pool = ParserPool(ParserPoolRules(1, 512, PATIENCE_S, base_s=PATIENCE_S), command=("prlimit", *limits, *WORKER))
    assert (await pool.read(job(tmp_path, "Some words."), "ann", 11)).chunks == 1
    assert pool.stats.died == 0
    await pool.aclose()


async def test_a_second_of_cpu_in_a_parser_does_not_hold_the_loop(odd: ParserPool, tmp_path: Path) -> None:
    """It burns it in a process of its own; the stall detector of the session watches."""
    await asyncio.gather(*(odd.read(job(tmp_path / str(at), "block"), "user", 0) for at in range(2)))
    assert odd.stats.waited_s > 0


async def test_a_child_is_killed_at_the_deadline_and_replaced(tmp_path: Path) -> None:
    pool = ParserPool(ParserPoolRules(1, 512, 6.0), command=ODD)
    mark = tmp_path / "pid"
    await _read_in_the_end(pool, job(tmp_path / "w", "fine"))
    assert await refused(pool, job(tmp_path / "x", f"hang {mark}")) is Reason.TIMED_OUT
    assert not psutil.pid_exists(int(mark.read_text()))
    await _read_in_the_end(pool, job(tmp_path / "y", "fine"))
    assert pool.stats.killed >= 1
    assert pool.stats.started == pool.stats.killed + 1
    await pool.aclose()


async def _read_in_the_end(pool: ParserPool, work: Job) -> None:
    """A child's start takes part of a deadline: on a busy machine more than there is."""
    while True:
        try:
            read = await pool.read(work, "user", 0)
        except Refused as refusal:
            if refusal.reason is not Reason.TIMED_OUT:
                raise
        else:
            break
    assert read.chunks == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("exit", Reason.PARSER_DIED),
        ("crash", Reason.PARSER_DIED),
        ("bug", Reason.PARSER_DIED),
        ("endless", Reason.PARSER_DIED),
        ("memory", Reason.OUT_OF_MEMORY),
    ],
)
async def test_a_child_that_dies_is_replaced(
    odd: ParserPool, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: str, reason: Reason
) -> None:
    assert await refused(odd, job(tmp_path / "x", words)) is reason
    assert (await odd.read(job(tmp_path / "y", "fine"), "user", 0)).chunks == 1
    assert (odd.stats.died, odd.stats.started) == (1, 2)
    assert "words of the document" not in capfd.readouterr().err


@pytest.mark.parametrize(("words", "reason"), [("broken", Reason.UNREADABLE), ("recurse", Reason.TOO_COMPLEX)])
async def test_a_parser_that_raises_costs_no_child(odd: ParserPool, tmp_path: Path, words: str, reason: Reason) -> None:
    assert await refused(odd, job(tmp_path / "x", words)) is reason
    assert (await odd.read(job(tmp_path / "y", "fine"), "user", 0)).chunks == 1
    assert odd.stats.started == 1


async def test_a_child_killed_by_somebody_else_is_out_of_memory(odd: ParserPool, tmp_path: Path) -> None:
    mark = pipe(tmp_path)
    reading = asyncio.ensure_future(refused(odd, job(tmp_path / "x", f"hang {mark}")))
    os.kill(await pid_from(mark), 9)
    assert await reading is Reason.OUT_OF_MEMORY


async def test_a_child_that_dies_while_it_is_idle_costs_no_file(odd: ParserPool, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    await odd.read(job(tmp_path / "x", f"fine {mark}"), "user", 0)
    child = int(mark.read_text())
    os.kill(child, 9)
    async with asyncio.timeout(PATIENCE_S):
        while psutil.pid_exists(child):  # noqa: ASYNC110 - until the loop has seen its end
            await asyncio.sleep(0.01)
    assert (await odd.read(job(tmp_path / "y", "fine"), "user", 0)).chunks == 1
    assert (odd.stats.died, odd.stats.started) == (0, 2)


async def test_a_cancelled_reader_leaves_no_child_behind(odd: ParserPool, tmp_path: Path) -> None:
    mark = pipe(tmp_path)
    reading = asyncio.ensure_future(odd.read(job(tmp_path / "x", f"hang {mark}"), "user", 0))
    pid = await pid_from(mark)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not psutil.pid_exists(pid)
    assert (await odd.read(job(tmp_path / "y", "fine"), "user", 0)).chunks == 1


async def test_what_a_library_prints_is_not_taken_for_an_answer(odd: ParserPool, tmp_path: Path) -> None:
    assert (await odd.read(job(tmp_path / "x", "garbage"), "user", 0)).chunks == 1


async def test_a_child_knows_none_of_our_secrets(
    odd: ParserPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    await odd.read(job(tmp_path / "x", "environment"), "user", 0)
    assert set((tmp_path / "x" / "content").read_text().split()) <= {"PATH", "PYTHONPATH", "LANG", "LC_CTYPE"}


async def test_a_child_steps_back_for_those_who_search(odd: ParserPool, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    await odd.read(job(tmp_path / "x", f"fine {mark}"), "user", 0)
    assert psutil.Process(int(mark.read_text())).nice() == min(19, os.nice(0) + 10)


async def test_one_child_is_kept_for_users_who_have_none(tmp_path: Path) -> None:
    pool = ParserPool(ParserPoolRules(2, 512, PATIENCE_S, base_s=PATIENCE_S, reserve=1), command=ODD)
    mark = pipe(tmp_path)
    hanging = [asyncio.ensure_future(pool.read(job(tmp_path / "x", f"hang {mark}"), "mallory", 0))]
    await pid_from(mark)
    hanging += [
        asyncio.ensure_future(pool.read(job(tmp_path / f"x{number}", "fine"), "mallory", 0)) for number in range(5)
    ]
    assert (await pool.read(job(tmp_path / "y", "fine"), "alice", 0)).chunks == 1
    assert (pool.gate.held_by("mallory"), pool.gate.waiting, pool.stats.files) == (1, 5, 1)
    for one in hanging:
        one.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await pool.aclose()


async def test_with_one_child_users_take_turns_file_by_file(odd: ParserPool, tmp_path: Path) -> None:
    ended: list[str] = []

    async def read(name: str) -> None:
        await odd.read(job(tmp_path / name, "fine"), name[0], 0)
        ended.append(name)

    await asyncio.gather(*(read(name) for name in ("a0", "a1", "a2", "a3", "b0", "b1")))
    assert ended == ["a0", "a1", "b0", "a2", "b1", "a3"]


async def test_who_took_too_much_cpu_lately_waits_for_all_others(tmp_path: Path) -> None:
    """By what the child has computed, not by how long it took."""
    rules = ParserPoolRules(1, 512, PATIENCE_S, base_s=PATIENCE_S, cpu_budget_s=0.2)
    pool = ParserPool(rules, command=ODD)
    ended: list[str] = []

    async def read(name: str) -> None:
        await pool.read(job(tmp_path / name, "fine"), name[0], 0)
        ended.append(name)

    try:
        await pool.read(job(tmp_path / "x", "burn"), "a", 0)
        assert pool.stats.cpu_s >= 0.4
        await asyncio.gather(*(read(name) for name in ("c0", "a0", "a1", "b0", "b1")))
    finally:
        await pool.aclose()
    assert ended == ["c0", "b0", "b1", "a0", "a1"]


def test_a_files_time_follows_its_size() -> None:
    rules = ParserPoolRules(1, 512, timeout_s=120.0, base_s=10.0, s_per_mb=30.0)
    mb = 1024 * 1024
    assert [rules.limit_s(size) for size in (20, mb, 3 * mb, 50 * mb)] == [
        pytest.approx(10.0, abs=0.01), 40.0, 100.0, 120.0,
    ]  # fmt: skip
    assert ParserPoolRules(1, 512, timeout_s=5.0).limit_s(20) == 5.0


async def test_no_child_outlives_the_pool(odd: ParserPool, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    await odd.read(job(tmp_path / "x", f"fine {mark}"), "user", 0)
    pid = int(mark.read_text())
    assert psutil.pid_exists(pid)
    await odd.aclose()
    assert not psutil.pid_exists(pid)
