import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from knowledge_flow_backend.ingest.blocks import Block, Kind, Parsed
from knowledge_flow_backend.ingest.parsers import html, markdown, pdf, text
from knowledge_flow_backend.library.reasons import Reason, Refused
from tests.knowledge_flow_backend.ingest import files
from tests.support.patience import PATIENCE_S


def of(parsed: Parsed, kind: Kind) -> list[str]:
    return [parsed.content[block.start : block.end] for block in parsed.blocks if block.kind is kind]


def block_with(parsed: Parsed, words: str) -> Block:
    (found,) = [block for block in parsed.blocks if words in parsed.content[block.start : block.end]]
    return found


def test_markdown_is_its_own_canonical_text() -> None:
    parsed = markdown.parse(files.MARKDOWN.encode())
    assert parsed.content == files.MARKDOWN
    assert parsed.title == "Front title"
    assert of(parsed, Kind.HEADING) == [
        "# Turning the wheel",
        "## Persist a *turn*",
        "### Deeper `code`",
        "## Last",
    ]
    assert of(parsed, Kind.CODE) == ['```python\ndef turn():\n\n    return "# not a heading"\n```']
    assert of(parsed, Kind.TABLE) == ["| key | value |\n|-----|-------|\n| ack | spool |"]
    assert "- one\n- two" in of(parsed, Kind.PROSE)


def test_markdown_sections_nest_and_close() -> None:
    parsed = markdown.parse(files.MARKDOWN.encode())
    assert block_with(parsed, "An intro").section == ("Turning the wheel",)
    assert block_with(parsed, "- one").section == ("Turning the wheel", "Persist a turn", "Deeper code")
    assert block_with(parsed, "End.").section == ("Turning the wheel", "Last")


def test_front_matter_is_no_block_and_offsets_count_it() -> None:
    parsed = markdown.parse(files.MARKDOWN.encode())
    first = parsed.blocks[0]
    assert parsed.content[first.start : first.end] == "# Turning the wheel"
    assert first.start == files.MARKDOWN.index("# Turning")


def test_a_rule_in_the_middle_is_no_front_matter() -> None:
    parsed = markdown.parse(b"Hello\n\n---\n\nthere\n\n---\n")
    assert [parsed.content[b.start : b.end] for b in parsed.blocks] == ["Hello", "---", "there", "---"]


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n"])
def test_line_ends_of_every_system_are_one(ends: str) -> None:
    parsed = markdown.parse(ends.join(["# One", "", "two", "three", "", "four", ""]).encode())
    assert parsed.content == "# One\n\ntwo\nthree\n\nfour\n"
    assert of(parsed, Kind.PROSE) == ["two\nthree", "four"]


def test_text_paragraphs_are_divided_by_empty_lines() -> None:
    parsed = text.parse(b"\n\n  First line\nsecond line  \n \n\t\nLast\n\n")
    assert [parsed.content[b.start : b.end] for b in parsed.blocks] == ["  First line\nsecond line", "Last"]


def test_html_gives_what_a_reader_came_for() -> None:
    parsed = html.parse(files.HTML.encode())
    assert parsed.title == "Turning the wheel"
    assert parsed.content == (
        "# Turning the wheel\n\n"
        "An intro of one sentence.\nSecond line.\n\n"
        "## Persist a turn\n\n"
        "Loose text <here>.\n\n"
        "The finished turn is appended to a `spool`.\n\n"
        "```python\ndef turn():\n\n    return 1\n```\n\n"
        "| key | value |\n|---|---|\n| ack | a\\|b |\n\n"
        "- one\n  1. inner\n- two"
    )
    for unseen in ("Menu", "banner", "Advertisement", "unseen", "Imprint", "script", "color"):
        assert unseen not in parsed.content


def test_html_sections_follow_the_headings() -> None:
    parsed = html.parse(files.HTML.encode())
    assert block_with(parsed, "An intro").section == ("Turning the wheel",)
    assert block_with(parsed, "def turn").section == ("Turning the wheel", "Persist a turn")
    assert [b.kind for b in parsed.blocks].count(Kind.TABLE) == 1


def test_html_without_a_main_part_loses_only_its_frame() -> None:
    page = b"<body><header>Banner</header><div>Text <span>in</span> a div</div><p>More</p><footer>Imprint</footer>"
    assert html.parse(page).content == "Text in a div\n\nMore"


def test_html_title_stands_in_where_there_is_no_heading() -> None:
    assert html.parse(b"<title> A\n title </title><p>x").title == "A title"


def test_a_table_for_layout_is_read_as_what_it_holds() -> None:
    page = b"<table><tr><td><h2>Head</h2><p>Cell</p></td><td><ul><li>x</ul></td></tr></table>"
    assert html.parse(page).content == "## Head\n\nCell\n\n- x"


def test_html_in_a_legacy_charset_is_read_by_its_own_word() -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Привет, мир</p>'
    assert html.parse(page.encode("cp1251")).content == "Привет, мир"


