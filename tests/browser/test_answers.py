"""What an answer may hold beyond words, on the page of the real service: code, formulas, tables, footnotes, images."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.support.held_model import HeldModel, held_model
from tests.support.service import StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

CODE = (
    "```py\ndef half(x):\n    return x / 2  # <b>not</b> more\n```\n\n```nonsense\nif x\n```\n\n```py\n# still open\n"
)
FORMULAS = r"""It costs $5 and $10. Inline $\frac{a}{b} < \sqrt{x^2}$ and \(\alpha\).

$$
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
$$

\[ E = mc^2 \]

Wrong: $\frac{a}{$ and $\href{javascript:alert(1)}{x}$ and $\def\a{\a\a}\a$.
"""
WIDE = "| " + " | ".join(f"column {n}" for n in range(30)) + " |\n" + "|---" * 30 + "|\n" + "| value " * 30 + "|\n"
NOTES = "First[^a] and again[^a], unknown[^b].\n\nMore.\n\n[^a]: The **note** itself.\n\nEnd."
IMAGES = (
    "![The icon](/web/icon.svg) ![out](https://evil.example/i.png) ![api](/agentic/v1/agents) "
    "![near](icon.svg) ![query](/web/icon.svg?q=secret) [![linked](https://evil.example/j.png)](https://x.example/)"
)
HEBREW, ARABIC = "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627"
BOTH_WAYS = f"Left to right.\n\n{HEBREW}\n\n- {ARABIC}\n- b\n\n| {HEBREW} | b |\n|---|---|\n| c | d |"
WATCH = """() => {
  window.violations = [];
  addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) => {
    window.violations.push(`${violatedDirective} ${blockedURI}`);
  });
}"""


@asynccontextmanager
async def answered(
    page: Page, start_service: StartService, text: str, *, held: bool = False
) -> AsyncIterator[HeldModel]:
    """The page with an answer of this text; `held`: the answer is still being written. Nothing may break its policy."""
    await page.add_init_script(f"({WATCH})()")
    async with held_model(f"{text}\n\n") as model, start_service(ai=model.ai) as service:
        if not held:
            model.go.set()
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await page.get_by_label("Your message").fill("Show me")
        await page.keyboard.press("Enter")
        if not held:
            await expect(page.locator(".turn-meta")).to_be_visible()
        yield model
        assert await page.evaluate("window.violations") == []


async def test_code_is_coloured_once_it_is_whole(page: Page, start_service: StartService) -> None:
    async with answered(page, start_service, CODE, held=True) as model:
        blocks = page.locator(".answer figure.code")
        await expect(blocks.nth(0).locator(".hl-keyword").first).to_have_text("def")
        await expect(blocks.nth(0).locator(".hl-comment")).to_have_text("# <b>not</b> more")
        assert await blocks.nth(0).locator("code").text_content() == "def half(x):\n    return x / 2  # <b>not</b> more"
        await expect(blocks.nth(2)).to_contain_text("# still open")
        model.go.set()
        await expect(page.locator(".turn-meta")).to_be_visible()
        assert await blocks.nth(1).locator("code *").count() == 0
        assert await blocks.nth(2).locator("code *").count() == 0


async def test_formulas_are_drawn_as_mathml_and_mistakes_stay_as_written(
    page: Page, start_service: StartService
) -> None:
    async with answered(page, start_service, FORMULAS):
        answer = page.locator(".answer .markdown")
        await expect(answer.locator("math")).to_have_count(4)
        await expect(answer.locator("math mfrac")).to_have_count(1)
        await expect(answer.locator("math[display=block] mtr")).to_have_count(2)
        assert await answer.locator("math mfrac").evaluate("node => node.namespaceURI.endsWith('MathML')")
        await expect(answer.locator(".maths-mistake")).to_have_text(
            [r"$\frac{a}{$", r"$\href{javascript:alert(1)}{x}$", r"$\def\a{\a\a}\a$"]
        )
        await expect(answer).to_contain_text("It costs $5 and $10.")
        assert await answer.locator("a").count() == 0


async def test_a_wide_table_scrolls_by_keyboard_and_not_with_the_page(page: Page, start_service: StartService) -> None:
    await page.set_viewport_size({"width": 390, "height": 800})
    async with answered(page, start_service, WIDE):
        table = page.get_by_role("group", name="Table")
        await table.focus()
        await page.keyboard.press("ArrowRight")
        await page.wait_for_function("() => document.querySelector('.answer .table').scrollLeft > 0")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_footnotes_lead_there_and_back(page: Page, start_service: StartService) -> None:
    async with answered(page, start_service, NOTES):
        answer = page.locator(".answer .markdown")
        markers = answer.get_by_role("button", name="Footnote a")
        await expect(markers).to_have_count(2)
        await expect(answer).to_contain_text("unknown[^b]")
        await markers.nth(1).click()
        note = answer.get_by_role("note", name="Footnote a")
        await expect(note).to_be_focused()
        await expect(note.locator("strong")).to_have_text("note")
        await note.get_by_role("button", name="Back to the text").click()
        await expect(markers.nth(0)).to_be_focused()


async def test_only_images_of_this_service_are_shown(page: Page, start_service: StartService) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.resource_type == "image" else None)
    async with answered(page, start_service, IMAGES):
        image = page.locator(".answer .markdown img")
        await expect(image).to_have_count(1)
        await expect(image).to_have_attribute("alt", "The icon")
        assert await image.evaluate("async (node) => { await node.decode(); return node.naturalWidth > 0; }")
        links = page.locator(".answer .markdown a")
        await expect(links).to_have_text(["Image: out", "Image: api", "Image: near", "Image: query", "Image: linked"])
        assert {url.partition("/web/")[2] for url in asked} == {"icon.svg"}


async def test_each_block_has_the_direction_of_its_text(page: Page, start_service: StartService) -> None:
    async with answered(page, start_service, BOTH_WAYS):
        answer = page.locator(".answer .markdown")
        await expect(answer.locator("th").first).to_be_visible()  # until then it is a plain text
        directions: dict[str, Any] = await answer.evaluate(
            """(answer) => {
              const direction = (node) => getComputedStyle(node).direction;
              const all = (selector) => [...answer.querySelectorAll(selector)].map(direction);
              return { p: all("p").slice(0, 2), li: all("li"), th: all("th") };
            }"""
        )
        assert directions == {"p": ["ltr", "rtl"], "li": ["rtl", "rtl"], "th": ["rtl", "ltr"]}


async def test_the_text_is_there_before_what_understands_it(page: Page, start_service: StartService) -> None:
    arrived = asyncio.Event()

    async def hold(route: Any) -> None:
        await arrived.wait()
        await route.continue_()

    await page.route("**/vendor/markdown-it/**", hold)
    async with answered(page, start_service, "Some **bold** words"):
        answer = page.locator(".answer .markdown")
        await expect(answer).to_contain_text("Some **bold** words")
        arrived.set()
        await expect(answer.locator("strong")).to_have_text("bold")


async def test_a_page_that_only_opens_fetches_nothing_that_it_does_not_need(
    page: Page, start_service: StartService
) -> None:
    sizes: Counter[str] = Counter()
    async with start_service() as service:
        session = await page.context.new_cdp_session(page)
        await session.send("Network.enable")
        urls: dict[str, str] = {}
        session.on(
            "Network.requestWillBeSent", lambda event: urls.update({event["requestId"]: event["request"]["url"]})
        )
        session.on(
            "Network.dataReceived",
            lambda event: sizes.update({urls[event["requestId"]]: int(event["encodedDataLength"])}),
        )
        await page.goto(f"http://127.0.0.1:{service.port}/", wait_until="networkidle")
    files = {url.partition("/web/")[2] or "page": size for url, size in sizes.items() if "/agentic/v1" not in url}
    assert not [name for name in files if name.startswith(("vendor/", "live/", "markdown.js"))]
    assert sum(files.values()) <= 120 * 1024, files
