"""The documents that a first start sends: which, when again, and what is said where it cannot be done."""

from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT
from turnwise.plan import ServicePlan
from turnwise.samples import Samples, SamplesFailed, sample_files


def service(tmp_path: Path) -> ServicePlan:
    port = free_port()
    return ServicePlan(
        "knowledge flow", "knowledge_flow_backend", tmp_path / "x", "127.0.0.1", port, "127.0.0.1", None, "/kf"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "operations.md").write_text("# Operations\n")
    (folder / "README.md").write_text("# Turnwise\n")
    return folder


def test_our_pages_and_a_real_pdf_are_sent():
    files = sample_files(ROOT)
    assert {"README.md", "docs/operations.md", "config/samples/turnwise-operations.pdf"} <= set(files)
    pdf = files["config/samples/turnwise-operations.pdf"]
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert pdf.stat().st_size < 512_000


@pytest.mark.servers
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


@pytest.mark.servers
async def test_a_service_that_never_answers_is_said_and_nothing_is_remembered(checkout, tmp_path):
    samples = Samples(checkout, tmp_path, service(tmp_path), scope="x", ready_s=0.3)
    with pytest.raises(SamplesFailed, match="not ready"):
        await samples.ingest_files({})
    assert not samples.already_sent()
