"""Pages of other origins: what they may send and read, over a real socket."""

from collections.abc import Iterator

import pytest

from backend_kit.http import Cors
from tests.backend_kit.http.socket_app import running
from tests.backend_kit.http.test_rest import LIMIT, Site

pytestmark = pytest.mark.servers

PAGE = "https://portal.example.org"
ASKED = "authorization, x-api-key, x-turnwise-session, last-event-id, x-stainless-lang"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(Cors([PAGE]))
    with running(site.app) as site.server:
        yield site


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_preflight_of_an_authorized_page_is_answered_without_credentials(site: Site, method: str) -> None:
    wanted = {"access_control_request_method": method, "access_control_request_headers": ASKED}
    status, headers, text = site.ask("OPTIONS", "/base/known", origin=PAGE, **wanted)
    assert (status, text) == (200, "OK")
    assert headers["Access-Control-Allow-Origin"] == PAGE
    assert headers["Access-Control-Allow-Credentials"] == "true"
    assert method in headers["Access-Control-Allow-Methods"].split(", ")
    assert headers["Access-Control-Allow-Headers"] == ASKED


ANSWERS = {
    "an answer": ("GET", "/base/healthz", None, 200),
    "no token": ("GET", "/base/known", None, 401),
    "a refusal": ("GET", "/base/fails/overloaded?after=2", None, 503),
    "a bad body": ("POST", "/base/ask", "{}", 422),
    "too large": ("POST", "/base/ask", "x" * (LIMIT + 1), 413),
    "no route": ("GET", "/nothing", None, 404),
    "a bug": ("GET", "/base/bug?token=t", None, 500),
}


@pytest.mark.parametrize(("method", "path", "body", "status"), ANSWERS.values(), ids=ANSWERS)
def test_every_answer_can_be_read_by_an_authorized_page_and_by_no_other(
    site: Site, method: str, path: str, body: str | None, status: int
) -> None:
    seen, headers, _ = site.ask(method, path, body, origin=PAGE)
    assert (seen, headers.get_all("Access-Control-Allow-Origin")) == (status, [PAGE])
    assert headers["Access-Control-Allow-Credentials"] == "true"
    assert {"X-Request-ID", "Retry-After"} <= set(headers["Access-Control-Expose-Headers"].split(", "))
    assert "Origin" in headers["Vary"]
    for other in ("https://evil.example", "null", f"{PAGE}.evil.example", "https://PORTAL.example.org", "*"):
        assert "Access-Control-Allow-Origin" not in site.ask(method, path, body, origin=other)[1]
    assert "Access-Control-Allow-Origin" not in site.ask(method, path, body)[1]


def test_a_preflight_of_another_page_is_refused(site: Site) -> None:
    status, headers, text = site.ask(
        "OPTIONS", "/base/known", origin="https://evil.example", access_control_request_method="GET"
    )
    assert (status, text) == (400, "Disallowed CORS origin")
    assert "Access-Control-Allow-Origin" not in headers


def test_without_authorized_pages_there_is_no_such_header() -> None:
    site = Site()
    with running(site.app) as site.server:
        for method in ("GET", "OPTIONS"):
            _, headers, _ = site.ask(method, "/base/healthz", origin=PAGE, access_control_request_method="GET")
            assert not [name for name in headers if name.lower().startswith("access-control")]
