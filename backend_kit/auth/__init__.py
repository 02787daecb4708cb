"""Who is calling: identities, and the verifiers that find them in tokens. Knows no web framework."""

from backend_kit.auth.identity import AuthError, Credentials, Headers, Identity, bearer_of, header
from backend_kit.auth.keys import IssuerKeys, KeyWaits
from backend_kit.auth.verify import HmacVerifier, IssuerVerifier, NoAuth, TokenVerifier, Verifier

__all__ = [
    "AuthError",
    "Credentials",
    "Headers",
    "HmacVerifier",
    "Identity",
    "IssuerKeys",
    "IssuerVerifier",
    "KeyWaits",
    "NoAuth",
    "TokenVerifier",
    "Verifier",
    "bearer_of",
    "header",
]
