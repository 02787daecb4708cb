"""Who is calling: identities, and the verifiers that find them in tokens. Knows no web framework."""

from backend_kit.auth.acting import ActingHeaders, ActingUser
from backend_kit.auth.api_keys import ApiKeys, KeyRecord, KeyWaitTimes, make_key
from backend_kit.auth.audit import Actor, AuditAction, AuditEvent, Lately, NoteEvent, Outcome
from backend_kit.auth.callers import Callers, know_caller, takes_any_token
from backend_kit.auth.grant import ANY, PUBLIC, Grant, KeyScope, Needs, NotOperator, RouteScopes, ScopeMissing
from backend_kit.auth.identity import AuthError, Credentials, Headers, Identity, bearer_of, header, token_of
from backend_kit.auth.keys import IssuerKeys, KeyWaits
from backend_kit.auth.verify import AccessTokenMark, HmacVerifier, IssuerVerifier, NoAuth, TokenVerifier, Verifier

__all__ = [
    "ANY",
    "PUBLIC",
    "AccessTokenMark",
    "ActingHeaders",
    "ActingUser",
    "Actor",
    "ApiKeys",
    "AuditAction",
    "AuditEvent",
    "AuthError",
    "Callers",
    "Credentials",
    "Grant",
    "Headers",
    "HmacVerifier",
    "Identity",
    "IssuerKeys",
    "IssuerVerifier",
    "KeyRecord",
    "KeyScope",
    "KeyWaitTimes",
    "KeyWaits",
    "Lately",
    "Needs",
    "NoAuth",
    "NotOperator",
    "NoteEvent",
    "Outcome",
    "RouteScopes",
    "ScopeMissing",
    "TokenVerifier",
    "Verifier",
    "bearer_of",
    "header",
    "know_caller",
    "make_key",
    "takes_any_token",
    "token_of",
]
