"""Why a local Keycloak is refused.

StartRefused (turnwise.errors)
└── KeycloakFailed
"""

from turnwise.errors import StartRefused


class KeycloakFailed(StartRefused):
    """There is no Java for it, its archive cannot be had, or it ended before it answered."""
