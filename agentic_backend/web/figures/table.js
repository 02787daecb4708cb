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
