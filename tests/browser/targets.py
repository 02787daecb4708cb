"""Which controls of a page a finger misses: targets below 44 by 44 CSS pixels."""

from playwright.async_api import Page

TOO_SMALL = r"""(least) => {
  const CONTROLS = "button, a[href], input, select, textarea, summary, [role=button], [role=menuitem], [role=tab], "
    + "[role=option], [role=switch]";
  const shown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && node.closest("[inert], .visually-hidden") === null && node.getClientRects().length > 0;
  // A link in running text is exempt (WCAG 2.5.8), for its line says how high it is; a marker in the text is not.
  const inText = (node) => node.matches("a, button.link") && (node.closest("p, .markdown, #reader-text") !== null);
  // Whether a press there is one of the control, of its label or of its pseudo-element beyond its box. Markers of
  // citations that stand side by side share the room between them.
  const answers = (node, x, y) => {
    const above = document.elementsFromPoint(x, y);
    if (above.length === 0) return null; // beyond the window
    const marker = ".citation, .note-marker button";
    const hit = above.find((one) => one === node || !(node.matches(marker) && one.matches(marker)));
    return hit === node || node.contains(hit) || hit.closest("label")?.control === node;
  };
  // The box of the control, or of the label that is pressed in its place.
  const boxOf = (node) => {
    const box = node.getBoundingClientRect();
    const label = ["checkbox", "radio"].includes(node.type) ? node.closest("label") : null;
    return label?.getBoundingClientRect() ?? box;
  };
  // How far from its middle it answers in a direction, up to what is needed.
  const reach = (node, box, [dx, dy]) => {
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const half = (dx === 0 ? box.height : box.width) / 2;
    let far = 0;
    while (far < least && (answers(node, x + dx * (far + 0.5), y + dy * (far + 0.5)) ?? far < half)) far += 0.5;
    return far;
  };
  const found = [];
  for (const node of document.querySelectorAll(CONTROLS)) {
    if (!shown(node) || inText(node) || node.matches(".skip:not(:focus)")) continue;
    const dialog = [...document.querySelectorAll("dialog:modal")].at(-1);
    if (dialog !== undefined && !dialog.contains(node)) continue;
    let box = boxOf(node);
    // Half a pixel is left to rounding.
    if (box.width >= least - 0.5 && box.height >= least - 0.5) continue;
    node.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
    box = boxOf(node);
    const wide = reach(node, box, [-1, 0]) + reach(node, box, [1, 0]);
    const high = reach(node, box, [0, -1]) + reach(node, box, [0, 1]);
    if (wide >= least - 1 && high >= least - 1) continue;
    const name = node.getAttribute("aria-label") ?? node.textContent.trim().slice(0, 40);
    const [own, around] = [node, node.parentElement].map((one) => `${one.localName}#${one.id}.${one.className}`);
    found.push(`${own} in ${around} “${name}”: ${wide} x ${high}`);
  }
  return [...new Set(found)];
}"""


async def small_targets(page: Page, least_px: int = 44) -> list[str]:
    """The visible controls that answer to less than this, in either direction: `control “name”: width x height`."""
    found: list[str] = await page.evaluate(TOO_SMALL, least_px)
    return found
