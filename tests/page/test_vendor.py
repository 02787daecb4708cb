"""The code of other projects that the page loads is what they released, whole, and under a licence that we name."""

import hashlib
import json
from typing import Any

from tests.checks.source import ROOT
from tests.page.__main__ import PAGES

VENDOR = ROOT / PAGES[0] / "vendor"
LISTED: dict[str, dict[str, Any]] = json.loads((VENDOR / "vendor.json").read_text())
LICENCES = {"MIT": "Permission is hereby granted, free of charge", "BSD-3-Clause": "Redistribution and use in source"}


def test_every_file_is_the_one_that_was_released_and_no_other_is_there() -> None:
    listed = {f"{name}/{file}": row["sha256"] for name, entry in LISTED.items() for file, row in entry["files"].items()}
    present = {
        str(file.relative_to(VENDOR)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.rglob("*")
        if file.is_file() and file != VENDOR / "vendor.json"
    }
    assert present == listed


def test_each_project_comes_with_its_licence_and_says_where_it_is_from() -> None:
    for name, entry in LISTED.items():
        assert set(entry) == {"package", "version", "licence", "source", "files"}
        assert entry["source"].startswith(f"https://registry.npmjs.org/{entry['package']}/-/")
        assert entry["source"].endswith(f"-{entry['version']}.tgz")
        assert LICENCES[entry["licence"]] in (VENDOR / name / "LICENSE").read_text()


def test_languages_that_are_served_are_those_that_are_coloured() -> None:
    served = {file.name.removesuffix(".min.js") for file in (VENDOR / "highlight/languages").iterdir()}
    text = (VENDOR.parent / "markdown/highlight.js").read_text()
    named = text.partition("const LANGUAGES = new Set([")[2].partition("]);")[0]
    assert served == set(named.replace('"', " ").replace("...[", " ").replace("]", " ").replace(",", " ").split())
