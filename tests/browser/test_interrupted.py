"""What the page does with answers that were stopped or interrupted: it says so, and they can be asked for again."""

import re
from pathlib import Path

import pytest
import yaml
from playwright.async_api import expect

from tests.browser.fake_server import STAMP
from tests.browser.test_page_behaviour import ask, open_page
from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from tests.support.service import configuration, merge

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

CUT_OFF = {"finish_reason": "cancelled", "extras": {"status": "interrupted", "interrupted_by": "restart"}}
STOPPED = {"finish_reason": "cancelled", "extras": {"status": "interrupted"}}
DONE = {"finish_reason": "stop", "agent_id": "Georges"}


def exchange(number, question, answer, metadata):
    head = {"session_id": "s", "exchange_id": f"e{number}", "timestamp": STAMP, "channel": "final"}
    return [
        {**head, "rank": 2 * number + place, "role": role, "parts": [{"type": "text", "text": text}], "metadata": more}
        for place, (role, text, more) in enumerate([("user", question, {}), ("assistant", answer, metadata)])
    ]


async def test_the_newest_interrupted_answer_is_asked_again_in_its_place(page, fake):
    fake.add_session("s", "A talk", [*exchange(0, "one", "first", DONE), *exchange(1, "two", "", CUT_OFF)])
    peer = await open_page(page, fake, "#/c/s")
    turn = page.locator(".turn").last
    await expect(turn).to_contain_text("This answer was interrupted.")
    await page.get_by_role("button", name="Ask again: two").press("Enter")
    told = await fake.told(peer)
    assert told.ask == {
        "type": "ask",
        "session_id": "s",
        "message": "two",
        "agent_id": "Georges",
        "client_exchange_id": "e1",
        "if_busy": "reject",
    }
    await expect(page.get_by_label("Your message")).to_be_focused()
    await expect(page.get_by_role("button", name="Ask again")).to_have_count(0)
    await told.begin(rank=2)
    await told.delta("second", rank=3)
    await expect(page.locator(".question")).to_have_text(["one", "two"])
    await told.finish("second")
    await expect(page.locator(".markdown")).to_have_text(["first", "second"])
    await expect(page.locator(".note.interrupted")).to_have_count(0)


async def test_an_older_interrupted_answer_is_asked_anew_and_stays_marked(page, fake):
    fake.add_session("s", "A talk", [*exchange(0, "one", "", CUT_OFF), *exchange(1, "two", "second", DONE)])
    peer = await open_page(page, fake, "#/c/s")
    await page.get_by_role("button", name="Ask again: one").click()
    told = await fake.told(peer)
    assert told.ask["message"] == "one"
    assert told.ask["client_exchange_id"] not in {"e0", "e1"}
    await told.begin(rank=4)
    await told.finish("third")
    await expect(page.locator(".question")).to_have_text(["one", "two", "one"])
    await expect(page.locator(".note.interrupted")).to_have_text("This answer was interrupted.")
    await expect(page.get_by_role("button", name="Ask again")).to_have_count(0)


async def test_a_stopped_answer_is_asked_anew_though_it_is_the_newest(page, fake):
    fake.add_session("s", "A talk", exchange(0, "one", "half", STOPPED))
    peer = await open_page(page, fake, "#/c/s")
    await expect(page.locator(".turn")).to_contain_text("Stopped. What was written so far is kept.")
    await page.get_by_role("button", name="Ask again: one").click()
    told = await fake.told(peer)
    assert (told.ask["message"], told.ask["client_exchange_id"] == "e0") == ("one", False)
    await told.begin(rank=2)
    await told.finish("whole")
    await expect(page.locator(".question")).to_have_text(["one", "one"])


