/**
 * Where the time of a turn went: what the server recorded, brought into order, and drawn under the answer.
 *
 * `summarise`, `pieces` and `wordTimes` are pure. Phases of depth 0 do not overlap and cover the turn; what they leave is
 * unattributed.
 */


import { el } from "./dom.js";
import { duration } from "./format.js";
import { catalogue, language } from "./i18n.js";
import { paceOf } from "./pace.js";
import { serviceFacts } from "./service_facts.js";
import { waterfall } from "./waterfall.js";

const t = catalogue({
  en: {
    waiting: "waiting",
    searching: "searching",
    model: "model",
    tools: "tools",
    us: "us",
    inService: "{time} in the service",
    firstToken: "first token seen after {time}",
    tokens: { one: "{count} token", other: "{count} tokens" },
    tokensInOut: "Tokens: {input} read, {output} written",
    cached: "{count} of those read came from the cache",
    reasoned: "{count} of those written were reasoning",
    cost: "cost {cost}",
    costIs: "Cost: {cost}",
    phase: "Phase",
    start: "Start",
    duration: "Duration",
    share: "Share",
    unattributed: "unattributed",
    total: "Total on the server",
    firstTokenHere: "First token, in this browser",
    wholeHere: "Whole answer, in this browser",
    phases: "Phases of this turn",
  },
  fr: {
    waiting: "attente",
    searching: "recherche",
    model: "modèle",
    tools: "outils",
    us: "service",
    inService: "{time} dans le service",
    firstToken: "premier token vu après {time}",
    tokens: { one: "{count} token", other: "{count} tokens" },
    tokensInOut: "Tokens : {input} lus, {output} écrits",
    cached: "dont {count} lus depuis le cache",
    reasoned: "dont {count} écrits en raisonnant",
    cost: "coût {cost}",
    costIs: "Coût : {cost}",
    phase: "Phase",
    start: "Début",
    duration: "Durée",
    share: "Part",
    unattributed: "non attribué",
    total: "Total sur le serveur",
    firstTokenHere: "Premier token, dans ce navigateur",
    wholeHere: "Réponse entière, dans ce navigateur",
    phases: "Phases de cette réponse",
  },
});

/**
 * @typedef {{rows: Frames.LedgerRow[], unattributedMs: number|null, totalMs?: number|null}} Ledger
 * @typedef {"waiting"|"searching"|"model"|"tools"|"us"} Word who a time counts to
 * @typedef {{phase: string, call: number|null, depth: number, startMs: number, ms: number, word: Word}} Row
 * @typedef {{rows: Row[], totalMs: number, unattributedMs: number|null}} Summary
 * @typedef {{word: Word, ms: number}} Piece
 */

const MAX_ROWS = 200;
const MIN_BAR_SHARE = 1 / 400;

/** @type {Word[]} */
export const WORDS = ["waiting", "searching", "model", "tools", "us"];

/**
 * Who the own time of a phase counts to. What waits for a free connection, a place or a turn is waiting; what knowledge
 * flow does inside a search belongs to the search, its own waits too.
 * @param {string} phase
 * @returns {Word}
 */
function wordOf(phase) {
  if (/^kf_(?!pool_wait$)|^vector_|^(keyword_expansion|follow_up)$/.test(phase)) return "searching";
  if (phase.endsWith("_wait")) return "waiting";
  if (phase.startsWith("llm_")) return "model";
  return phase === "tool_call" || phase.startsWith("mcp_") ? "tools" : "us";
}

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
  return [{ phase: row.phase, call, depth: row.depth, startMs: row.start_ms, ms: row.ms, word: wordOf(row.phase) }];
}

/**
 * Cuts the turn into pieces, each under the word of the deepest phase that ran then: what the time was really spent in.
 * Where none ran, it is the service's own.
 * @param {Summary} summary
 * @returns {Piece[]} in order of time
 */
