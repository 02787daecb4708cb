"""Base classes of the settings: the frozen section, the error that ends a start, checked value types."""

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict


class SettingsError(Exception):
    """A configuration that cannot be used. Its text is one line that names the place and never contains a value."""


class SettingsRefused(ValueError):
    """Raised by validators: a reason without the value, and the path of the key below the validated section."""

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.path = path


class Section(BaseModel):
    """A mapping of the configuration file: frozen, exact types, no unknown key, no input in error texts.

    `ignored_keys` are `fnmatch` patterns of keys that existing configurations of Fred carry and that have no effect
    here: they are dropped before validation, with a warning each. A docstring under a field is its meaning in
    docs/configuration.md. It says "Handed through" if clients get the value and the service does not read it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        validate_default=True,  # so that 20 and 20.0 are the same default
    )
    ignored_keys: ClassVar[tuple[str, ...]] = ()


class RootSection(Section):
    """The configuration file of one service.

    `env_overrides` maps an environment variable to the keys it sets, if the file has their section; `env_where` one of
    these keys to another key and the values of it with which alone it is set, None where that key is not in the file.
    `env_named` maps a key that holds the name of an environment variable to the key that takes its value.
    `renamed_keys` maps a key of Fred's files to the one that means the same here, neither of them below a list.
    """

    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {}
    env_where: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {}
    env_named: ClassVar[dict[str, str]] = {}
    renamed_keys: ClassVar[dict[str, str]] = {}

    def without_effect(self) -> Iterator[tuple[str | int, ...]]:
        """The paths of keys that would have an effect with other settings beside them, and have none with these. The
        start warns of those that the file has."""
        yield from ()


def http_url(value: str) -> str:
    """The URL without a trailing slash. Raises `SettingsRefused` unless it is absolute http(s) without credentials."""
    try:
        parts = urlsplit(value)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise SettingsRefused("must be an absolute http or https URL") from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port_ok
        or any(char.isspace() for char in value)
    ):
        raise SettingsRefused("must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise SettingsRefused("must not hold credentials: they come from the environment")
    return value.rstrip("/")


def _origin(value: str) -> str:
    """A browser origin: scheme, host and port, and nothing else, since it is compared byte for byte."""
    url = http_url(value)
    if url != value or urlsplit(url).path or urlsplit(url).query or urlsplit(url).fragment:
        raise SettingsRefused("must be an origin: scheme://host[:port] and nothing after it")
    if url != url.lower():
        raise SettingsRefused("must be in lower case, as browsers send it")
    return url


def _hosts(value: str) -> str:
    """Hosts without white space around their commas. Raises `SettingsRefused` where one of several is empty."""
    hosts = [host.strip() for host in value.split(",")]
    if not all(hosts):
        raise SettingsRefused("must be a host, or several separated by commas")
    return ",".join(hosts)


def _network(value: str) -> str:
    """An address or a network, such as 10.0.0.0/8. Raises `SettingsRefused` for anything else."""
    try:
        return str(ip_network(value))
    except ValueError:
        raise SettingsRefused("must be an address or a network without host bits, such as 10.0.0.0/8") from None


Listed: Final = Strict(False)
"""Marks a tuple field, so that the list of a YAML file is taken for it (its items stay strict)."""
Origin = Annotated[str, AfterValidator(_origin)]
HttpUrl = Annotated[str, AfterValidator(http_url)]
Hosts = Annotated[str, AfterValidator(_hosts)]
Network = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Text = Annotated[str, Field(min_length=1)]
