/**
 * What the service answers with (docs/protocol.md, `GET /kpi/day`), and what the Live view makes of it: tiles, lines,
 * rows of tables and of a file. Pure.
 */

/** @import { Lines } from "../figures/chart.js" */
/** @import { Values } from "../saving.js" */
import { amount, clock, count, NONE, share } from "../figures/numbers.js";
import { duration, fileSize } from "../format.js";
import { advice } from "./advice.js";
import { t } from "./texts.js";

/**
 * @typedef {{p50: number, p95: number, p99: number}|null} Quantiles
 * @typedef {object} Tally
 * @property {number} turns
 * @property {number} failed
 * @property {Quantiles} turn_ms
 * @property {Quantiles} first_token_ms
 * @property {Quantiles} overhead_ms
 * @typedef {Record<string, number>} Levels
 * @typedef {{bound_by: string, share: number, ms_per_turn: number, next: string, next_share: number}} Bound
 * @typedef {Tally & Bound & {at: string, seconds: number, turns_per_s: number, refused: number, lag_ms: number, loop: number,
 *   starved: number, db_wait_ms: number, batch_wait_ms: number, levels: Levels}} Step
 * @typedef {object} Day
 * @property {string} now
 * @property {string|null} instance
 * @property {number|null} worker
 * @property {Bound} verdict
 * @property {Levels} levels
 * @property {Step} whole
 * @property {(Tally & {name: string|null})[]} agents
 * @property {(Tally & {name: string|null})[]} models
 * @property {Step[]} steps
 */

const MEASURES = /** @type {const} */ (["turn_ms", "first_token_ms", "overhead_ms"]);
const QUANTILES = /** @type {const} */ (["p50", "p95", "p99"]);

/** @param {number|null} value */
export function milliseconds(value) {
  return value === null ? NONE : duration(value);
}

/**
 * The figures on top: each with its name.
 * @param {Day} day
 * @returns {[string, string][]}
 */
export function tiles({ whole, levels }) {
  return [
    [t("turnsPerS"), amount(whole.turns_per_s)],
    [t("turns"), count(whole.turns)],
    [t("failed"), count(whole.failed)],
    [t("refused"), count(whole.refused)],
    [t("turnP95"), milliseconds(whole.turn_ms?.p95 ?? null)],
    [t("firstP95"), milliseconds(whole.first_token_ms?.p95 ?? null)],
    [t("overheadP95"), milliseconds(whole.overhead_ms?.p95 ?? null)],
    [t("busy"), share(whole.loop)],
    [t("lag"), milliseconds(whole.lag_ms)],
    [t("capacity"), share(levels.capacity)],
    [t("running"), count(levels.running)],
    [t("queued"), count(levels.queued)],
    [t("pending"), count(levels.pending)],
    [t("oldest"), milliseconds(levels.oldest_ms)],
    [t("spool"), `${count(levels.spool_records)} · ${fileSize(levels.spool_bytes)}`],
    [t("outbox"), fileSize(levels.outbox_bytes)],
    [t("sockets"), count(levels.sockets + levels.streams)],
  ];
}

/**
 * The charts: the title of each, how its values are written, and its lines.
 * @type {{title: string, write: (value: number|null) => string, lines: [string, (step: Step) => number|null][]}[]}
 */
export const CHARTS = [
  { title: t("turnsPerS"), write: amount, lines: [[t("line"), (step) => step.turns_per_s]] },
  { title: t("turn"), write: milliseconds, lines: quantilesOf("turn_ms") },
  { title: t("firstToken"), write: milliseconds, lines: quantilesOf("first_token_ms") },
  { title: t("overhead"), write: milliseconds, lines: quantilesOf("overhead_ms") },
  {
    title: t("loop"),
    write: share,
    lines: [[t("busyLine"), (step) => step.loop], [t("starvedLine"), (step) => step.starved]],
  },
  { title: t("lag"), write: milliseconds, lines: [[t("lagLine"), (step) => step.lag_ms]] },
  {
    title: t("queue"),
    write: count,
    lines: [[t("runningLine"), (step) => step.levels.running], [t("queuedLine"), (step) => step.levels.queued]],
  },
  {
    title: t("pools"),
    write: count,
    lines: [
      [t("dbUse"), (step) => step.levels.db_in_use],
      [t("dbWaiting"), (step) => step.levels.db_waiting],
      [t("batchUse"), (step) => step.levels.batch_in_use],
      [t("batchWaiting"), (step) => step.levels.batch_waiting],
    ],
  },
  {
    title: t("dbWait"),
    write: milliseconds,
    lines: [[t("reads"), (step) => step.db_wait_ms], [t("writes"), (step) => step.batch_wait_ms]],
  },
  {
    title: t("spoolLine"),
    write: count,
    lines: [[t("pendingLine"), (step) => step.levels.pending], [t("spoolRecords"), (step) => step.levels.spool_records]],
  },
];

