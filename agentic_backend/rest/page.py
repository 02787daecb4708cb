"""Serves the chat page: its files, and the policy that restricts it to this service and the sign-in service."""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WEB: Final = Path(__file__).parents[1] / "web"
_OWN: Final = "connect-src 'self'"
_NO_FORM: Final = "form-action 'none'"
_POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; {_OWN}; img-src 'self' data:; "
    f"base-uri 'none'; {_NO_FORM}; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class ChatPage:
    """Serves `web/`, and the page itself at `/` and at the addresses of citations.

    It may load from and connect to this service only, and connect to the origin of `realm_url` if people sign in
    there: a model's answer cannot make it fetch anything else (docs/trust.md#F6). Signing out uses a form, which leads
    back here.
    """

    def __init__(self, realm_url: str | None) -> None:
        self._headers = {
            "Content-Security-Policy": _with_issuer(_POLICY, realm_url),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            # Even a DNS look-up for a link in an answer would leak information to its host.
            "X-DNS-Prefetch-Control": "off",
            "Cache-Control": "no-cache",
        }
        # The page contains the policy too, in case a proxy drops the header; the stricter of both applies.
        self._html = _with_issuer((WEB / "index.html").read_text(), realm_url)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes."""

        async def page() -> HTMLResponse:
            return HTMLResponse(self._html, headers=self._headers)

        app.add_api_route("/", page, include_in_schema=False)
        # The address of a citation (docs/contract.md#search-and-rerank): the page reads the document's uid from it.
        app.add_api_route("/documents/{uid}", page, include_in_schema=False)
        app.mount("/web", _WithHeaders(StaticFiles(directory=WEB), self._headers), name="web")


class _WithHeaders:
    """Adds headers to every answer of an application."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _with_issuer(policy: str, realm_url: str | None) -> str:
    if realm_url is None:
        return policy
    issuer = origin_of(realm_url)
    return policy.replace(_OWN, f"{_OWN} {issuer}").replace(_NO_FORM, f"form-action 'self' {issuer}")


def origin_of(url: str) -> str:
    """Scheme, host and port of an absolute URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
