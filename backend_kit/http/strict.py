"""h11 without what it reads more leniently than RFC 9112 wants of a server that may stand behind proxies.

Where two readers of one request disagree about its framing, one of them takes a part of it for another request. So
nothing here is repaired: what is not framed as the RFC says is refused.
"""

import re
from typing import Final

import h11

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
"""Where h11 ends a head, which may be earlier than the RFC does."""
_FOLD: Final = re.compile(rb"\n[ \t]")

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class StrictConnection(h11.Connection):
    """The server's side of a connection. `next_event` raises RemoteProtocolError also for a head with a bare LF or CR
    (RFC 9112 §2.2) or a folded line (§5.2), for Content-Length beside Transfer-Encoding, and for Transfer-Encoding in
    HTTP/1.0 (§6.1). After that, nothing more may be read from it.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER)

    def next_event(self) -> Event:
        """The next event of what was received."""
        if self.their_state is not h11.IDLE:
            return super().next_event()
        # h11 takes 16 KiB for a head at most: looking at all of it again with each piece stays cheap.
        received, _ = self.trailing_data
        end = _END_OF_HEAD.search(received)
        head = b"" if end is None else received[: end.end()]
        _check_lines(head)
        event = super().next_event()
        if isinstance(event, h11.Request) and b"transfer-encoding" in head.lower():
            _check_framing(event)
        return event


def _check_lines(head: bytes) -> None:
    lines = head.count(b"\r\n")
    if not head.count(b"\n") == head.count(b"\r") == lines:
        raise h11.RemoteProtocolError("a line of the head does not end with CR LF")
    if _FOLD.search(head):
        raise h11.RemoteProtocolError("a line of the head is folded")


def _check_framing(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("Transfer-Encoding in HTTP/1.0")
