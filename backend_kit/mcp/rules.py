"""Who may come in at an MCP endpoint, how many, and how long it waits for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoorRules:
    """Who may come in, and how many. `title` is the name of the service.

    `any_host`: callers are authenticated, so that a page served under any name may call its own server. `issuer`: whose
    tokens are taken, for clients that look for it; None where there is none. `public_url`: the address of the service
    as clients see it, without a path, None: as each request names it. `sessions_per_user` 0: no sessions. A session
    that nobody uses ends after `idle_s` seconds. `json_only`: no answer is a stream of events. A client that takes
    nothing of one for `send_s` seconds is cut off; one that hears nothing for `silence_s` gets a comment.
    """

    title: str
    authorized_origins: tuple[str, ...] = ()
    any_host: bool = False
    issuer: str | None = None
    public_url: str | None = None
    sessions_per_user: int = 0
    max_sessions: int = 1000
    idle_s: float = 1800.0
    json_only: bool = False
    send_s: float = 10.0
    silence_s: float = 15.0
