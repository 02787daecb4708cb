"""Errors, callers, ids, limits and metrics of REST, over a real socket."""

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, UploadFile
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.routing import Route

from backend_kit.auth import ANY, HmacVerifier, Identity, NoAuth, RouteScopes
from backend_kit.http import (
    Admitted,
    BodyLimit,
    Cors,
    Cost,
    HttpMetrics,
    RequestId,
    RequestLimits,
    RequestMetrics,
    RouteAdmission,
    bearer,
    health_router,
    install_error_handlers,
)
from backend_kit.kpi import Activity
from backend_kit.wire import CODES, Code, ServiceError
from tests.backend_kit.http.socket_app import Running, connect, running
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

LIMIT = 1000


class Ask(BaseModel):
    message: str


class Ready:
    asked: Callable[[], object] = staticmethod(lambda: None)
    answer: tuple[bool, str, dict[str, Any]] = (True, "ready", {"postgres": "up"})

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        self.asked()
        return self.answer


class Site:
    """An application with a route for each case, and its metrics."""

    def __init__(self, cors: Cors | None = None) -> None:
        self.registry = CollectorRegistry()
        self.ready = Ready()
        cors = cors or Cors(())
        self.app = FastAPI()
        self.app.include_router(health_router(self.ready, "/base"))
        self.app.router.routes += _routes().routes
        known = {"/base/me": NoAuth(), "/base/known": HmacVerifier("a secret of at least thirty-two bytes")}
        for route in self.app.routes:
            if isinstance(route, Route) and (verifier := known.get(route.path)) is not None:
                admission = RouteAdmission(verifier, RequestLimits(), CollectorRegistry())
                scopes = RouteScopes({f"GET {route.path}": ANY})
                route.app = Admitted(route.app, admission, route.path, {"GET": Cost.CHEAP}, scopes)
        install_error_handlers(self.app, cors.headers)
        self.app.add_middleware(BodyLimit, limit_bytes=LIMIT, file_paths=["/base/upload"])
        self.activity = Activity()
        self.app.add_middleware(RequestMetrics, metrics=HttpMetrics(self.registry), activity=self.activity)
        self.app.add_middleware(RequestId)
        cors.add_to(self.app)
        self.server: Running

    def count(self, **labels: str) -> float | None:
        return self.registry.get_sample_value("app_http_request_seconds_count", labels)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, http.client.HTTPMessage, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.headers["Content-Type"] or "")
            return answer.status, answer.headers, json.loads(text or b"null") if is_json else text.decode()
        finally:
            connection.close()


def _routes() -> APIRouter:
    router = APIRouter(prefix="/base")
    whoever = bearer(NoAuth())
    known = bearer(HmacVerifier("a secret of at least thirty-two bytes"))

    @router.get("/me")
    async def me(request: Request, caller: Annotated[Identity, Depends(whoever)]) -> dict[str, Any]:
        credentials = request.state.credentials
        return {"uid": caller.uid, "token": credentials.reveal() if credentials else None, "shown": repr(credentials)}

    @router.get("/known")
    async def only_known(caller: Annotated[Identity, Depends(known)]) -> str:
        return caller.uid

    @router.get("/fails/{code}")
    async def fails(code: str, after: float | None = None) -> None:
        class Failure(ServiceError):
            pass

        Failure.code = Code(code)
        raise Failure("SELECT secret FROM internals", retry_after_s=after)

    @router.get("/bug")
    async def bug(token: str) -> None:
        raise RuntimeError(f"secret of {token}")

    @router.post("/ask")
    async def ask(ask: Ask) -> int:
        return len(ask.message)

    @router.post("/upload")
    async def upload(file: UploadFile) -> int:
        return len(await file.read())

    return router


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    with running(site.app) as site.server:
        yield site


def test_health_is_the_loop_and_readiness_is_the_applications_word(site: Site) -> None:
    assert site.ask("GET", "/base/healthz")[::2] == (200, {"status": "ok"})
    assert site.ask("GET", "/base/ready")[::2] == (200, {"status": "ready", "dependencies": {"postgres": "up"}})
    site.ready.answer = (False, "starting", {"postgres": "down"})
    assert site.ask("GET", "/base/healthz")[0] == 200
    assert site.ask("GET", "/base/ready")[::2] == (503, {"status": "starting", "dependencies": {"postgres": "down"}})
    site.ready.answer = Ready.answer


def test_a_request_counts_as_running_until_it_is_answered(site: Site) -> None:
    seen = list[int]()
    begun = site.activity.begun
    site.ready.asked = lambda: seen.append(site.activity.running)
    site.ask("GET", "/base/ready")
    site.ready.asked = Ready.asked
    site.ask("GET", "/base/bug?token=x")
    assert seen == [1]
    assert (site.activity.running, site.activity.begun - begun) == (0, 2)


@pytest.mark.parametrize("code", list(Code))
def test_each_code_has_its_status_and_its_text_and_nothing_else(site: Site, code: Code) -> None:
    status, headers, body = site.ask("GET", f"/base/fails/{code}")
    assert (status, body) == (CODES[code].status, {"detail": {"code": code.value, "message": CODES[code].en}})
    assert headers["Retry-After"] is None


def test_advice_to_retry_and_the_language_follow_the_request(site: Site) -> None:
    _, headers, body = site.ask("GET", "/base/fails/overloaded?after=1.2", accept_language="fr-FR,fr;q=0.9")
    assert headers["Retry-After"] == "2"
    assert body["detail"]["message"] == CODES[Code.OVERLOADED].fr


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"message": 7, "access_token": "CANARY"}', "message"),
        ("CANARY", None),
        ("[" * 900, None),
        ('{"a":1}', "message"),
        ("", None),
    ],
)
def test_an_unreadable_body_is_bad_request_that_names_the_field_and_not_quoted(
    site: Site, body: str, field: str | None
) -> None:
    status, _, answer = site.ask("POST", "/base/ask", body, content_type="application/json")
    assert (status, answer["detail"]["code"], answer["detail"].get("field")) == (422, "bad_request", field)
    assert "CANARY" not in json.dumps(answer)


