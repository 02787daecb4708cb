"""Who is calling: identities, verifiers, and what a handshake shows. Knows no web framework."""

from backend_kit.auth.handshake import TokenSource, credential_from, header, origin_allowed, token_from
from backend_kit.auth.identity import AuthDetail, AuthError, Credentials, Identity
from backend_kit.auth.verify import HmacVerifier, NoAuth, Verifier, check_claims, identity_from

__all__ = [
    "AuthDetail",
    "AuthError",
    "Credentials",
    "HmacVerifier",
    "Identity",
    "NoAuth",
    "TokenSource",
    "Verifier",
    "check_claims",
    "credential_from",
    "header",
    "identity_from",
    "origin_allowed",
    "token_from",
]
