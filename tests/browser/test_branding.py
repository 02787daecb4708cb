"""The page under a name and with looks of its own, from the configuration of a real service."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.service import StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="24" height="24">'
    '<script>document.title = "run"</script><circle cx="12" cy="12" r="9" fill="#7a1fa2"/></svg>'
)
NAME = "R&D <b>desk</b>"
FOOTER = 'Operated by <script>alert("R&D")</script>'
BRANDING = {
    "name": NAME,
    "light": {"accent": "#7a1fa2"},
    "dark": {"accent": "#d0a2e8"},
    "footer": FOOTER,
    "links": [{"label": "<i>Help</i>", "url": "https://help.example.org/?a=1&b=2"}],
}


async def accent(page: Page) -> str:
    script = "getComputedStyle(document.querySelector('.skip')).backgroundColor"
    return str(await page.evaluate(script))


async def test_the_page_has_the_configured_name_icon_colours_and_footer(
    page: Page, start_service: StartService, tmp_path: Path
) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text(LOGO)
    async with start_service(branding=BRANDING | {"logo": str(logo)}) as service:
        await page.emulate_media(color_scheme="light")
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await expect(page.locator(".brand")).to_have_text(NAME)
        assert await page.title() == NAME
        for image in (".brand img", "#welcome img"):
            assert await page.locator(image).evaluate("(one) => one.complete && one.naturalWidth") == 24
        await expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/web/branding/logo")
        assert await accent(page) == "rgb(122, 31, 162)"
        await page.emulate_media(color_scheme="dark")
        assert await accent(page) == "rgb(208, 162, 232)"
        footer = page.locator("#footer")
        await expect(footer).to_contain_text(FOOTER)
        link = footer.get_by_role("link")
        await expect(link).to_have_text("<i>Help</i>")
        await expect(link).to_have_attribute("href", "https://help.example.org/?a=1&b=2")
        await expect(link).to_have_attribute("rel", "noopener noreferrer")
        await page.get_by_role("link", name="Settings").click()
        await expect(page).to_have_title(f"Settings · {NAME}")
        told = await service.get("/config/frontend_settings")
        assert told["properties"]["siteDisplayName"] == told["branding"]["name"] == NAME
        async with service.http.get("/web/branding/logo") as response:
            assert response.content_type == "image/svg+xml"
            assert "default-src 'none'; script-src 'self';" in response.headers["Content-Security-Policy"]


async def test_without_any_it_is_the_page_as_it_is(page: Page, start_service: StartService) -> None:
    async with start_service() as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await expect(page).to_have_title("Turnwise")
        await expect(page.locator("#footer")).to_be_hidden()
        async with service.http.get("/web/branding/logo") as response:
            assert response.status == 404
