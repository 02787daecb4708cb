/**
 * The phases of a turn: what the server recorded, brought into order, and drawn under the answer.
 *
 * `summarise` is pure. Phases of depth 0 do not overlap and cover the turn; what they leave is unattributed.
 */

import { el } from "./dom.js";
import { duration } from "./format.js";

const MAX_ROWS = 200;
const HUES = 8;

/** Colours that stay the same from turn to turn; a phase without a place here gets one by its name. */
const KNOWN_HUES = new Map([
  ["llm_invoke", 0],
  ["answer_with_sources", 0],
  ["answer_general_only", 0],
  ["vector_search", 1],
  ["vector_rerank", 2],
  ["history_restore", 3],
  ["session_read", 4],
  ["agent_init", 5],
  ["persist_tx", 6],
  ["spool_ack", 6],
  ["llm_invoke_title", 7],
]);

/**
 * Brings a ledger into order.
 * @param {{rows: {phase: string, depth: number, start_ms: number, ms: number}[], unattributedMs: number|null,
 *   totalMs?: number|null}} ledger where `unattributedMs` is null it is what `totalMs` has beyond depth 0
 * @returns {{rows: object[], totalMs: number, unattributedMs: number|null}|null} null where no row can be used; each
 *   row has phase, depth, startMs, ms and hue; the total is depth 0 plus what is unattributed
 */
export function summarise(ledger) {
  if (!Array.isArray(ledger?.rows)) return null;
  const rows = ledger.rows.slice(0, MAX_ROWS).flatMap(rowOf);
  if (rows.length === 0) return null;
  rows.sort((a, b) => a.startMs - b.startMs || a.depth - b.depth);
  const covered = rows.filter((row) => row.depth === 0).reduce((sum, row) => sum + row.ms, 0);
  const beyond = Number.isFinite(ledger.totalMs) ? ledger.totalMs - covered : null;
  const known = Number.isFinite(ledger.unattributedMs) ? ledger.unattributedMs : beyond;
  const unattributedMs = known === null ? null : Math.max(0, known);
  return { rows, totalMs: covered + (unattributedMs ?? 0), unattributedMs };
}

function rowOf(row) {
  const valid = row !== null && typeof row === "object" && typeof row.phase === "string";
  if (!valid || ![row.ms, row.start_ms, row.depth].every(Number.isFinite) || row.ms < 0) return [];
  return [{ phase: row.phase, depth: row.depth, startMs: row.start_ms, ms: row.ms, hue: hueOf(row.phase) }];
}

function hueOf(phase) {
  const known = KNOWN_HUES.get(phase);
  if (known !== undefined) return known;
  let hash = 0;
  for (const char of phase) hash = (hash * 31 + char.codePointAt(0)) % 65_521;
  return hash % HUES;
}

/**
 * The bar and the table of a turn's phases.
 * @param {object} summary as `summarise` returns it
 * @param {{firstTokenMs: number|null, elapsedMs: number|null}} measured what this page timed itself
 */
export function renderLedger(summary, measured) {
  const facts = [duration(summary.totalMs)];
  if (measured.firstTokenMs !== null) facts.push(`first token ${duration(measured.firstTokenMs)}`);
  const longest = summary.rows.filter((row) => row.depth === 0).reduce((a, b) => (b.ms > a.ms ? b : a), { ms: -1 });
  if (longest.ms > 0) facts.push(`${longest.phase} ${share(longest.ms, summary.totalMs)}`);
  return el(
    "details",
    { class: "ledger" },
    el("summary", {}, renderBar(summary), el("span", { class: "ledger-facts" }, facts.join(" · "))),
    renderTable(summary, measured),
  );
}

/** Depth 0 in order of time, the gaps between as unattributed. Widths are set through the object model: no inline style. */
function renderBar(summary) {
  const top = summary.rows.filter((row) => row.depth === 0);
  const label = top.map((row) => `${row.phase} ${duration(row.ms)}`).join(", ");
  const bar = el("span", { class: "bar", role: "img", "aria-label": `Phases: ${label}` });
  const segment = (className, ms, title) => {
    const part = el("span", { class: className, title });
    part.style.flexGrow = String(ms);
    bar.append(part);
  };
  let left = summary.unattributedMs ?? 0;
  let clock = 0;
  const gap = (ms) => {
    const width = Math.min(ms, left);
    if (width > summary.totalMs / 500) segment("gap", width, `unattributed ${duration(width)}`);
    left -= Math.max(0, width);
  };
  for (const row of top) {
    gap(row.startMs - clock);
    segment(`phase hue-${row.hue}`, row.ms, `${row.phase} ${duration(row.ms)}`);
    clock = row.startMs + row.ms;
  }
  gap(left);
  return bar;
}

function renderTable(summary, measured) {
  const rows = summary.rows.map((row) => {
    const name = el("th", { scope: "row" }, el("span", { class: `swatch hue-${row.hue}` }), row.phase);
    name.style.paddingInlineStart = `${0.85 + Math.min(row.depth, 8) * 1.1}rem`;
    const line = cells(name, duration(row.startMs), duration(row.ms), share(row.ms, summary.totalMs));
    line.classList.toggle("nested-row", row.depth > 0);
    return line;
  });
  const foot = [];
  if (summary.unattributedMs !== null) {
    const name = el("th", { scope: "row" }, el("span", { class: "swatch gap" }), "unattributed");
    foot.push(cells(name, "", duration(summary.unattributedMs), share(summary.unattributedMs, summary.totalMs)));
  }
  foot.push(cells(el("th", { scope: "row" }, "Total on the server"), "", duration(summary.totalMs), ""));
  const own = [
    ["First token, in this browser", measured.firstTokenMs],
    ["Whole answer, in this browser", measured.elapsedMs],
  ];
  for (const [name, ms] of own) {
    if (ms !== null) foot.push(cells(el("th", { scope: "row" }, name), "", duration(ms), ""));
  }
  const head = ["Phase", "Start", "Duration", "Share"].map((name) => el("th", { scope: "col" }, name));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows), el("tfoot", {}, ...foot));
  return el("div", { class: "ledger-table", tabindex: "0", role: "region", "aria-label": "Phases of this turn" }, table);
}

function cells(name, ...values) {
  return el("tr", {}, name, ...values.map((value) => el("td", {}, value)));
}

function share(ms, totalMs) {
  if (!(totalMs > 0)) return "";
  const percent = (100 * ms) / totalMs;
  return percent > 0 && percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}