/** @param {typeof MEASURES[number]} measure @returns {[string, (step: Step) => number|null][]} */
function quantilesOf(measure) {
  return QUANTILES.map((name) => [name, (step) => step[measure]?.[name] ?? null]);
}

/**
 * @param {Step[]} steps
 * @param {[string, (step: Step) => number|null][]} lines
 * @returns {Lines}
 */
export function linesOf(steps, lines) {
  const times = steps.map(({ at, seconds }) => clock(at, { seconds: seconds < 30 }));
  return { times, series: lines.map(([name, of]) => ({ name, values: steps.map(of) })) };
}

export const NAMED_HEAD = [
  t("name"),
  t("turns"),
  t("failed"),
  ...[t("turn"), t("firstToken"), t("overhead")].flatMap((measure) => QUANTILES.map((name) => `${measure}, ${name}`)),
];

/**
 * A row of the tables by agent and by model.
 * @param {Tally & {name: string|null}} of
 */
export function namedLine(of) {
  const took = MEASURES.flatMap((measure) => QUANTILES.map((name) => milliseconds(of[measure]?.[name] ?? null)));
  return [of.name ?? t("others"), count(of.turns), count(of.failed), ...took];
}

/**
 * Periods in which the same limited the service, the newest first: from, until, name.
 * @param {Step[]} steps
 * @returns {[string, string, string][]}
 */
export function boundLines(steps) {
  /** @type {{from: number, until: number, cause: string}[]} */
  const runs = [];
  for (const { at, seconds, bound_by: cause } of steps) {
    const until = new Date(at).getTime();
    const known = runs.at(-1);
    if (known?.cause === cause) known.until = until;
    else runs.push({ from: until - 1000 * seconds, until, cause });
  }
  return runs.reverse().map(({ from, until, cause }) => {
    const [begin, end] = [from, until].map((moment) => clock(new Date(moment).toISOString(), { seconds: true }));
    return [begin, end, advice(cause).name];
  });
}

const OF_STEP = /** @type {const} */ ([
  "turns_per_s", "refused", "lag_ms", "loop", "starved", "db_wait_ms", "batch_wait_ms", "bound_by", "share",
]);

/**
 * All of it as a file: the period whole, by agent and model, and each step.
 * @param {Day} day
 * @returns {Values[]}
 */
export function csvRows({ whole, agents, models, steps }) {
  const levels = Object.keys(whole.levels);
  const took = MEASURES.flatMap((measure) => QUANTILES.map((name) => `${measure}_${name}`));
  /** @param {string} of @param {string|null} name @param {Tally} tally */
  const begun = (of, name, tally) => [
    of,
    name,
    tally.turns,
    tally.failed,
    ...MEASURES.flatMap((measure) => QUANTILES.map((quantile) => tally[measure]?.[quantile] ?? null)),
  ];
  /** @param {Step} step */
  const ended = (step) => [step.at, step.seconds, ...OF_STEP.map((key) => step[key]), ...levels.map((key) => step.levels[key])];
  return [
    ["of", "name", "turns", "failed", ...took, "at", "seconds", ...OF_STEP, ...levels],
    [...begun("period", null, whole), ...ended(whole)],
    ...agents.map((of) => begun("agent", of.name ?? t("others"), of)),
    ...models.map((of) => begun("model", of.name ?? t("others"), of)),
    ...steps.map((step) => [...begun("step", null, step), ...ended(step)]),
  ];
}
