/** Tables of figures, and the same as a file for spreadsheets. */

import { el } from "../dom.js";

/**
 * @typedef {(string|Node)[]} Line a name and its figures
 * @typedef {(string|number|null)[]} Values
 */

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
 * Rows as comma-separated values (RFC 4180). A text that a spreadsheet would compute is quoted by an apostrophe.
 * @param {Values[]} rows
 */
export function csv(rows) {
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** @param {string|number|null} value */
function field(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const inert = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

/**
 * Hands rows to the browser to be saved.
 * @param {string} name
 * @param {Values[]} rows
 */
export function saveCsv(name, rows) {
  // Spreadsheets take a file without the mark for one of another encoding.
  const url = URL.createObjectURL(new Blob(["\ufeff", csv(rows)], { type: "text/csv;charset=utf-8" }));
  el("a", { href: url, download: name }).click();
  // The browser reads it after the click: an address that is gone at once saves nothing.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
