"""Who calls: by an API key, or by whatever token the deployment takes."""

from collections.abc import Callable

from backend_kit.auth.acting import naming_headers
from backend_kit.auth.api_keys import ApiKeys, looks_like_key
from backend_kit.auth.grant import KeyScope, ScopeMissing
from backend_kit.auth.identity import AuthError, Credentials, Headers, Identity, any_agent
from backend_kit.auth.verify import NoAuth, Verifier


class Callers:
    """The verifier of a service: keys are keys, also without authentication, and everything else goes to `tokens`.

    Headers that name a user count only beside a key with the scope `act_as`. Beside another key they are refused: such
    a request comes from a front end of many people, who would all be the key's owner. Beside a token they are ignored,
    as every unknown header is.
    """

    def __init__(self, tokens: Verifier, keys: ApiKeys | None = None) -> None:
        """`keys` None: this deployment has none, and what looks like one is invalid."""
        self.tokens = tokens
        self.keys = keys
        self.on_known: Callable[[Identity], None] = lambda _caller: None
        """Called with every caller who was let in."""
        self.agents_of: Callable[[Identity], Callable[[str], bool]] = lambda _caller: any_agent
        """Says which agents a caller may use: their `uses`."""

    async def verify(self, token: str | None) -> Identity:
        """The caller behind `token`, who names nobody. Raises as `know`."""
        return (await self.know(token, ()))[0]

    async def know(
        self, token: str | None, headers: Headers, request_id: str = ""
    ) -> tuple[Identity, Credentials | None]:
        """The caller, and what passes them on to another service: None without a token.

        `headers` are the request's, `request_id` is its id. Raises `AuthError`; `ScopeMissing` for a user who must not
        be named; where keys cannot be looked up what their absence raises.
        """
        identity, credentials = await self._know(token, headers)
        identity = identity.come(self.agents_of(identity), request_id)
        self.on_known(identity)
        if credentials is not None:
            credentials.may_ask = identity.may_ask
        return identity, credentials

    async def _know(self, token: str | None, headers: Headers) -> tuple[Identity, Credentials | None]:
        if token is None or not looks_like_key(token):
            return await self.tokens.verify(token), Credentials(token) if token else None
        if self.keys is None:
            raise AuthError("Invalid token")
        live = await self.keys.find(token)
        named = naming_headers(headers)
        if named and KeyScope.ACT_AS not in live.record.scopes:
            raise ScopeMissing("a user is named", field=f"scope:{KeyScope.ACT_AS}")
        acting = self.keys.acting
        user = acting.read(named)
        identity = self.keys.identity_of(live, user)
        naming = None if user is None else lambda: acting.write(user)
        return identity, Credentials(token, identity.grant, naming)


def takes_any_token(verifier: Verifier) -> bool:
    """Whether callers need no token of their own: authentication is off."""
    return isinstance(verifier.tokens if isinstance(verifier, Callers) else verifier, NoAuth)


async def know_caller(
    verifier: Verifier, token: str | None, headers: Headers, request_id: str = ""
) -> tuple[Identity, Credentials | None]:
    """As `Callers.know`, for any verifier."""
    if isinstance(verifier, Callers):
        return await verifier.know(token, headers, request_id)
    return await verifier.verify(token), Credentials(token) if token else None