def test_html_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        html.parse(b"<div>" * 400 + b"deep")
    assert refused.value.reason is Reason.TOO_COMPLEX


def test_pdf_blocks_know_their_page() -> None:
    data = files.pdf([["First page text."], ["Second page text, which is longer."]], title="A paper")
    parsed = pdf.parse(data)
    assert parsed.title == "A paper"
    assert parsed.pages == 2
    assert parsed.content == "First page text.\n\nSecond page text, which is longer."
    assert [block.page for block in parsed.blocks] == [1, 2]


def test_pdf_sections_come_from_the_outline() -> None:
    data = files.pdf(
        [["Introduction", "Why it is there."], ["More of it.", "Method", "How it is done."]],
        outline=[(0, "Introduction"), (1, "Method")],
    )
    parsed = pdf.parse(data)
    assert of(parsed, Kind.HEADING) == ["# Introduction", "# Method"]
    assert block_with(parsed, "More of it").section == ("Introduction",)
    assert block_with(parsed, "How it is").section == ("Method",)
    assert block_with(parsed, "How it is").page == 2


def test_pdf_headings_are_known_by_their_size_where_there_is_no_outline() -> None:
    words = ["Some words of text."] * 4
    data = files.pdf([["# Big head", "# on two lines", *words, "# Next", *words], ["And on."]])
    parsed = pdf.parse(data)
    assert of(parsed, Kind.HEADING) == ["# Big head on two lines", "# Next"]
    assert block_with(parsed, "And on").section == ("Next",)
    assert parsed.title == ""


def test_pdf_of_large_letters_only_has_no_headings() -> None:
    assert of(pdf.parse(files.pdf([["# One", "# two", "three"]])), Kind.HEADING) == []


def test_pdf_running_heads_and_page_numbers_are_left_out() -> None:
    pages = [["The journal", f"Sentence number {word} stands here.", f"Page {at}"] for at, word in enumerate("abcde")]
    content = pdf.parse(files.pdf(pages)).content
    assert "The journal" not in content
    assert "Page" not in content
    assert content.count("Sentence number") == 5


def test_pdf_words_divided_at_a_line_end_are_joined_only_where_they_are_one() -> None:
    data = files.pdf([["The document is good, the docu-", "ment is well-", "known."]])
    assert pdf.parse(data).content == "The document is good, the document is well-known."


@pytest.mark.parametrize("named", ["https://example.org/a", "paper-final.docx", "Microsoft Word - x.doc", "Untitled"])
def test_pdf_titles_that_a_program_left_are_none(named: str) -> None:
    data = files.pdf([["Head", "Text."]], title=named, outline=[(0, "Head")])
    assert pdf.parse(data).title == "Head"


@pytest.mark.servers
@pytest.mark.chromium
def test_a_printed_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    source, target = tmp_path / "page.html", tmp_path / "page.pdf"
    words = " ".join(f"The finished turn number {at} is flushed." for at in range(150))
    source.write_text(f"<title>Office</title><h1>Persistence</h1><p>Intro.</p><h2>The spool</h2><p>{words}</p>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-pdf-header-footer"]
    subprocess.run(
        ["chromium", *flags, "--generate-pdf-document-outline", f"--print-to-pdf={target}", source.as_uri()],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    parsed = pdf.parse(target.read_bytes())
    assert (parsed.title, parsed.pages) == ("Office", 2)
    assert of(parsed, Kind.HEADING) == ["# Persistence", "## The spool"]
    spool = [block for block in parsed.blocks if block.section == ("Persistence", "The spool")]
    assert {block.page for block in spool} == {1, 2}
    assert words in " ".join(" ".join(of(parsed, Kind.PROSE)).split())


def test_pdf_without_text_has_no_blocks() -> None:
    assert pdf.parse(files.pdf([[], []])).blocks == ()


def test_pdf_with_a_password_is_refused() -> None:
    locked = b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>" % (b"11" * 32, b"22" * 32)
    with pytest.raises(Refused) as refused:
        pdf.parse(files.pdf([["secret"]], encrypt=locked))
    assert refused.value.reason is Reason.ENCRYPTED


EACH: list[tuple[Callable[[bytes], Parsed], bytes]] = [
    (markdown.parse, files.MARKDOWN.encode()),
    (text.parse, files.MARKDOWN.encode()),
    (html.parse, files.HTML.encode()),
    (pdf.parse, files.pdf([["One.", "Two."], ["Three."]], outline=[(1, "Three.")])),
]


@pytest.mark.parametrize(("parse", "data"), EACH)
def test_blocks_ascend_and_hold_text(parse: Callable[[bytes], Parsed], data: bytes) -> None:
    parsed = parse(data)
    end = 0
    for block in parsed.blocks:
        assert end <= block.start < block.end <= len(parsed.content)
        assert parsed.content[block.start : block.end].strip()
        end = block.end
