import asyncio
import os
import pty
import sys
from pathlib import Path

import pytest
from aiohttp import web

from knowledge_flow_backend.cli.__main__ import main
from knowledge_flow_backend.cli.ingest import find
from tests.knowledge_flow_backend.ingest.ingestion import BASE, Ingestion
from tests.support.ports import free_port
from tests.support.processes import ROOT


async def run(*arguments: str) -> tuple[int, str, str]:
    """The command as a process: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "knowledge_flow_backend.cli", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    for name, text in {
        "README.md": "Top.",
        "a/README.md": "Of a.",
        "a/é \"quoted\" 'name'.txt": "Named.",
        "b/page.html": "<h1>Page</h1><p>Text.",
        "b/photo.png": "no text",
        ".git/config.txt": "hidden",
        "b/.hidden.md": "hidden",
        "node_modules/x.md": "not ours",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def url(ingestion: Ingestion) -> str:
    return f"http://127.0.0.1:{ingestion.port}{BASE}"


def test_files_are_found_by_their_type_and_hidden_ones_are_left_out(docs: Path) -> None:
    found = find(docs)
    assert [path.relative_to(docs).as_posix() for path in found.files] == [
        "README.md",
        "a/README.md",
        "a/é \"quoted\" 'name'.txt",
        "b/page.html",
    ]
    assert found.skipped == 1


async def test_a_directory_goes_to_a_library_and_a_second_time_changes_nothing(
    ingestion: Ingestion, docs: Path
) -> None:
    code, out, err = await run("ingest", str(docs), "--library", "guides/Docs", "--url", url(ingestion))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sorted(lines[:-1]) == sorted(
        ["ok        README.md", "ok        a/README.md", "ok        a/é \"quoted\" 'name'.txt", "ok        b/page.html"]
    )
    assert lines[-1].startswith("4 ingested, 0 unchanged, 0 failed, 1 of other types left out in ")
    (tag,) = await ingestion.call("GET", "/tags")
    assert (tag["full_path"], tag["document_count"]) == ("guides/Docs", 4)
    listed = await ingestion.call(
        "POST", "/documents/browse", json={"sort_by": "file_name", "filters": {"tag_ids": [tag["id"]]}}
    )
    paths = {document["file_path"] for document in listed["documents"]}
    assert paths == {"README.md", "a/README.md", "a/é 'quoted' 'name'.txt", "b/page.html"}
    code, out, _ = await run("ingest", str(docs), "--library", "guides/Docs", "--url", url(ingestion))
    assert code == 0
    assert out.splitlines()[-1].startswith("0 ingested, 4 unchanged, 0 failed")


async def test_one_file_may_be_named(ingestion: Ingestion, docs: Path) -> None:
    code, out, _ = await run("ingest", str(docs / "a" / "README.md"), "--library", "Docs", "--url", url(ingestion))
    assert (code, out.splitlines()[0]) == (0, "ok        README.md")


async def test_a_file_that_fails_says_why_and_the_exit_code_says_so(ingestion: Ingestion, docs: Path) -> None:
    (docs / "empty.md").write_bytes(b"")
    (docs / "big.txt").write_bytes(b"x" * 3_000_000)
    code, out, err = await run("ingest", str(docs), "--library", "Docs", "--url", url(ingestion))
    assert (code, err) == (1, "")
    assert "failed    empty.md: The file is empty." in out
    assert "failed    big.txt: HTTP 413 (The request is too large.)" in out
    assert "4 ingested, 0 unchanged, 2 failed" in out


async def test_a_terminal_gets_a_progress_bar(ingestion: Ingestion, docs: Path) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "knowledge_flow_backend.cli",
            "ingest",
            str(docs),
            "--library",
            "D",
            "--url",
            url(ingestion),
        ),
        cwd=ROOT,
        stdout=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = asyncio.ensure_future(asyncio.to_thread(_all_of, ours))
    assert await process.wait() == 0
    text = await shown
    assert "4/4" in text
    assert "4 ingested" in text


def _all_of(terminal: int) -> str:
    read = b""
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            try:
                piece = file.read(4096)
            except OSError:  # how Linux says that the other side is closed
                piece = b""
            if not piece:
                return read.decode()
            read += piece


@pytest.mark.servers
def test_a_service_that_is_not_there_is_said_as_such(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"http://127.0.0.1:{free_port()}/x"
    assert main(["ingest", str(docs), "--library", "Docs", "--url", where]) == 2
    assert f"{where}/tags cannot be reached" in capsys.readouterr().err


async def test_another_service_is_not_taken_for_ours(ingestion: Ingestion, docs: Path) -> None:
    code, _, err = await run(
        "ingest", str(docs), "--library", "Docs", "--url", f"http://127.0.0.1:{ingestion.port}/nothing"
    )
    assert code == 2
    assert "HTTP 404 (Not Found)" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ingest"],
        ["ingest", "."],
        ["ingest", ".", "--library", " / "],
        ["ingest", ".", "--library", "x", "--at-once", "0"],
        ["ingest", ".", "--library", "x", "--at-once", "many"],
    ],
)
def test_wrong_usage_is_said_as_such(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_directory_with_nothing_to_read_is_said_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(tmp_path), "--library", "x"]) == 2
    assert main(["ingest", str(tmp_path / "none"), "--library", "x"]) == 2
    assert "no files to ingest" in capsys.readouterr().err


@pytest.mark.servers
async def test_a_service_that_dies_after_its_answer_has_the_file(docs: Path) -> None:
    async def library(_request: web.Request) -> web.Response:
        return web.json_response({"id": "t"}, status=201)

    async def dies(request: web.Request) -> web.StreamResponse:
        await request.read()
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b'{"step": "parse", "filename": "README.md", "status": "in_progress"}\n')
        assert request.transport is not None
        request.transport.abort()
        return answer

    app = web.Application()
    app.router.add_post("/tags", library)
    app.router.add_post("/upload-process-documents", dies)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port := free_port())
    await site.start()
    options = ("--library", "Docs", "--url", f"http://127.0.0.1:{port}")
    code, out, _ = await run("ingest", str(docs / "README.md"), *options)
    await runner.cleanup()
    assert code == 1
    assert "README.md: the service went away; it goes on with the file when it is back" in out
