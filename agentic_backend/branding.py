"""What a deployment calls the chat page and how it looks: sections of the settings, checked to stay legible."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from backend_kit.settings import HttpUrl, Listed, Section, SettingsRefused, Text

LOGO_TYPES: Final = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
}
MAX_LOGO_BYTES: Final = 262_144
LEAST_CONTRAST: Final = 4.5
"""Of text on its ground, WCAG 2.2, 1.4.3."""

Theme = Literal["light", "dark"]

OWN_COLOURS: Final[dict[Theme, tuple[str, str]]] = {"light": ("#0f766e", "#ffffff"), "dark": ("#4fb8ac", "#07201d")}
"""The accent and its text in web/style.css, which hold where the configuration names none."""
GROUNDS: Final[dict[Theme, tuple[str, ...]]] = {
    "light": ("#f7f7f4", "#efefea", "#ffffff"),
    "dark": ("#16181b", "#111315", "#1d2024", "#24282d"),
}
"""What words in the accent stand on in web/style.css: `--bg`, `--side`, `--surface`, `--raised`."""


def _colour(value: str) -> str:
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise SettingsRefused("must be a colour as #rrggbb")
    return value.lower()


def _https(value: str) -> str:
    if urlsplit(value).scheme != "https":
        raise SettingsRefused("must be an https URL")
    return value


def _line(value: str) -> str:
    if any(char < " " or char == "\x7f" for char in value):
        raise SettingsRefused("must be one line without control characters")
    return value


def _image(value: str) -> str:
    path = Path(value)
    if path.suffix.lower() not in LOGO_TYPES:
        raise SettingsRefused(f"must be the name of an image: {', '.join(LOGO_TYPES)}")
    if not path.is_file():
        raise SettingsRefused("is no file that can be read from where the service was started")
    if path.stat().st_size > MAX_LOGO_BYTES:
        raise SettingsRefused(f"is larger than {MAX_LOGO_BYTES // 1024} KiB")
    return value


Colour = Annotated[str, AfterValidator(_colour)]
Line = Annotated[Text, AfterValidator(_line)]


class BrandColours(Section):
    """The accent of one theme: that of links, chosen controls and the main button."""

    accent: Colour | None = None
    """Colour as `#rrggbb`, at least 4.5 in contrast to the page and to its own text, or the start is refused; none =
    that of the page."""
    accent_text: Colour | None = None
    """Colour of text on the accent; none = white where light, nearly black where dark."""


class BrandLink(Section):
    """A link below the list of conversations."""

    label: Annotated[Line, Field(max_length=60)]
    """What it says."""
    url: Annotated[HttpUrl, AfterValidator(_https)]
    """Where it leads, https alone."""


class Branding(Section):
    """What the chat page is called, and how it looks."""

    name: Annotated[Line, Field(max_length=60)] = "Turnwise"
    """Name of the page, in its title and above the conversations."""
    logo: Annotated[Text, AfterValidator(_image)] | None = None
    """File of the page's logo and icon, square: SVG, PNG, WebP or JPEG, at most 256 KiB, read at the start; none = that
    of Turnwise."""
    light: BrandColours = BrandColours()
    dark: BrandColours = BrandColours()
    footer: Annotated[Line, Field(max_length=300)] | None = None
    """Text below the list of conversations; none = nothing."""
    links: Annotated[tuple[BrandLink, ...], Listed, Field(max_length=8)] = ()

    def colours(self, theme: Theme) -> tuple[str, str]:
        """The accent and its text in a theme."""
        chosen = self.light if theme == "light" else self.dark
        accent, text = OWN_COLOURS[theme]
        return chosen.accent or accent, chosen.accent_text or text

    @property
    def has_colours(self) -> bool:
        """Whether any colour is not that of the page."""
        return (self.light, self.dark) != (BrandColours(), BrandColours())

    @model_validator(mode="after")
    def _words_can_be_read(self) -> "Branding":
        for theme, field, ratio, beside in _contrasts(self):
            if ratio < LEAST_CONTRAST:
                reason = f"has a contrast of {ratio:.1f} to {beside}, and needs {LEAST_CONTRAST} to be read"
                raise SettingsRefused(reason, theme, field)
        return self


class FrontendSettings(Section):
    """What Fred's own front end reads of its service. The chat page is named and coloured by `branding`."""

    ignored_keys: ClassVar[tuple[str, ...]] = ("security",)

    feature_flags: dict[Text, bool] = Field(default_factory=dict)
    """What clients get in `GET /config/frontend_settings`, beside `agent_editing`."""
    properties: dict[Text, str | int | float | bool | None] = Field(default_factory=dict)
    """What clients get in `GET /config/frontend_settings`, beside `siteDisplayName`, which is `branding.name`."""


def _contrasts(branding: Branding) -> Iterator[tuple[Theme, str, float, str]]:
    """What must be legible of the configured colours: theme, key, ratio, and what it stands on or under."""
    themes: tuple[tuple[Theme, BrandColours], ...] = (("light", branding.light), ("dark", branding.dark))
    for theme, chosen in themes:
        accent, text = branding.colours(theme)
        if chosen.accent is not None:
            yield from (
                (theme, "accent", contrast(accent, ground), f"the page's {ground}") for ground in GROUNDS[theme]
            )
        field = "accent" if chosen.accent_text is None else "accent_text"
        yield theme, field, contrast(accent, text), f"its text {text}" if field == "accent" else f"its ground {accent}"


def contrast(one: str, other: str) -> float:
    """The ratio of two colours `#rrggbb`, 1 to 21, as WCAG 2.2 defines it."""
    darker, lighter = sorted(map(_luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
