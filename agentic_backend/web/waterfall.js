/** The phases of a turn along an axis of time, with the marks that a person looks for. */

import { el } from "./dom.js";
import { duration } from "./format.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: {
    label: "When each phase ran, over {time}. The table below has the figures.",
    firstToken: "first token, seen in this browser after {time}",
    median: "median of the {count} answers of {agent} in the last day: {time}",
  },
  fr: {
    label: "Quand chaque phase s'est déroulée, sur {time}. Le tableau ci-dessous donne les chiffres.",
    firstToken: "premier token, vu dans ce navigateur après {time}",
    median: "médiane des {count} réponses de {agent} au cours des dernières 24 heures : {time}",
  },
});

const TICKS = 5;
const MIN_BAR_PERCENT = 0.3;
/** A median further out would leave no room for the turn itself: the words below the axis still say it. */
const MAX_STRETCH = 3;

/**
 * @typedef {{name: string, startMs: number, ms: number, word: string}} Bar
 * @typedef {{totalMs: number, firstTokenMs: number|null, median: Median|null}} Marks
 * @typedef {{ms: number, count: number, agent: string}} Median of `count` answers of an agent in the last day
 */

/**
 * The ticks of an axis: round steps of 1, 2 or 5, from 0 to at most its end.
 * @param {number} endMs
 * @returns {number[]}
 */
function ticksOf(endMs) {
  if (!(endMs > 0)) return [0];
  const rough = endMs / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough) ?? rough;
  return Array.from({ length: Math.floor(endMs / step + 1e-9) + 1 }, (_, at) => at * step);
}

/** @param {number} ms */
function tickText(ms) {
  if (ms === 0) return "0";
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(4))} s` : `${Number(ms.toPrecision(4))} ms`;
}

/**
 * @param {Bar[]} bars
 * @param {Marks} marks
 */
export function waterfall(bars, { totalMs, firstTokenMs, median }) {
  const reach = median !== null && median.ms <= totalMs * MAX_STRETCH ? median.ms : 0;
  const ends = bars.map(({ startMs, ms }) => startMs + ms);
  const endMs = Math.max(totalMs, firstTokenMs ?? 0, reach, ...ends);
  /** @param {number} ms */
  const percent = (ms) => (endMs > 0 ? (100 * Math.max(0, ms)) / endMs : 0);
  /** @param {string} kind @param {number} ms @param {string} text */
  const line = (kind, ms, text) => {
    const node = el("span", { class: kind }, text === "" ? "" : el("span", {}, text));
    node.style.left = `${percent(ms)}%`;
    // A text about a line at the right end would stand out of the page.
    node.classList.toggle("late", percent(ms) > 90);
    return node;
  };
  const lines = el("div", { class: "lines" }, ticksOf(endMs).map((ms) => line("tick", ms, tickText(ms))));
  const keys = [];
  if (firstTokenMs !== null) {
    lines.append(line("mark first", firstTokenMs, ""));
    keys.push(el("p", { class: "key first" }, t("firstToken", { time: duration(firstTokenMs) })));
  }
  if (median !== null) {
    if (reach > 0) lines.append(line("mark median", reach, ""));
    const { agent, count } = median;
    const text = t("median", { count, agent, time: duration(median.ms) });
    keys.push(el("p", { class: "key median", dir: "auto" }, text));
  }
  const rows = bars.map(({ name, startMs, ms, word }) => {
    const bar = el("span", { class: `span word-${word}`, title: `${name} ${duration(ms)}` });
    bar.style.left = `${percent(startMs)}%`;
    bar.style.width = `${Math.max(MIN_BAR_PERCENT, percent(ms))}%`;
    return el("div", { class: "line" }, el("span", { class: "name" }, name), el("span", { class: "track" }, bar));
  });
  const label = t("label", { time: duration(endMs) });
  return el("div", { class: "waterfall" }, el("div", { class: "plot", role: "img", "aria-label": label }, lines, rows), keys);
}
