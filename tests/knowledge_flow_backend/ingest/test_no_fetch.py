"""TRUST F4: what a document refers to is not fetched while it is read."""

from tests.knowledge_flow_backend.ingest.test_fast import send
from tests.knowledge_flow_backend.service import StartKnowledgeFlow
from tests.support.people import SECURITY
from tests.support.trap import trap

PAGE = """<html><head><title>T</title><base href="{0}"><link rel="stylesheet" href="{0}"><script src="{0}"></script>
<meta http-equiv="refresh" content="0; url={0}"></head><body><h1>Pumps</h1><p>Rinse the filter once a week.</p>
<img src="{0}"><iframe src="{0}"></iframe><object data="{0}"></object><svg><image href="{0}"/></svg></body></html>"""
MARKDOWN = "# Pumps\n\n![x]({0})\n\n[link]({0})\n\n<img src='{0}'>\n\nRinse the filter once a week.\n"


async def test_no_address_in_a_document_is_called(start_knowledge_flow: StartKnowledgeFlow) -> None:
    processing = {"max_attachment_chars": 20_000, "max_file_mb": 1}
    async with trap() as nobody, start_knowledge_flow(security=SECURITY, processing=processing) as service:
        for number, url in enumerate(nobody.addresses):
            await send(service, PAGE.format(url), name=f"page-{number}.html", session_id="s1")
            await send(service, MARKDOWN.format(url), name=f"notes-{number}.md", session_id="s1")
        assert nobody.calls == 0
