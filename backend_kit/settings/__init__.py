"""Configuration of a service: read once, checked by name and type, frozen."""

from backend_kit.settings.base import (
    Count,
    HttpUrl,
    Listed,
    Origin,
    Port,
    Positive,
    Seconds,
    Section,
    SettingsError,
    SettingsRefused,
    Text,
)
from backend_kit.settings.load import config_hash, load, load_or_exit
from backend_kit.settings.models import (
    ApiKeySecurity,
    App,
    BasePath,
    HttpClientLimits,
    ModelTimeout,
    Postgres,
    Requests,
    Security,
    ServiceSettings,
)

__all__ = [
    "ApiKeySecurity",
    "App",
    "BasePath",
    "Count",
    "HttpClientLimits",
    "HttpUrl",
    "Listed",
    "ModelTimeout",
    "Origin",
    "Port",
    "Positive",
    "Postgres",
    "Requests",
    "Seconds",
    "Section",
    "Security",
    "ServiceSettings",
    "SettingsError",
    "SettingsRefused",
    "Text",
    "config_hash",
    "load",
    "load_or_exit",
]
