"""An issuer of tokens in the test's own process: real keys, a real HTTP server, and every way in which it can fail."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "turnwise"
DISCOVERY = "/realms/test/.well-known/openid-configuration"
JWKS = "/realms/test/certs"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A private key, the same one for the same name."""
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(name: str, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    """A private key, the same one for the same name."""
    return ec.generate_private_key(curve())


def public_jwk(kid: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: Any) -> dict[str, Any]:
    """The entry of a key set."""
    if isinstance(key, rsa.RSAPrivateKey):
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": kid, "use": "sig", **more}


class Issuer:
    """What a realm publishes. Change its attributes between requests; `asked` counts the requests by path."""

    def __init__(self) -> None:
        self.url = ""
        self.algorithm = "RS256"
        self.keys: list[Any] = [public_jwk("k1", rsa_key("k1"))]
        self.discovery: dict[str, Any] = {}
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None
        self.date: str | None = None
        """The `Date` of its answers, None: the right one."""
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: Counter[str] = Counter()
        self.heard = asyncio.Event()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a good access token for CLIENT; a change to None takes one away."""
        now = int(time.time())
        body = {
            "iss": self.url,
            "aud": CLIENT,
            "azp": CLIENT,
            "sub": "u-1",
            "iat": now,
            "exp": now + 300,
            "typ": "Bearer",
            "preferred_username": "ada",
            "groups": ["/staff"],
            "resource_access": {CLIENT: {"roles": ["user"]}, "other": {"roles": ["admin"]}},
        }
        return {key: value for key, value in (body | changes).items() if value is not None}

    def token(self, kid: str = "k1", key: Any = None, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """A token signed with the key of that name."""
        made = key or (rsa_key(kid) if self.algorithm == "RS256" else ec_key(kid))
        return jwt.encode(
            self.claims(**changes), made, algorithm=self.algorithm, headers={"kid": kid, **(headers or {})}
        )

    def public(self, kid: str) -> dict[str, Any]:
        """What is published of the key of that name."""
        return public_jwk(kid, rsa_key(kid) if self.algorithm == "RS256" else ec_key(kid))

    async def answer(self, request: web.Request) -> web.Response:
        """One request."""
        self.asked[request.path] += 1
        self.heard.set()
        await self.answers.wait()
        if self.status != 200:
            return web.Response(status=self.status, headers=self.headers)
        if self.body is not None:
            return web.Response(body=self.body)
        document = {"issuer": self.url, "jwks_uri": self.url + "/certs", **self.discovery}
        dated = {} if self.date is None else {"Date": self.date}
        body = json.dumps(document if request.path == DISCOVERY else {"keys": self.keys})
        return web.Response(body=body, headers=dated)


@asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    """An issuer on a free port of this machine."""
    made = Issuer()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        made.url = f"http://127.0.0.1:{port}/realms/test"
        yield made
    finally:
        made.answers.set()
        await runner.cleanup()
