"""What an application serves, as its router holds it."""

from collections.abc import Iterator
from typing import Any

from starlette.routing import BaseRoute


def routes_below(router: Any) -> Iterator[tuple[BaseRoute, bool]]:
    """Each route of an application or router, and whether it came with an included router, at whatever depth."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route, False
        else:
            yield from ((inner, True) for inner, _ in routes_below(included))
