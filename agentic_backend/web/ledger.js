/**
 * The phases of a turn: what the server recorded, brought into order, and drawn under the answer.
 *
 * `summarise` is pure. Phases of depth 0 do not overlap and cover the turn; what they leave is unattributed.
 */

import { el } from "./dom.js";
import { duration } from "./format.js";

/**
 * @typedef {{rows: Frames.LedgerRow[], unattributedMs: number|null, totalMs?: number|null}} Ledger
 * @typedef {{phase: string, call: number|null, depth: number, startMs: number, ms: number, hue: number}} Row
 * @typedef {{rows: Row[], totalMs: number, unattributedMs: number|null}} Summary
 * @typedef {{phase: string|null, hue: number|null, ms: number}} Piece
 * @typedef {{firstTokenMs: number|null, elapsedMs: number|null}} Measured
 */

const MAX_ROWS = 200;
const HUES = 8;
const MIN_BAR_SHARE = 1 / 400;

/** Colours that stay the same from turn to turn; a phase without a place here gets one by its name. */
const KNOWN_HUES = new Map([
  ["llm_invoke", 0],
  ["vector_search", 1],
  ["kf_vector_search", 1],
  ["vector_rerank", 2],
  ["kf_vector_rerank", 2],
  ["history_restore", 3],
  ["session_read", 4],
  ["agent_init", 5],
  ["admission_wait", 2],
  ["stream_agent_response", 6],
  ["persist_tx", 7],
  ["spool_ack", 7],
  ["db_ack", 7],
]);

/**
 * Brings a ledger into order.
 * @param {Ledger|null} ledger where `unattributedMs` is null it is what `totalMs` has beyond depth 0
 * @returns {Summary|null} null where no row can be used; the total is depth 0 plus what is unattributed
 */
export function summarise(ledger) {
  if (!Array.isArray(ledger?.rows)) return null;
  const rows = ledger.rows.slice(0, MAX_ROWS).flatMap(rowOf);
  if (rows.length === 0) return null;
  rows.sort((a, b) => a.startMs - b.startMs || a.depth - b.depth);
  const covered = rows.filter((row) => row.depth === 0).reduce((sum, row) => sum + row.ms, 0);
  const { totalMs: whole = null } = ledger;
  const beyond = whole !== null && Number.isFinite(whole) ? whole - covered : null;
  const known = Number.isFinite(ledger.unattributedMs) ? ledger.unattributedMs : beyond;
  const unattributedMs = known === null ? null : Math.max(0, known);
  return { rows, totalMs: covered + (unattributedMs ?? 0), unattributedMs };
}

/** @param {Frames.LedgerRow} row @returns {Row[]} */
function rowOf(row) {
  const valid = row !== null && typeof row === "object" && typeof row.phase === "string";
  if (!valid || ![row.ms, row.start_ms, row.depth].every(Number.isFinite) || row.ms < 0) return [];
  const call = row.call ?? null;
  return [{ phase: row.phase, call, depth: row.depth, startMs: row.start_ms, ms: row.ms, hue: hueOf(row.phase) }];
}

/** @param {string} phase */
function hueOf(phase) {
  const known = KNOWN_HUES.get(phase);
  if (known !== undefined) return known;
  let hash = 0;
  for (const char of phase) hash = (hash * 31 + Number(char.codePointAt(0))) % 65_521;
  return hash % HUES;
}

/**
 * Cuts the turn into pieces, each under the deepest phase that ran then: what the time was really spent in.
 * @param {Summary} summary
 * @returns {Piece[]} in order of time; phase null where none ran
 */
export function pieces(summary) {
  const { rows, totalMs } = summary;
  const ends = rows.flatMap((row) => [row.startMs, row.startMs + row.ms]);
  const cuts = [...new Set([0, totalMs, ...ends])].filter((cut) => cut >= 0 && cut <= totalMs).sort((a, b) => a - b);
  /** @type {Piece[]} */
  const found = [];
  for (let at = 1; at < cuts.length; at += 1) {
    const row = deepest(rows, (cuts[at - 1] + cuts[at]) / 2);
    const ms = cuts[at] - cuts[at - 1];
    const last = found.at(-1);
    if (last !== undefined && last.phase === (row?.phase ?? null)) last.ms += ms;
    else found.push({ phase: row?.phase ?? null, hue: row?.hue ?? null, ms });
  }
  return found;
}

