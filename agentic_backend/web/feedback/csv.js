/** Feedback as a table for a spreadsheet, in which nothing that a person wrote is a formula. */

const COLUMNS = /** @type {const} */ (["createdAt", "agentName", "rating", "reason", "comment", "exchangeId"]);
/** By these a spreadsheet knows a formula, also behind a space. */
const FORMULA = /^\s*[=+\-@]|^[\t\r]/;

/**
 * @typedef {{createdAt: string, agentName: string, rating: number, reason: string|null, comment: string|null,
 *   exchangeId: string|null}} Line
 */

/**
 * Lines of RFC 4180 behind a mark that says UTF-8.
 * @param {Line[]} lines
 */
export function csvOf(lines) {
  const rows = [COLUMNS, ...lines.map((line) => COLUMNS.map((name) => line[name]))];
  return `\uFEFF${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** @param {string|number|null} value */
function cell(value) {
  if (value === null) return "";
  const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
