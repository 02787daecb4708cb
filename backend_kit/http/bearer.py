"""The dependency that gives a REST route its caller."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Request, Security
from fastapi.security import HTTPBearer

from backend_kit.auth import Credentials, Identity, NoAuth, Verifier, bearer_of

_SCHEME: Final = HTTPBearer(
    auto_error=False, scheme_name="bearer", bearerFormat="JWT", description="A token of the configured issuer."
)


def bearer(verifier: Verifier) -> Callable[..., Awaitable[Identity]]:
    """A dependency that returns the `Identity` behind `Authorization: Bearer`. Raises `AuthError`, rendered as 401.

    `request.state.credentials` has the token itself, for calls on the caller's behalf; None without one.
    If callers are verified, the OpenAPI document marks each route that depends on it.
    """

    async def identity(request: Request) -> Identity:
        token = bearer_of(request.scope["headers"])
        caller = await verifier.verify(token)
        request.state.credentials = Credentials(token) if token else None
        return caller

    # FastAPI documents what a dependency depends on; the scheme itself decides nothing.
    async def documented(request: Request, scheme: Annotated[Any, Security(_SCHEME)]) -> Identity:  # noqa: ARG001 - for the document
        return await identity(request)

    return identity if isinstance(verifier, NoAuth) else documented
