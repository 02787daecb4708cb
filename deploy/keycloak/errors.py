"""Why a local Keycloak is refused.

StartRefused (deploy.local.errors)
└── KeycloakFailed
"""

from deploy.local.errors import StartRefused


class KeycloakFailed(StartRefused):
    """There is no Java for it, its archive cannot be had, or it ended before it answered."""