/** @param {Row[]} rows @param {number} moment */
function deepest(rows, moment) {
  /** @type {Row|null} */
  let found = null;
  for (const row of rows) {
    const runs = row.startMs <= moment && moment < row.startMs + row.ms;
    if (runs && (found === null || row.depth >= found.depth)) found = row;
  }
  return found;
}

/**
 * The phase with the most time of its own, and that time: {phase, ms} or null.
 * @param {Piece[]} parts
 */
function bottleneck(parts) {
  /** @type {Map<string, number>} */
  const times = new Map();
  for (const { phase, ms } of parts) if (phase !== null) times.set(phase, (times.get(phase) ?? 0) + ms);
  const [longest] = [...times].sort((a, b) => b[1] - a[1]);
  return longest === undefined ? null : { phase: longest[0], ms: longest[1] };
}

/**
 * The bar and the table of a turn's phases.
 * @param {Summary} summary
 * @param {Measured} measured what this page timed itself
 */
export function renderLedger(summary, measured) {
  const parts = pieces(summary);
  // Two clocks: the service timed the turn, this page timed what it saw.
  const facts = [`${duration(summary.totalMs)} in the service`];
  if (measured.firstTokenMs !== null) facts.push(`first token seen after ${duration(measured.firstTokenMs)}`);
  const longest = bottleneck(parts);
  if (longest !== null) facts.push(`${longest.phase} ${share(longest.ms, summary.totalMs)}`);
  return el(
    "details",
    { class: "ledger" },
    el("summary", {}, renderBar(parts, summary.totalMs), el("span", { class: "ledger-facts" }, facts.join(" · "))),
    renderTable(summary, measured),
  );
}

/**
 * Pieces narrower than a pixel are left to the table. Widths are set through the object model: the page's policy allows
 * no inline style.
 * @param {Piece[]} all
 * @param {number} totalMs
 */
function renderBar(all, totalMs) {
  const parts = all.filter(({ ms }) => ms >= totalMs * MIN_BAR_SHARE);
  const named = parts.map(({ phase, ms }) => ({ phase: phase ?? "unattributed", ms }));
  const label = named.map(({ phase, ms }) => `${phase} ${duration(ms)}`).join(", ");
  const bar = el("span", { class: "bar", role: "img", "aria-label": `Phases: ${label}` });
  parts.forEach(({ hue, ms }, at) => {
    const title = `${named[at].phase} ${duration(ms)}`;
    const part = el("span", { class: hue === null ? "gap" : `hue-${hue}`, title });
    part.style.flexGrow = String(ms);
    bar.append(part);
  });
  return bar;
}

/** @param {Summary} summary @param {Measured} measured */
function renderTable(summary, measured) {
  const several = new Set(summary.rows.filter(({ call }) => call !== null && call > 1).map(({ phase }) => phase));
  const rows = summary.rows.map((row) => {
    const swatch = el("span", { class: `swatch hue-${row.hue}` });
    swatch.style.marginInlineStart = `${Math.min(row.depth, 8) * 1.1}rem`;
    const name = el("th", { scope: "row" }, swatch, several.has(row.phase) ? `${row.phase} ${row.call}` : row.phase);
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
  /** @type {[string, number|null][]} */
  const own = [
    ["First token, in this browser", measured.firstTokenMs],
    ["Whole answer, in this browser", measured.elapsedMs],
  ];
  for (const [name, ms] of own) {
    if (ms !== null) foot.push(cells(el("th", { scope: "row" }, name), "", duration(ms), ""));
  }
  const head = ["Phase", "Start", "Duration", "Share"].map((name) => el("th", { scope: "col" }, name));
  const body = [el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows), el("tfoot", {}, ...foot)];
  const region = { class: "ledger-table", tabindex: "0", role: "region", "aria-label": "Phases of this turn" };
  return el("div", region, el("table", {}, ...body));
}

/** @param {HTMLElement} name @param {...string} values */
function cells(name, ...values) {
  return el("tr", {}, name, ...values.map((value) => el("td", {}, value)));
}

/** @param {number} ms @param {number} totalMs */
function share(ms, totalMs) {
  if (!(totalMs > 0)) return "";
  const percent = (100 * ms) / totalMs;
  return percent > 0 && percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}
