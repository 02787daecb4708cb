"""Which web pages may call: their origin is a configured one, or that of the page that the service serves itself."""

import ipaddress
from collections.abc import Collection


def page_allowed(origin: str, allowed: Collection[str], host: str | None, *, any_host: bool) -> bool:
    """Whether a page of this `Origin` may call (docs/trust.md#E5). Comparison is exact.

    Allowed are the origins of `allowed` (`security.authorized_origins`) and the origin whose authority is the requested
    `Host`. A host name counts only with `any_host`, to be set where callers are authenticated: without authentication,
    a foreign name that resolves to this machine (DNS rebinding) would be same-origin too. IP addresses and `localhost`
    cannot be rebound.
    """
    if origin in allowed:
        return True
    scheme, separator, authority = origin.partition("://")
    if scheme not in ("http", "https") or not separator or not authority or authority != host:
        return False
    return any_host or _is_address(authority)


def _is_address(authority: str) -> bool:
    """Whether `host[:port]` is an IP address or `localhost`."""
    name = authority.partition("]")[0][1:] if authority.startswith("[") else authority.partition(":")[0]
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
