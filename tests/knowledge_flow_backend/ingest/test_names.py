import pytest

from knowledge_flow_backend.ingest.names import MAX_LABEL_CHARS, base_name, format_of, label, stem, suffix


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a.md", "a.md"),
        ("texts/a.md", "texts/a.md"),
        ("../../x", "x"),
        ("/etc/passwd", "etc/passwd"),
        ("C:\\texts\\..\\a.md", "texts/a.md"),
        ("a\x00b.md", "ab.md"),
        ("./././a.md", "a.md"),
        ("....//a.md", "a.md"),
        ("CON", "CON"),
        ("report\u202efdp.exe", "reportfdp.exe"),
        ("\u200b\ufeff.md", ".md"),
        ("  two   words .md", "two words .md"),
        ("Ca\u0301fe\u0301.md", "C\u00e1f\u00e9.md"),
        ("..", ""),
        ("../..", ""),
        ("", ""),
        ("\x00", ""),
        ("/", ""),
        ("a\ud800.md", "a.md"),
    ],
)
def test_a_label_is_clean_and_leads_nowhere(raw: str, clean: str) -> None:
    assert label(raw) == clean


def test_long_names_are_cut_keep_their_ending_and_stay_two_names() -> None:
    one, two = label("x" * 5000 + "1.md"), label("x" * 5000 + "2.md")
    assert one != two
    assert len(one) <= MAX_LABEL_CHARS
    assert one.endswith(".md")
    deep = label("/".join(f"directory-{at}" for at in range(500)) + "/a.pdf")
    assert len(deep) <= MAX_LABEL_CHARS
    assert base_name(deep) == "a.pdf"


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("a.md", "markdown"),
        ("A.MD", "markdown"),
        ("x/README", "text"),
        (".gitignore", "text"),
        ("a.txt", "text"),
        ("a.HTM", "html"),
        ("a.pdf", "pdf"),
    ],
)
def test_the_ending_says_how_a_file_is_read(name: str, parser: str) -> None:
    found = format_of(name)
    assert found is not None
    assert found.parser == parser


@pytest.mark.parametrize("name", ["a.exe", "a.md.exe", "a.docm", "a.doc", "a.tar.gz"])
def test_other_files_are_not_read(name: str) -> None:
    assert format_of(name) is None


def test_parts_of_a_name() -> None:
    assert stem("texts/a.b.md") == "a.b"
    assert stem("README") == "README"
    assert stem(".env") == ".env"
    assert suffix("a/b.TAR.GZ") == "gz"
    assert suffix("a.b/c") == ""
