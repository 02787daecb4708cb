"""The documents that a first start sends: which, when again, and what is said where it cannot be done."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ROOT
from tests.turnwise.test_launcher import Stack
from turnwise.plan import Service
from turnwise.samples import Samples, SamplesFailed, sample_files


def service(tmp_path: Path) -> Service:
    port = free_port()
    return Service(
        "knowledge flow", "knowledge_flow_backend", tmp_path / "x", "127.0.0.1", port, "127.0.0.1", None, "/kf"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "operations.md").write_text("# Operations\n")
    (folder / "README.md").write_text("# Turnwise\n")
    return folder


@pytest.fixture
def stack() -> Iterator[Stack]:
    home = public_directory("turnwise-samples-test-")
    yield Stack(home)
    shutil.rmtree(home)


def test_our_pages_and_a_real_pdf_are_sent():
    files = sample_files(ROOT)
    assert {"README.md", "docs/operations.md", "config/samples/turnwise-operations.pdf"} <= set(files)
    pdf = files["config/samples/turnwise-operations.pdf"]
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert pdf.stat().st_size < 512_000


def test_a_changed_a_new_and_a_renamed_file_are_noticed_and_so_is_another_database(checkout, tmp_path):
    def fingerprint(scope: str = "5543/turnwise") -> str:
        return Samples(checkout, tmp_path, service(tmp_path), scope=scope).fingerprint()

    seen = [fingerprint(), fingerprint("5543/other")]
    assert fingerprint() == seen[0]
    (checkout / "README.md").write_text("# Turnwise, changed\n")
    seen.append(fingerprint())
    (checkout / "docs" / "new.md").write_text("# New\n")
    seen.append(fingerprint())
    (checkout / "docs" / "new.md").rename(checkout / "docs" / "newer.md")
    seen.append(fingerprint())
    assert len(set(seen)) == 5


async def test_a_service_that_never_answers_is_said_and_nothing_is_remembered(checkout, tmp_path):
    samples = Samples(checkout, tmp_path, service(tmp_path), scope="x", ready_s=0.3)
    with pytest.raises(SamplesFailed, match="not ready"):
        await samples.ingest({})
    assert not samples.are_there()


@pytest.mark.servers
def test_the_first_start_fills_the_library_and_the_second_leaves_it_alone(stack):
    with stack.launch() as first:
        first.wait_for_line("Turnwise is ready: ", PATIENCE_S)
        first.wait_for_line("sending [0-9]+ documents of ours to the library Turnwise", PATIENCE_S)
        first.wait_for_line("the library Turnwise is ready: [0-9]+ ingested, 0 unchanged, 0 failed", PATIENCE_S)
    with stack.launch() as second:
        second.wait_for_line("Turnwise is ready: ", PATIENCE_S)
    assert "documents of ours" not in second.output
    (stack.home / "data" / "samples-ingested").unlink()
    with stack.launch() as third:
        third.wait_for_line("the library Turnwise is ready: 0 ingested, [0-9]+ unchanged, 0 failed", PATIENCE_S)
