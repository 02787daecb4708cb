"""The commands of libraries, as processes against a running service."""

from collections.abc import Awaitable, Callable

import pytest

from tests.knowledge_flow_backend.cli.test_ingest import run, url
from tests.knowledge_flow_backend.ingest.ingestion import Ingestion
from tests.knowledge_flow_backend.library.test_library import new_tag

Cli = Callable[..., Awaitable[tuple[int, list[str], str]]]


@pytest.fixture
def cli(ingestion: Ingestion) -> Cli:
    """Run a command: exit code, lines of stdout, stderr."""

    async def call(*arguments: str) -> tuple[int, list[str], str]:
        code, out, err = await run(*arguments, "--url", url(ingestion))
        return code, out.splitlines(), err

    return call


async def test_libraries_are_listed(ingestion: Ingestion, cli: Cli) -> None:
    one = await new_tag(ingestion, "Manuals", path="products")
    shared = await new_tag(ingestion, "Of\x1b[2Jothers", user="alice")
    await ingestion.call("PUT", f"/tags/{shared}/access", json={"everyone": True}, user="alice")
    await ingestion.put("a.md", "Text.", tags=[one])
    code, lines, _ = await cli("libraries")
    assert code == 0
    assert [line.split() for line in lines] == [
        ["LIBRARY", "DOCUMENTS", "OWNER", "EVERYONE", "ID"],
        ["Of?[2Jothers", "0", "alice", "yes", shared],
        ["products/Manuals", "1", "admin", "no", one],
    ]


async def test_a_library_is_shared_seen_and_closed_again(ingestion: Ingestion, cli: Cli) -> None:
    tag = await new_tag(ingestion, "Manuals", path="products")
    code, lines, _ = await cli("share", "products/Manuals", "--user", "bob", "--user", "carl", "--group", "/sales")
    assert (code, lines) == (0, ["everyone  no", "users     bob, carl", "groups    /sales"])
    assert await cli("share", tag) == (0, lines, "")
    assert (await ingestion.call("GET", "/tags", user="bob"))[0]["id"] == tag
    assert (await cli("share", "/products/Manuals/", "--nobody"))[1][1] == "users     none"
    assert await ingestion.call("GET", "/tags", user="bob") == []
    assert (await cli("share", "products/Manuals", "--everyone"))[1][0] == "everyone  yes"


async def test_documents_move_by_path_or_uid(ingestion: Ingestion, cli: Cli) -> None:
    one, two, third = [await new_tag(ingestion, name) for name in ("One", "Two", "Three")]
    await ingestion.put("a.md", "A.", tags=[one, third])
    uid = await ingestion.put("b.md", "B.", tags=[one])
    code, lines, _ = await cli("move", "a.md", uid, "no.md", "--from", "One", "--to", two)
    assert (code, lines) == (1, ["moved     a.md", f"moved     {uid}", "failed    no.md: not in One"])
    listed = await ingestion.call("POST", "/documents/browse", json={"sort_by": "file_name"})
    assert [document["tag_names"] for document in listed["documents"]] == [["Three", "Two"], ["Two"]]


async def test_what_the_service_refuses_is_said(ingestion: Ingestion, cli: Cli) -> None:
    one, two = [await new_tag(ingestion, name) for name in ("One", "Two")]
    await ingestion.put("a.md", "A.", tags=[one])
    await ingestion.put("a.md", "Another.", tags=[two])
    code, (line,), _ = await cli("move", "a.md", "--from", "One", "--to", "Two")
    assert code == 1
    assert line.startswith("failed    a.md: PUT /documents/")
    assert "HTTP 409" in line
    shared = await new_tag(ingestion, "Hers", user="alice")
    await ingestion.call("PUT", f"/tags/{shared}/access", json={"users": ["admin"]}, user="alice")
    code, _, err = await cli("share", "Hers", "--everyone")
    assert code == 1
    assert "HTTP 403" in err


async def test_a_library_that_cannot_be_meant_is_said(ingestion: Ingestion, cli: Cli) -> None:
    await new_tag(ingestion, "Docs")
    hers = await new_tag(ingestion, "Docs", user="alice")
    await ingestion.call("PUT", f"/tags/{hers}/access", json={"everyone": True}, user="alice")
    code, _, err = await cli("share", "Docs")
    assert code == 2
    assert f"{hers} of alice" in err
    assert (await cli("share", "None"))[0] == 2
    assert (await cli("share", hers, "--nobody", "--everyone"))[0] == 2
