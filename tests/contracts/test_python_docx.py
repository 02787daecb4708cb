"""The XML below python-docx's objects, which are all that it documents."""

import io

import docx
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.oxml.ns import qn


def test_a_document_has_its_xml_its_styles_and_its_numbering() -> None:
    """knowledge_flow_backend/ingest/parsers/docx.py reads the elements themselves, in their order: `document.element`,
    `styles.element` and the part of the lists by `part_related_by`."""
    made = docx.Document()
    made.add_heading("Head", 1)
    made.add_paragraph("Item", style="List Bullet")
    made.add_table(1, 1).cell(0, 0).text = "Cell"
    file = io.BytesIO()
    made.save(file)

    document = docx.Document(io.BytesIO(file.getvalue()))
    body = document.element.body
    assert [node.tag for node in body.iterchildren()] == [qn("w:p"), qn("w:p"), qn("w:tbl"), qn("w:sectPr")]
    assert [node.text for node in body.iter(qn("w:t"))] == ["Head", "Item", "Cell"]
    assert "Heading1" in {style.get(qn("w:styleId")) for style in document.styles.element.iter(qn("w:style"))}
    numbering = document.part.part_related_by(RELATIONSHIP_TYPE.NUMBERING)
    assert any(level.get(qn("w:ilvl")) == "0" for level in numbering.element.iter(qn("w:lvl")))  # type: ignore[attr-defined]
