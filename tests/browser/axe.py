"""What axe-core finds wrong with a page for people who do not see it, or not well."""

from typing import Any

from playwright.async_api import Page

from tests.checks.source import ROOT
from tests.page.__main__ import install

AXE = ROOT / "tests/page/node_modules/axe-core/axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""WCAG 2.2 at levels A and AA, and what its authors hold for good practice."""
EXPERIMENTAL = ["label-content-name-mismatch"]
"""Rules that axe leaves out unless they are asked for."""


async def violations(page: Page) -> list[str]:
    """What is wrong with the page as it is now: `rule: place: words` for each; [] where nothing is.

    The page's policy lets no foreign script in, so its context is made with `bypass_csp=True`.
    """
    install()
    if not await page.evaluate("'axe' in window"):
        await page.add_script_tag(path=AXE)
    found: dict[str, Any] = await page.evaluate(
        """([tags, more]) => axe.run(document, {
          runOnly: { type: "tag", values: tags },
          rules: Object.fromEntries(more.map((rule) => [rule, { enabled: true }])),
          resultTypes: ["violations"],
        })""",
        [TAGS, EXPERIMENTAL],
    )
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node.get('failureSummary', '')} {node['html'][:200]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
