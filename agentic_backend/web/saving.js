/** Files that the page makes, or has fetched, handed to the browser to be saved. */

import { el } from "./dom.js";

/** The browser reads a file after the click: an address that is gone at once saves nothing. */
const KEPT_MS = 10_000;
/** By these a spreadsheet knows a formula, also behind a space. */
const FORMULA = /^\s*[=+\-@]|^[\t\r]/;

/** @typedef {(string|number|null)[]} Values */

/** @param {string|null} name null for the browser's own @param {Blob} file */
export function saveFile(name, file) {
  const href = URL.createObjectURL(file);
  el("a", { href, download: name ?? "" }).click();
  setTimeout(() => URL.revokeObjectURL(href), KEPT_MS);
}

/**
 * Saves rows as a table for spreadsheets, in which nothing that a person wrote is a formula.
 * @param {string} name
 * @param {Values[]} rows
 */
export function saveCsv(name, rows) {
  // Spreadsheets take a file without the mark for one of another encoding.
  saveFile(name, new Blob(["\ufeff", csv(rows)], { type: "text/csv;charset=utf-8" }));
}

/** Rows as comma-separated values (RFC 4180). @param {Values[]} rows */
function csv(rows) {
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** @param {string|number|null} value */
function field(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const inert = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}
