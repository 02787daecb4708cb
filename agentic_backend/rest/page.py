"""Serves the chat page: its files, and the policy that restricts it to this service and the sign-in service."""

import hashlib
import os
import re
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_backend.branding import LOGO_TYPES, Branding

WEB: Final = Path(__file__).parents[1] / "web"
_OWN: Final = "connect-src 'self'"
_NO_FORM: Final = "form-action 'none'"
_POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; {_OWN}; img-src 'self' data:; "
    f"base-uri 'none'; {_NO_FORM}; frame-ancestors 'none'; require-trusted-types-for 'script'"
)

_COMMENTED: Final = {".js": "text/javascript", ".css": "text/css"}
_COMMENTS: Final = re.compile(r"^[ \t]*(?:/\*.*?\*/|//[^\n]*)[ \t]*$", re.DOTALL | re.MULTILINE)
_VENDOR: Final = WEB / "vendor"
_ICON: Final = '"/web/icon.svg"'
_LOGO: Final = "branding/logo"
_COLOURS: Final = "branding/style.css"


class ChatPage:
    """Serves `web/`, and the page itself at `/` and at the addresses of citations, under the name and with the looks
    that are configured: they are part of the page that is sent, so that nobody sees the defaults for a moment.

    It may load from and connect to this service only, and connect to the origin of `realm_url` if people sign in
    there: a model's answer cannot make it fetch anything else (docs/trust.md#F6). Signing out uses a form, which leads
    back here.
    """

    def __init__(self, realm_url: str | None, branding: Branding) -> None:
        self._headers = {
            "Content-Security-Policy": _with_issuer(_POLICY, realm_url),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            # Even a DNS look-up for a link in an answer would leak information to its host.
            "X-DNS-Prefetch-Control": "off",
            "Cache-Control": "no-cache",
        }
        # The page contains the policy too, in case a proxy drops the header; the stricter of both applies.
        self._html = _branded(_with_issuer((WEB / "index.html").read_text(), realm_url), branding)
        self._files = _files(branding)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes."""

        async def page() -> HTMLResponse:
            return HTMLResponse(self._html, headers=self._headers)

        app.add_api_route("/", page, include_in_schema=False)
        # The address of a citation (docs/contract.md#search-and-rerank): the page reads the document's uid from it.
        app.add_api_route("/documents/{uid}", page, include_in_schema=False)
        app.mount("/web", _WithHeaders(_Branded(self._files), self._headers), name="web")


class _Branded(StaticFiles):
    """The files of `web/`, and those that the configuration adds, by their path below it."""

    def __init__(self, added: dict[str, tuple[bytes, str]]) -> None:
        super().__init__(directory=WEB)
        self._added = added

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file at the path."""
        if path not in self._added or scope["method"] not in ("GET", "HEAD"):
            return await super().get_response(path, scope)
        body, media_type = self._added[path]
        return Response(body, media_type=media_type)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """A file; our own scripts and styles without their comments, which are a quarter of what a browser would
        load."""
        path = Path(full_path)
        if path.suffix not in _COMMENTED or path.is_relative_to(_VENDOR) or status_code != 200:
            return super().file_response(full_path, stat_result, scope, status_code)
        body, tag = _code_of(path, stat_result.st_mtime_ns)
        response = Response(body, media_type=_COMMENTED[path.suffix], headers={"etag": tag})
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


@lru_cache(maxsize=512)
def _code_of(path: Path, _changed_ns: int) -> tuple[bytes, str]:
    """A script or style sheet without its comments, each line where it was, and its tag; read again once it changes."""
    body = without_comments(path.read_text()).encode()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def without_comments(source: str) -> str:
    """A script or style sheet without the comments that have their lines to themselves; the lines stay, empty."""
    return _COMMENTS.sub(lambda found: "\n" * found[0].count("\n"), source)


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


def _files(branding: Branding) -> dict[str, tuple[bytes, str]]:
    files: dict[str, tuple[bytes, str]] = {}
    if branding.logo is not None:
        logo = Path(branding.logo)
        files[_LOGO] = (logo.read_bytes(), LOGO_TYPES[logo.suffix.lower()])
    if branding.has_colours:
        files[_COLOURS] = (_style(branding).encode(), "text/css")
    return files


def _style(branding: Branding) -> str:
    """The colours as variables of web/style.css, in both themes."""
    (light, on_light), (dark, on_dark) = branding.colours("light"), branding.colours("dark")
    return f""":root {{
  --accent: light-dark({light}, {dark});
  --accent-text: light-dark({on_light}, {on_dark});
  --accent-soft: color-mix(in srgb, var(--accent) 14%, var(--surface));
}}
"""


def _branded(html: str, branding: Branding) -> str:
    name = escape(branding.name)
    changes = {"<title>Turnwise</title>": f"<title>{name}</title>", "<span>Turnwise</span>": f"<span>{name}</span>"}
    if branding.logo is not None:
        icon = f'<link rel="icon" href={_ICON} type="image/svg+xml">'
        kind = LOGO_TYPES[Path(branding.logo).suffix.lower()]
        changes |= {icon: f'<link rel="icon" href="/web/{_LOGO}" type="{kind}">', _ICON: f'"/web/{_LOGO}"'}
    if branding.has_colours:
        style = '<link rel="stylesheet" href="/web/style.css">'
        changes[style] = f'{style}\n    <link rel="stylesheet" href="/web/{_COLOURS}">'
    if branding.footer is not None or branding.links:
        changes['<footer id="footer" hidden></footer>'] = _footer(branding)
    for theirs, ours in changes.items():
        html = html.replace(theirs, ours)
    return html


def _footer(branding: Branding) -> str:
    text = "" if branding.footer is None else f'<p dir="auto">{escape(branding.footer)}</p>'
    links = "".join(
        f'<li><a href="{escape(link.url)}" target="_blank" rel="noopener noreferrer">{escape(link.label)}</a></li>'
        for link in branding.links
    )
    return f'<footer id="footer">{text}{f"<ul>{links}</ul>" if links else ""}</footer>'


def origin_of(url: str) -> str:
    """Scheme, host and port of an absolute URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
