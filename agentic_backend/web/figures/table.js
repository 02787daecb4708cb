/** Tables of figures. */

import { el } from "../dom.js";

/** @typedef {(string|Node)[]} Line a name and its figures */

/**
 * A table that scrolls sideways where it is wider than the page. The first cell of each row names it.
 * @param {string} label
 * @param {string[]} head
 * @param {Line[]} lines
 */
export function table(label, head, lines) {
  const heads = head.map((name) => el("th", { scope: "col" }, name));
  const rows = lines.map(([name, ...cells]) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell))),
  );
  return el(
    "div",
    { class: "figures-table", tabindex: "0", role: "region", "aria-label": label },
    el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, rows)),
  );
}

/**
 * Replaces tables by newer ones. The keyboard stays where it was, and each scrolled as far as it was.
 * @param {Element} host
 * @param {...Node} nodes
 */
export function renew(host, ...nodes) {
  const focused = host.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
  const scrolled = new Map(tablesIn(host).map((region) => [region.ariaLabel, [region.scrollLeft, region.scrollTop]]));
  host.replaceChildren(...nodes);
  for (const region of tablesIn(host)) {
    [region.scrollLeft, region.scrollTop] = scrolled.get(region.ariaLabel) ?? [0, 0];
    if (region.ariaLabel === focused) region.focus({ preventScroll: true });
  }
}

/** @param {Element} host */
function tablesIn(host) {
  return [.../** @type {NodeListOf<HTMLElement>} */ (host.querySelectorAll(".figures-table"))];
}
