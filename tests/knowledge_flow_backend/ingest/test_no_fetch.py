"""docs/trust.md#F4: what a document refers to is not fetched while it is read."""

import zipfile
from io import BytesIO

from tests.knowledge_flow_backend.ingest import office
from tests.knowledge_flow_backend.ingest.test_fast import send
from tests.knowledge_flow_backend.service import StartKnowledgeFlow
from tests.support.people import SECURITY, headers_of
from tests.support.trap import trap

PAGE = """<html><head><title>T</title><base href="{0}"><link rel="stylesheet" href="{0}"><script src="{0}"></script>
<meta http-equiv="refresh" content="0; url={0}"></head><body><h1>Pumps</h1><p>Rinse the filter once a week.</p>
<img src="{0}"><iframe src="{0}"></iframe><object data="{0}"></object><svg><image href="{0}"/></svg></body></html>"""
MARKDOWN = "# Pumps\n\n![x]({0})\n\n[link]({0})\n\n<img src='{0}'>\n\nRinse the filter once a week.\n"


OUTSIDE = (
    '<Relationship Id="rX1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{1}" Target="{0}"'
    ' TargetMode="External"/></Relationships>'
)


def linked(url: str) -> bytes:
    """A Word file whose image, template and style sheet are elsewhere."""
    part = "word/_rels/document.xml.rels"
    data = office.word()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        relations = archive.read(part).decode()
    for number, kind in enumerate(("image", "attachedTemplate", "frame", "oleObject")):
        one = OUTSIDE.format(url, kind).replace("rX1", f"rX{number}")
        relations = relations.replace("</Relationships>", one)
    return office.repacked(data, {part: relations.encode()})


async def test_no_address_in_a_document_is_called(start_knowledge_flow: StartKnowledgeFlow) -> None:
    processing = {"max_attachment_chars": 20_000, "max_file_mb": 1}
    async with trap() as nobody, start_knowledge_flow(security=SECURITY, processing=processing) as service:
        for number, url in enumerate(nobody.addresses):
            await send(service, PAGE.format(url), name=f"page-{number}.html", session_id="s1")
            await send(service, MARKDOWN.format(url), name=f"notes-{number}.md", session_id="s1")
            await send(service, linked(url), name=f"letter-{number}.docx", session_id="s1")
        assert nobody.calls == 0


async def test_no_address_in_a_search_or_a_rerank_is_called(start_knowledge_flow: StartKnowledgeFlow) -> None:
    async with trap() as nobody, start_knowledge_flow(security=SECURITY) as service:
        for url in nobody.addresses:
            await service.post("/vector/search", {"question": f"What is at {url}?"}, headers=headers_of("ann"))
            hit = {"uid": url, "title": url, "content": f"![x]({url})", "score": 0.5, "citation_url": url}
            hit |= dict.fromkeys(("preview_url", "preview_at_url", "repo_url", "file_path", "pull_location"), url)
            body = {"question": url, "documents": [hit, hit | {"uid": "b"}]}
            assert len(await service.post("/vector/rerank", body, headers=headers_of("ann"))) == 2
        assert nobody.calls == 0
