"""`make keycloak`: runs Keycloak with our realm until Ctrl-C, and says how the services are told of it."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from deploy.keycloak.server import ADMIN, Keycloak
from turnwise.errors import StartRefused
from turnwise.home import choose_home

CHECKOUT = Path(__file__).parents[2]
EXIT_REFUSED = 2

_READY = """Keycloak is ready at {url} ({admin} / {admin} administers it). Ctrl-C stops it; then it forgets all changes.
Users of the realm turnwise, each with the name as password: ada and bob (group /staff), eve (group /guests).
Both services know them with these lines in their configuration files; the page, at http://127.0.0.1:8000, then asks
for a login:

security:
  user:
    enabled: true
    client_id: turnwise
    realm_url: {realm_url}

A token for a command line: curl -s {realm_url}/protocol/openid-connect/token \\
  -d grant_type=password -d client_id=turnwise -d username=ada -d password=ada
"""


class _Ended(Exception):
    """A signal that ends the command came."""


def main() -> int:
    """Run it. Exit codes: 0 stopped, 1 it ended by itself, 2 refused with words."""
    parser = argparse.ArgumentParser(prog="python -m deploy.keycloak", description="Runs Keycloak with our realm.")
    parser.add_argument("--port", type=int, default=8180, help="of 127.0.0.1 (default: %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        log = choose_home(CHECKOUT, os.environ) / "keycloak.log"
        return _run(Keycloak(CHECKOUT, log, options.port))
    except StartRefused as refused:
        sys.stderr.write(f"turnwise: {refused}\n")
        return EXIT_REFUSED
    except _Ended:
        return 0


def _run(keycloak: Keycloak) -> int:
    try:
        keycloak.start(_say)
        _say(_READY.format(url=keycloak.url, realm_url=keycloak.realm_url, admin=ADMIN))
        code = keycloak.wait()
    finally:
        keycloak.stop()
    sys.stderr.write(f"turnwise: Keycloak ended by itself with code {code}; see {keycloak.log}\n")
    return 1


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
