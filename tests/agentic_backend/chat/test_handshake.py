import pytest

from agentic_backend.chat.handshake import TokenSource, credential_from, first_language, origin_allowed

BEARER = [(b"authorization", b"Bearer from-header")]
OFFERED = ["turnwise.v1", "bearer.from-subprotocol"]
QUERY = b"x=1&token=from-query"


def test_the_header_wins_then_the_subprotocol_then_the_query() -> None:
    def found(headers: list[tuple[bytes, bytes]], offered: list[str], *, allow: bool = True) -> object:
        return credential_from(headers, offered, QUERY, allow_query_token=allow)

    assert found(BEARER, OFFERED) == ("from-header", TokenSource.HEADER)
    assert found([], OFFERED) == ("from-subprotocol", TokenSource.SUBPROTOCOL)
    assert found([], ["turnwise.v1"]) == ("from-query", TokenSource.QUERY)
    assert found([], [], allow=False) == (None, TokenSource.NONE)


@pytest.mark.parametrize(
    ("headers", "subprotocols", "query"),
    [
        ([(b"authorization", b"Basic dTpw")], [], b""),
        ([(b"authorization", b"Bearer ")], [], b""),
        ([(b"authorization", b"Bearer")], [], b""),
        ([], ["bearer."], b""),
        ([], [], b"token="),
        ([], [], b"token"),
        ([], [], b"&" * 5000),
        ([], [], b"\xff\xfe=%ff"),
    ],
)
def test_what_holds_no_token_is_none(headers: list[tuple[bytes, bytes]], subprotocols: list[str], query: bytes) -> None:
    found = credential_from(headers, subprotocols, query, allow_query_token=True)
    assert found == (None, TokenSource.NONE)


def test_names_are_read_in_any_case_and_queries_are_decoded() -> None:
    assert credential_from([(b"Authorization", b"bearer  abc ")]) == ("abc", TokenSource.HEADER)
    assert credential_from([], [], b"%74oken=a%2Bb", allow_query_token=True) == ("a+b", TokenSource.QUERY)


ALLOWED = ["https://app.example.com"]
FOREIGN = [
    "https://evil.example",
    "null",
    "",
    "https://app.example.com.evil.example",
    "https://APP.example.com",
    "http://app.example.com",
    "https://app.example.com:8443",
    "https://app.example.com/",
    "https://sub.app.example.com",
    "://127.0.0.1:8000",
    "ftp://127.0.0.1:8000",
    "http://127.0.0.1:8001",
    "http://127.0.0.1",
]


@pytest.mark.parametrize("source", list(TokenSource))
@pytest.mark.parametrize("origin", FOREIGN)
def test_foreign_origins_are_refused_whatever_they_carry(origin: str, source: TokenSource) -> None:
    assert not origin_allowed(origin, ALLOWED, "127.0.0.1:8000", source=source, any_host=True)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "192.0.2.7"])
def test_the_page_of_the_service_itself_may_come_in(host: str) -> None:
    assert origin_allowed(f"http://{host}", [], host, source=TokenSource.NONE)
    assert origin_allowed(f"https://{host}", [], host, source=TokenSource.NONE)


def test_a_name_that_resolves_here_is_not_this_service_unless_callers_prove_who_they_are() -> None:
    rebound = "rebound.evil.example:8000"
    assert not origin_allowed(f"http://{rebound}", [], rebound, source=TokenSource.NONE)
    assert origin_allowed(f"http://{rebound}", [], rebound, source=TokenSource.NONE, any_host=True)
    assert not origin_allowed("http://x", [], None, source=TokenSource.NONE, any_host=True)


def test_a_configured_origin_may_come_in() -> None:
    assert origin_allowed("https://app.example.com", ALLOWED, "10.0.0.1", source=TokenSource.NONE)


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        (TokenSource.HEADER, True),
        (TokenSource.QUERY, True),
        (TokenSource.NONE, True),
        (TokenSource.SUBPROTOCOL, False),
    ],
)
def test_a_missing_origin_is_no_browser(source: TokenSource, allowed: bool) -> None:
    assert origin_allowed(None, ALLOWED, "127.0.0.1:8000", source=source) is allowed


def test_the_first_language_is_the_askers() -> None:
    assert first_language("fr-CH, fr;q=0.9, en;q=0.8") == "fr-CH"
    assert first_language(" fr;q=0.9") == "fr"
    assert first_language("a" * 100) == "a" * 35
    assert [first_language(given) for given in (None, "", ",en")] == [None, None, None]
