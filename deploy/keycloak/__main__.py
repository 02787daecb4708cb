"""`make keycloak`: runs Keycloak with our realm until Ctrl-C, and prints the settings that make the services use it."""

import argparse
import os
import sys
from pathlib import Path

from deploy.java.command import run_until_ended
from deploy.keycloak.server import ADMIN, Keycloak
from turnwise.home import choose_home

CHECKOUT = Path(__file__).parents[2]

_READY = """Keycloak is ready at {url} ({admin} / {admin} administers it). Ctrl-C stops it; then it forgets all changes.
Users of the realm turnwise, each with the name as password: ada and bob (group /staff), eve (group /guests).
Both services know them with these lines in their configuration files; the page, at http://127.0.0.1:8000, then asks
for a login:

security:
  user:
    enabled: true
    client_id: turnwise
    realm_url: {realm_url}
    access_token_mark: Bearer

A token for a command line: curl -s {realm_url}/protocol/openid-connect/token \\
  -d grant_type=password -d client_id=turnwise -d username=ada -d password=ada
"""


def main() -> int:
    """Run it; the exit codes are those of `run_until_ended`."""
    parser = argparse.ArgumentParser(prog="python -m deploy.keycloak", description="Runs Keycloak with our realm.")
    parser.add_argument("--port", type=int, default=8180, help="of 127.0.0.1 (default: %(default)s)")
    options = parser.parse_args()

    def make() -> Keycloak:
        return Keycloak(CHECKOUT, choose_home(CHECKOUT, os.environ) / "keycloak.log", options.port)

    def ready(keycloak: Keycloak) -> str:
        return _READY.format(url=keycloak.url, realm_url=keycloak.realm_url, admin=ADMIN)

    return run_until_ended(make, ready)


if __name__ == "__main__":
    sys.exit(main())
