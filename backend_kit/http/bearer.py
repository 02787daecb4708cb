"""The dependency by which a REST route knows its caller."""

from collections.abc import Awaitable, Callable

from fastapi import Request

from backend_kit.auth import Credentials, Identity, Verifier, bearer_of


def bearer(verifier: Verifier) -> Callable[[Request], Awaitable[Identity]]:
    """A dependency that gives the `Identity` behind `Authorization: Bearer`. Raises `AuthError`, rendered as 401.

    The token itself stands in `request.state.credentials`, for calls made on the caller's behalf; None without one.
    """

    async def identity(request: Request) -> Identity:
        token = bearer_of(request.scope["headers"])
        caller = await verifier.verify(token)
        request.state.credentials = Credentials(token) if token else None
        return caller

    return identity