async def test_an_answer_that_a_restart_cut_off_before_the_page_s_eyes_is_asked_again_by_itself(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("Some of it")
    fake.stored["session-000"] = told.exchange("", **CUT_OFF)
    await peer.close(1012)
    peer = await fake.peer()
    await told.retell(peer, *told.exchange("", **CUT_OFF))
    again = await fake.told(peer)
    assert again.ask == told.ask
    await again.begin()
    await again.finish("All of it")
    await expect(page.locator(".markdown")).to_have_text("All of it")
    await expect(page.locator(".turn")).to_have_count(1)


async def test_a_cut_that_cannot_be_mended_any_more_is_marked(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    later = {"exchange_id": "elsewhere"}
    others = [{**message, **later} for message in told.exchange("Asked in another tab", rank=2)]
    fake.stored["session-000"] = [*told.exchange("", **CUT_OFF), *others]
    await peer.close(1012)
    peer = await fake.peer()
    await told.retell(peer, *told.exchange("", **CUT_OFF))
    await expect(page.locator(".note.interrupted")).to_contain_text("This answer was interrupted.")
    await page.get_by_role("button", name="Ask again").click()
    assert (await fake.told(peer)).ask["client_exchange_id"] != told.ask["client_exchange_id"]


async def test_a_stop_before_the_restart_stays_a_stop(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await page.get_by_role("button", name="Stop").click()
    await peer.heard("cancel")
    fake.stored["session-000"] = told.exchange("", **CUT_OFF)
    await peer.close(1012)
    peer = await fake.peer()
    await told.retell(peer, *told.exchange("", **CUT_OFF))
    await peer.heard("cancel")
    await expect(page.locator(".note.interrupted")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_an_answer_goes_on_over_the_death_of_the_service(page, database, mock_llm, tmp_path: Path):
    port = free_port()
    file = tmp_path / "service.yaml"

    def service(model):
        places = {"app": {"port": port}, "persistence": {"spool_dir": str(tmp_path / "spool")}}
        file.write_text(yaml.safe_dump(merge(configuration(model, database, mock_llm), places)))
        return ForkedModule("agentic_backend", env={"CONFIG_FILE": str(file), "ENV_FILE": ""})

    ready = f"http://127.0.0.1:{port}/agentic/v1/ready"
    with service("mock;tokens=100;stall=50") as process:
        await process.until(process.wait_for_http, ready)
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.get_by_label("Your message").fill("Will you be there?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".markdown")).to_have_text(re.compile(r".{60}", re.DOTALL))
        await process.until(process.kill)
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    with service("mock;tokens=3") as process:
        await process.until(process.wait_for_http, ready)
        await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
        await expect(page.locator(".turn")).to_have_count(1)
        # The new answer alone, in place of what was shown of the first.
        await expect(page.locator(".answer .markdown")).to_have_text(re.compile(r"^\S+ \S+ \S+$"))
        await page.reload()
        await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
        await expect(page.locator(".question")).to_have_text("Will you be there?")
        await process.until(process.stop)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_marks_can_be_read(page, fake, scheme, tmp_path: Path):
    fake.add_session("s", "A talk", [*exchange(0, "one", "half", STOPPED), *exchange(1, "two", "", CUT_OFF)])
    await page.emulate_media(color_scheme=scheme)
    await open_page(page, fake, "#/c/s")
    notes = page.locator(".note.ended")
    await expect(notes).to_have_count(2)
    for note in await notes.all():
        for part in (note.locator("p"), note.get_by_role("button")):
            assert await part.evaluate(CONTRAST) >= 4.5
    await page.screenshot(path=tmp_path / f"{scheme}.png")


CONTRAST = """node => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const lineage = [];
  for (let at = node; at !== null; at = at.parentElement) lineage.unshift(at);
  for (const at of lineage) paint(getComputedStyle(at).backgroundColor);
  const behind = luminance();
  paint(getComputedStyle(node).color);
  const front = luminance();
  return (Math.max(front, behind) + 0.05) / (Math.min(front, behind) + 0.05);

  function paint(colour) {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
  }
  function luminance() {
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
}"""