def test_what_nobody_caught_is_internal_with_the_id_that_the_log_has(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    with running(site.app) as site.server:
        status, headers, body = site.ask("GET", "/base/bug?token=eyJhbGciOi.eyJzdWIiOi.CANARY", x_request_id="req-1")
    assert (status, body["detail"]["code"], body["detail"]["request_id"]) == (500, "internal", "req-1")
    assert headers["X-Request-ID"] == "req-1"
    assert "secret" not in json.dumps(body)
    assert "request req-1 failed: RuntimeError" in caplog.text
    assert "secret of" in caplog.text
    assert "CANARY" not in caplog.text
    assert [record.name for record in caplog.records if record.exc_info] == ["uvicorn.error"]


def test_what_is_not_there_keeps_the_frameworks_shape(site: Site) -> None:
    assert site.ask("GET", "/base/nothing")[::2] == (404, {"detail": "Not Found"})
    assert site.ask("DELETE", "/base/ask")[::2] == (405, {"detail": "Method Not Allowed"})


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "No authentication token provided"),
    "another scheme": ({"authorization": "Basic dTpw"}, "No authentication token provided"),
    "garbage": ({"authorization": "Bearer x.y.z"}, "Invalid token"),
}


@pytest.mark.parametrize(("headers", "detail"), REFUSED.values(), ids=REFUSED.keys())
def test_who_is_not_known_is_told_why_in_the_compatible_words(site: Site, headers: dict[str, str], detail: str) -> None:
    status, answered, body = site.ask("GET", "/base/known?token=x", **headers)
    assert (status, body, answered["WWW-Authenticate"]) == (401, {"detail": detail}, "Bearer")


def test_a_route_gets_its_caller_and_hidden_credentials(site: Site) -> None:
    assert site.ask("GET", "/base/me")[2] == {"uid": "admin", "token": None, "shown": "None"}
    expected = {"uid": "admin", "token": "abc", "shown": "Credentials(***)"}
    assert site.ask("GET", "/base/me", authorization="Bearer abc")[2] == expected


class TestRequestId:
    GOOD: ClassVar[list[str]] = ["a", "A-b_c.9", "x" * 64]
    BAD: ClassVar[list[str]] = ["", "x" * 65, "a b", "a;b", "é", "<script>"]

    @pytest.mark.parametrize("given", GOOD)
    def test_a_well_formed_one_is_kept(self, site: Site, given: str) -> None:
        assert site.ask("GET", "/base/healthz", x_request_id=given)[1]["X-Request-ID"] == given

    @pytest.mark.parametrize("given", BAD)
    def test_any_other_is_replaced(self, site: Site, given: str) -> None:
        answered = site.ask("GET", "/base/healthz", x_request_id=given)[1]["X-Request-ID"]
        assert answered != given
        assert len(answered) == 16


def test_a_body_above_the_limit_is_413_before_it_is_read(site: Site) -> None:
    with connect(site.server.port) as sock:
        head = f"POST /base/ask HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {LIMIT + 1}"
        sock.sendall(head.encode() + b"\r\n\r\n")
        answer = b""
        while chunk := sock.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]["code"] == "too_large"


def test_a_body_without_a_length_is_cut_at_the_limit(site: Site) -> None:
    pieces = (b'{"message": "', *(b"x" * 100 for _ in range(20)), b'"}')
    status, _, body = site.ask("POST", "/base/ask", iter(pieces), content_type="application/json")
    assert (status, body["detail"]["code"]) == (413, "too_large")


def test_a_body_at_the_limit_is_read(site: Site) -> None:
    body = '{"message": "' + "x" * (LIMIT - 15) + '"}'
    assert site.ask("POST", "/base/ask", body, content_type="application/json")[::2] == (200, LIMIT - 15)


def test_files_have_limits_of_their_own(site: Site) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 5000 + b"\r\n--b--\r\n"
    answer = site.ask("POST", "/base/upload", body, content_type="multipart/form-data; boundary=b")
    assert answer[::2] == (200, 5000)


def test_requests_are_timed_by_route_and_never_by_path() -> None:
    site = Site()
    with running(site.app) as site.server:
        site.ask("GET", "/base/fails/overloaded")
        site.ask("GET", "/base/fails/session_not_found")
        site.ask("GET", "/base/somewhere/else")
        site.ask("BREW", "/base/healthz")
        site.ask("GET", "/base/bug?token=x")
        site.ask("POST", "/base/ask", "x" * (LIMIT + 1), content_type="application/json")
    assert site.count(route="/base/fails/{code}", method="GET", status="5xx") == 1
    assert site.count(route="/base/fails/{code}", method="GET", status="4xx") == 1
    assert site.count(route="unmatched", method="GET", status="4xx") == 1
    assert site.count(route="/base/healthz", method="OTHER", status="4xx") == 1
    assert site.count(route="/base/bug", method="GET", status="5xx") == 1
    assert site.count(route="unmatched", method="POST", status="4xx") == 1


def test_redaction_touches_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("uvicorn.error")
    with caplog.at_level(logging.INFO, logger.name):
        logger.info('%s - "WebSocket %s" [accepted]', "127.0.0.1:1", "/ws?lang=fr&token=CANARY&x=1")
        logger.info("a bearer of news said token")
    assert caplog.messages == [
        '127.0.0.1:1 - "WebSocket /ws?lang=fr&token=***&x=1" [accepted]',
        "a bearer *** news said token",
    ]
