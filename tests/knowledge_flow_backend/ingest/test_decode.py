import codecs

import pytest

from knowledge_flow_backend.ingest.parsers.decode import clean, decode
from knowledge_flow_backend.library.reasons import Reason, Refused

FRENCH = "L'été dernier, le garçon a fêté Noël à la forêt. Où êtes-vous allés ? Très bien, merci. " * 5
RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю. Это обычный русский текст. " * 5
POLISH = "Zażółć gęślą jaźń. Łódź płynie, żółw śpi, a źrebię pije wodę ze źródła. Dziękuję bardzo. " * 5
JAPANESE = "これは日本語の文章です。文字コードを正しく認識できるでしょうか。漢字とかなが混ざっています。" * 5


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("words", [FRENCH, RUSSIAN, JAPANESE])
def test_unicode_is_known_by_its_mark(charset: str, words: str) -> None:
    assert decode(words.encode(charset)) == words


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_known_by_its_zeros(charset: str) -> None:
    assert decode(FRENCH.encode(charset)) == FRENCH
    assert decode(("plain ascii\n" * 20).encode(charset)) == "plain ascii\n" * 20


@pytest.mark.parametrize(
    ("charset", "words"),
    [("cp1252", FRENCH), ("cp1251", RUSSIAN), ("cp1250", POLISH), ("shift_jis", JAPANESE), ("euc_jp", JAPANESE)],
)
def test_a_legacy_charset_is_known_by_its_letters(charset: str, words: str) -> None:
    assert decode(words.encode(charset)) == words


def test_letters_that_come_late_still_decide() -> None:
    words = "plain ascii line\n" * 10_000 + RUSSIAN
    assert decode(words.encode("cp1251")) == words


def test_a_declared_charset_decides_between_look_alikes() -> None:
    assert decode("Łódź".encode("iso-8859-2"), "iso-8859-2") == "Łódź"
    assert decode(b"\x93quoted\x94 \xe9", "iso-8859-1") == "\u201cquoted\u201d é"


@pytest.mark.parametrize("declared", ["no-such-charset", "base64", "rot13", "hex"])
def test_a_declaration_that_is_no_charset_is_ignored(declared: str) -> None:
    assert decode(RUSSIAN.encode("cp1251"), declared) == RUSSIAN


def test_one_broken_byte_does_not_turn_utf_8_into_something_else() -> None:
    data = RUSSIAN.encode() + b"\xff" + RUSSIAN.encode()
    assert decode(data) == f"{RUSSIAN}\ufffd{RUSSIAN}"


@pytest.mark.parametrize(
    "data",
    [b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 20, b"PK\x03\x04" + bytes(1000), b"a\x00b" * 50],
)
def test_binary_data_is_not_text(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        decode(data)
    assert refused.value.reason in (Reason.NOT_TEXT, Reason.UNKNOWN_CHARSET)


def test_what_the_database_and_json_refuse_is_taken_out() -> None:
    assert clean("a\x00\u00ad\u200b\ufeffb\ud800c\x07d\te\r\nf\rg\u2028h\x0ci") == "abcd\te\nf\ng\nh\ni"


def test_letters_are_composed() -> None:
    assert clean("e\u0301") == "é"


def test_a_mark_alone_is_empty() -> None:
    assert decode(codecs.BOM_UTF8) == ""
