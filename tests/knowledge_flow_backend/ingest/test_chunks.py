from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knowledge_flow_backend.ingest.blocks import MAX_TITLE_CHARS, Kind, Parsed
from knowledge_flow_backend.ingest.chunks import ChunkRules, TextSpan, chunk_uid, chunks
from knowledge_flow_backend.ingest.parsers import html, markdown, pdf, text
from tests.knowledge_flow_backend.ingest import files

RULES = ChunkRules(size=400, overlap=60)
SENTENCES = " ".join(f"Sentence number {at} says one thing." for at in range(60))


def divided(source: str, rules: ChunkRules = RULES) -> list[TextSpan]:
    return list(chunks(markdown.parse(source.encode()), rules))


def letters(source: str) -> str:
    return "".join(source.split())


def covered(parsed: Parsed, found: list[TextSpan]) -> str:
    """The text of all chunks without what they repeat."""
    parts, end = [], 0
    for chunk in found:
        parts.append(parsed.content[max(chunk.start, end) : chunk.end])
        end = max(end, chunk.end)
    return letters("".join(parts))


def test_a_section_that_fits_is_one_chunk_with_its_heading() -> None:
    found = divided("# Title\n\nIntro.\n\n## One\n\nFirst.\n\nSecond.\n\n## Two\n\nThird.\n")
    assert [chunk.text for chunk in found] == ["# Title\n\nIntro.", "## One\n\nFirst.\n\nSecond.", "## Two\n\nThird."]
    assert [chunk.section for chunk in found] == [(), ("One",), ("Two",)]
    assert [chunk.ordinal for chunk in found] == [0, 1, 2]


def test_a_heading_that_never_ends_is_not_repeated_whole_by_every_passage() -> None:
    long = "word " * 2000
    found = divided(f"# {long}\n\n## {long}\n\n" + "\n\n".join([SENTENCES] * 20))
    assert len(found) > 100
    assert {(len(chunk.section), len(chunk.section[-1])) for chunk in found if chunk.section} == {(1, MAX_TITLE_CHARS)}


def test_headings_without_text_stand_before_what_follows_them() -> None:
    found = divided("# Title\n\n## One\n\n### Inner\n\nText.\n")
    assert [chunk.text for chunk in found] == ["# Title\n\n## One\n\n### Inner\n\nText."]
    assert found[0].section == ("One", "Inner")


def test_the_section_of_a_document_with_another_title_begins_at_the_top() -> None:
    found = divided("---\ntitle: Other\n---\n# Top\n\nText.\n")
    assert found[0].section == ("Top",)


def test_long_prose_is_divided_at_sentences_and_repeats_whole_ones() -> None:
    found = divided(f"# T\n\n{SENTENCES}\n")
    assert len(found) > 4
    for before, chunk in pairwise(found):
        assert chunk.text.startswith("Sentence number")
        assert chunk.text.endswith(".")
        assert 0 < before.end - chunk.start <= RULES.overlap
        assert len(chunk.text) <= RULES.size


def test_pieces_of_a_long_paragraph_are_about_equal() -> None:
    lengths = [len(chunk.text) for chunk in divided(SENTENCES)]
    assert min(lengths) > RULES.size // 2


def test_code_and_tables_that_fit_are_whole() -> None:
    code = "```python\n" + "\n\n".join(f"x{at} = {at}" for at in range(30)) + "\n```"
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| {at} | {at} |" for at in range(25))
    found = divided(f"# T\n\n{SENTENCES[:300]}\n\n{code}\n\n{SENTENCES[:300]}\n\n{table}\n")
    assert 200 < len(code) < RULES.size
    assert 200 < len(table) < RULES.size
    assert any(code in chunk.text for chunk in found)
    assert any(table in chunk.text for chunk in found)


def test_code_that_is_too_long_is_divided_at_lines_and_keeps_its_indentation() -> None:
    code = "```\n" + "\n".join(f"    line {at} of the program" for at in range(60)) + "\n```"
    found = divided(code)
    assert len(found) > 2
    assert all(chunk.text.startswith("    line") for chunk in found[1:])
    assert "".join(chunk.text for chunk in found).count("line") == 60


def test_a_word_without_end_is_divided_all_the_same() -> None:
    found = divided("x" * 5000)
    assert all(len(chunk.text) <= RULES.size for chunk in found)
    assert sum(len(chunk.text) for chunk in found) == 5000


def test_a_chunk_of_some_length_ends_with_its_page() -> None:
    pages = [["Alpha. " + SENTENCES[:250]], ["Beta. " + SENTENCES[:250]]]
    found = list(chunks(pdf.parse(files.pdf(pages)), RULES))
    assert [chunk.page for chunk in found] == [1, 2]
    assert "Beta" not in found[0].text
    assert "Beta" in found[1].text


@pytest.mark.parametrize(
    "parsed",
    [
        markdown.parse(files.MARKDOWN.encode()),
        text.parse(SENTENCES.encode()),
        html.parse(files.HTML.encode()),
        pdf.parse(files.pdf([["One.", "Two."], ["Three."]])),
    ],
    ids=["markdown", "text", "html", "pdf"],
)
@pytest.mark.parametrize("rules", [RULES, ChunkRules(100, 50), ChunkRules(1500, 150), ChunkRules(100, 0)])
def test_chunks_are_exact_slices_and_lose_nothing(parsed: Parsed, rules: ChunkRules) -> None:
    found = list(chunks(parsed, rules))
    assert [chunk.text for chunk in found] == [parsed.content[chunk.start : chunk.end] for chunk in found]
    assert covered(parsed, found) == letters("".join(parsed.content[b.start : b.end] for b in parsed.blocks))


PIECES = ["# A", "## B b", "### C", "", "", "Word. ", "Two words! ", "längere Wörter mit Ümläuten… ", "```", "- x"]
MARKS = ["| a | b |", "|---|---|", "    indented", "> quote", "<b>", "\t", "1. one", "***", "\\", "[l](http://x.y)"]
pieces = st.sampled_from([*PIECES, *MARKS, "x" * 90])


@given(st.lists(pieces, max_size=60), st.integers(100, 400), st.integers(0, 50))
@settings(max_examples=150)
def test_any_markdown_is_divided_into_exact_slices_that_lose_nothing(lines: list[str], size: int, overlap: int) -> None:
    parsed = markdown.parse("\n".join(lines).encode())
    found = list(chunks(parsed, ChunkRules(size, overlap)))
    assert [chunk.text for chunk in found] == [parsed.content[chunk.start : chunk.end] for chunk in found]
    assert all(chunk.text.strip() for chunk in found)
    assert covered(parsed, found) == letters("".join(parsed.content[b.start : b.end] for b in parsed.blocks))
    assert all(len(chunk.text) <= size + size // 2 + 200 for chunk in found)
    assert all(before.start < after.start for before, after in pairwise(found))


def test_a_uid_depends_on_document_place_and_text_only() -> None:
    assert chunk_uid("d", 1, "text") == chunk_uid("d", 1, "text")
    assert (
        len({chunk_uid("d", 1, "text"), chunk_uid("e", 1, "text"), chunk_uid("d", 2, "text"), chunk_uid("d", 1, "t")})
        == 4
    )


def test_html_kinds_reach_the_division() -> None:
    assert {block.kind for block in html.parse(files.HTML.encode()).blocks} == set(Kind) - {Kind.RECORD}
