"""The name and looks of the page: what the configuration may say, and that colours are those of the style sheet."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic_backend.branding import GROUNDS, LEAST_CONTRAST, MAX_LOGO_BYTES, OWN_COLOURS, Branding, contrast
from agentic_backend.rest.page import WEB
from agentic_backend.settings import AgenticSettings
from backend_kit.settings import SettingsError, load
from tests.support.processes import ROOT

FILE = ROOT / "tests/support/fred/agentic.yaml"


def loaded(tmp_path: Path, branding: dict[str, Any]) -> AgenticSettings:
    data = yaml.safe_load(FILE.read_text())
    del data["frontend_settings"]
    file = tmp_path / "agentic.yaml"
    file.write_text(yaml.safe_dump(data | {"branding": branding}))
    return load(AgenticSettings, file, {})


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")


def test_the_pages_own_colours_are_those_of_its_style_sheet_and_legible() -> None:
    style = (WEB / "style.css").read_text()
    pairs = dict(re.findall(r"--([\w-]+): light-dark\((#\w+, #\w+)\);", style))
    (light, on_light), (dark, on_dark) = OWN_COLOURS["light"], OWN_COLOURS["dark"]
    assert pairs["accent"] == f"{light}, {dark}"
    assert pairs["accent-text"] == f"{on_light}, {on_dark}"
    grounds = [pairs[name].split(", ") for name in ("bg", "side", "surface", "raised")]
    assert {one for one, _ in grounds} == set(GROUNDS["light"])
    assert {other for _, other in grounds} == set(GROUNDS["dark"])
    for theme, (accent, text) in OWN_COLOURS.items():
        assert min(contrast(accent, beside) for beside in (text, *GROUNDS[theme])) >= LEAST_CONTRAST


@pytest.mark.parametrize(
    ("branding", "place"),
    [
        ({"light": {"accent": "#ffcc00"}}, "branding.light.accent"),
        ({"dark": {"accent": "#202020", "accent_text": "#ffffff"}}, "branding.dark.accent"),
        ({"light": {"accent_text": "#0f766e"}}, "branding.light.accent_text"),
        ({"light": {"accent": "teal"}}, "branding.light.accent"),
        ({"links": [{"label": "Help", "url": "http://example.org"}]}, "branding.links[0].url"),
        ({"links": [{"label": "Help", "url": "javascript:alert(1)"}]}, "branding.links[0].url"),
        ({"logo": "missing.svg"}, "branding.logo"),
        ({"logo": "pyproject.toml"}, "branding.logo"),
        ({"name": ""}, "branding.name"),
        ({"footer": "one\ntwo"}, "branding.footer"),
        ({"colour": "#000000"}, "branding.colour"),
    ],
)
def test_what_cannot_be_read_or_followed_is_refused_by_its_key(
    tmp_path: Path, branding: dict[str, Any], place: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(place)):
        loaded(tmp_path, branding)


def test_a_logo_has_a_bound(tmp_path: Path) -> None:
    logo = tmp_path / "logo.png"
    logo.write_bytes(b"\0" * (MAX_LOGO_BYTES + 1))
    with pytest.raises(SettingsError, match=r"branding\.logo"):
        loaded(tmp_path, {"logo": str(logo)})
    logo.write_bytes(b"\0")
    assert loaded(tmp_path, {"logo": str(logo)}).branding.logo == str(logo)


def test_a_pair_of_colours_that_can_be_read_is_taken(tmp_path: Path) -> None:
    branding = loaded(tmp_path, {"light": {"accent": "#7A1FA2"}, "dark": {"accent": "#d0a2e8"}}).branding
    assert branding.colours("light") == ("#7a1fa2", "#ffffff")
    assert branding.has_colours
    assert not Branding().has_colours