export function pieces(summary) {
  const { rows, totalMs } = summary;
  const ends = rows.flatMap((row) => [row.startMs, row.startMs + row.ms]);
  const cuts = [...new Set([0, totalMs, ...ends])].filter((cut) => cut >= 0 && cut <= totalMs).sort((a, b) => a - b);
  /** @type {Piece[]} */
  const found = [];
  for (let at = 1; at < cuts.length; at += 1) {
    const word = deepest(rows, (cuts[at - 1] + cuts[at]) / 2)?.word ?? "us";
    const ms = cuts[at] - cuts[at - 1];
    const last = found.at(-1);
    if (last !== undefined && last.word === word) last.ms += ms;
    else found.push({ word, ms });
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
 * The time of each word, in ms; together they are the turn.
 * @param {Piece[]} parts
 * @returns {Record<Word, number>}
 */
function wordTimes(parts) {
  /** @type {Record<Word, number>} */
  const times = { waiting: 0, searching: 0, model: 0, tools: 0, us: 0 };
  for (const { word, ms } of parts) times[word] += ms;
  return times;
}

/**
 * What the page knows of a turn beside its phases.
 * @typedef {object} Measured
 * @property {Frames.Metadata} metadata
 * @property {string|null} agentId
 * @property {number|null} firstTokenMs as the page saw it; null where it did not
 * @property {number|null} elapsedMs the same of all of it
 */

/**
 * The summary under an answer; opened, it shows when each phase ran, what it took, and what the turn cost.
 * @param {Summary} summary
 * @param {Measured} turn
 */
export function renderLedger(summary, turn) {
  const { totalMs } = summary;
  const agent = turn.metadata.agent_id ?? turn.agentId ?? "";
  const parts = pieces(summary);
  const facts = el("span", { class: "ledger-facts" }, factsOf(totalMs, turn).join(" · "));
  const head = el("summary", {}, renderBar(parts, totalMs), renderWords(parts), facts);
  const body = el("div", { class: "ledger-body" });
  const details = el("details", { class: "ledger" }, head, body);
  // Drawn with each opening: most are never opened.
  const draw = () => {
    const plot = el("div", {}, renderWaterfall(summary, turn, null));
    body.replaceChildren(plot, ...renderNotes(summary, turn));
    paceOf(agent).then((pace) => {
      if (pace !== null) plot.replaceChildren(renderWaterfall(summary, turn, { ...pace, agent }));
    });
  };
  head.addEventListener("click", () => {
    if (!details.open) draw();
  });
  details.addEventListener("toggle", () => {
    if (!details.open) body.replaceChildren();
    else if (body.firstChild === null) draw();
  });
  return details;
}

/** @param {Summary} summary @param {Measured} turn @param {import("./waterfall.js").Median|null} median */
function renderWaterfall(summary, { firstTokenMs }, median) {
  const rows = summary.rows.map((row) => ({ name: nameOf(row, summary.rows), startMs: row.startMs, ms: row.ms, word: row.word }));
  return waterfall(rows, { totalMs: summary.totalMs, firstTokenMs, median });
}

/** @param {Summary} summary @param {Measured} turn */
function renderNotes(summary, turn) {
  return [
    el("div", { class: "ledger-notes" }, noteLines(turn).map((text) => el("p", {}, text))),
    renderTable(summary, turn),
  ];
}

/** @param {number} totalMs @param {Measured} turn */
function factsOf(totalMs, turn) {
  // Two clocks: the service timed the turn, this page timed what it saw.
  const facts = [t("inService", { time: duration(totalMs) })];
  if (turn.firstTokenMs !== null) facts.push(t("firstToken", { time: duration(turn.firstTokenMs) }));
  const { total_tokens: tokens } = turn.metadata.token_usage ?? {};
  if (typeof tokens === "number" && tokens > 0) facts.push(t("tokens", { count: tokens }));
  const cost = costText(turn.metadata);
  if (cost !== "") facts.push(t("cost", { cost }));
  return facts;
}

/** @param {Measured} turn */
function noteLines({ metadata }) {
  const lines = [];
  const { input_tokens: input, output_tokens: output } = metadata.token_usage ?? {};
  if (typeof input === "number" && typeof output === "number") {
    const { cached_tokens: cached, reasoning_tokens: reasoned } = usageOf(metadata);
    const more = [];
    if (typeof cached === "number" && cached > 0) more.push(t("cached", { count: cached }));
    if (typeof reasoned === "number" && reasoned > 0) more.push(t("reasoned", { count: reasoned }));
    lines.push([t("tokensInOut", { input, output }), ...more].join(", "));
  }
  const cost = costText(metadata);
  if (cost !== "") lines.push(t("costIs", { cost }));
  return lines;
}

/** @param {Frames.Metadata} metadata @returns {Record<string, unknown>} what its model calls used */
function usageOf(metadata) {
  const { usage } = metadata.extras ?? {};
  return typeof usage === "object" && usage !== null ? /** @type {Record<string, unknown>} */ (usage) : {};
}

/**
 * What the turn cost; "" where its models have no price.
 * @param {Frames.Metadata} metadata
 */
function costText(metadata) {
  const { cost } = usageOf(metadata);
  if (typeof cost !== "number" || !(cost > 0)) return "";
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: cost < 0.01 ? 6 : 4 };
  if (serviceFacts.currency === null) return new Intl.NumberFormat(language, digits).format(cost);
  return new Intl.NumberFormat(language, { style: "currency", currency: serviceFacts.currency, ...digits }).format(cost);
}

/**
 * The five words, each with its colour and its time.
 * @param {Piece[]} parts
 */
function renderWords(parts) {
  const times = wordTimes(parts);
  const nodes = WORDS.map((word) => {
    const time = times[word] > 0 ? duration(times[word]) : "0 ms";
    const swatch = el("span", { class: `swatch word-${word}`, "aria-hidden": "true" });
    return el("span", { class: times[word] > 0 ? "word" : "word none" }, swatch, `${t(word)} `, el("b", {}, time), " ");
  });
  return el("span", { class: "ledger-words" }, nodes);
}

/**
 * Says for the eye what the words beside it say. Pieces narrower than a pixel are left out. Widths are set through the
 * object model: the page's policy allows no inline style.
 * @param {Piece[]} all
 * @param {number} totalMs
 */
function renderBar(all, totalMs) {
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  for (const { word, ms } of all.filter((piece) => piece.ms >= totalMs * MIN_BAR_SHARE)) {
    const part = el("span", { class: `word-${word}` });
    part.style.flexGrow = String(ms);
    bar.append(part);
  }
  return bar;
}

/**
 * A row's name; of several with one phase each has its number.
 * @param {Row} row
 * @param {Row[]} rows
 */
function nameOf({ phase, call }, rows) {
  const several = rows.some((other) => other.phase === phase && other.call !== null && other.call > 1);
  return several ? `${phase} ${call}` : phase;
}

/** @param {Summary} summary @param {{firstTokenMs: number|null, elapsedMs: number|null}} measured */
function renderTable(summary, measured) {
  const rows = summary.rows.map((row) => {
    const swatch = el("span", { class: `swatch word-${row.word}` });
    swatch.style.marginInlineStart = `${Math.min(row.depth, 8) * 1.1}rem`;
    const name = el("th", { scope: "row" }, swatch, nameOf(row, summary.rows));
    const line = cells(name, duration(row.startMs), duration(row.ms), share(row.ms, summary.totalMs));
    line.classList.toggle("nested-row", row.depth > 0);
    return line;
  });
  const foot = [];
  if (summary.unattributedMs !== null) {
    const name = el("th", { scope: "row" }, el("span", { class: "swatch gap" }), t("unattributed"));
    foot.push(cells(name, "", duration(summary.unattributedMs), share(summary.unattributedMs, summary.totalMs)));
  }
  foot.push(cells(el("th", { scope: "row" }, t("total")), "", duration(summary.totalMs), ""));
  /** @type {[string, number|null][]} */
  const own = [
    [t("firstTokenHere"), measured.firstTokenMs],
    [t("wholeHere"), measured.elapsedMs],
  ];
  for (const [name, ms] of own) {
    if (ms !== null) foot.push(cells(el("th", { scope: "row" }, name), "", duration(ms), ""));
  }
  const head = [t("phase"), t("start"), t("duration"), t("share")].map((name) => el("th", { scope: "col" }, name));
  const body = [el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows), el("tfoot", {}, ...foot)];
  const region = { class: "ledger-table", tabindex: "0", role: "group", "aria-label": t("phases") };
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
