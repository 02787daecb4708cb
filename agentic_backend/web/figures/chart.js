/**
 * Lines over time, drawn by hand as SVG: a summary in words for who does not see them, and a table of every value.
 * Lines differ in dashes as well as in colour.
 */

import { el } from "../dom.js";
import { catalogue } from "../i18n.js";
import { NONE } from "./numbers.js";
import { renew, table } from "./table.js";

const t = catalogue({
  en: {
    values: "Values",
    time: "Time",
    summary: "{name} from {least} to {most}, last {last}",
    nothing: "No figures in this time.",
    of: "{title}: {lines}",
    valuesOf: "Values: {title}",
  },
  fr: {
    values: "Valeurs",
    time: "Heure",
    summary: "{name} de {least} à {most}, dernière valeur {last}",
    nothing: "Aucun chiffre sur cette période.",
    of: "{title} : {lines}",
    valuesOf: "Valeurs : {title}",
  },
});

/**
 * @typedef {{name: string, values: (number|null)[]}} Series
 * @typedef {{times: string[], series: Series[]}} Lines the moments as they are to be read, and as many values each
 */

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;
const ROOM = 4;

/** One chart, whose figures change while it stays where it is: `node` is it. */
export class Chart {
  #title;
  #write;
  #svg;
  #legend = el("ul", { class: "legend" });
  #most = el("span");
  #from = el("span");
  #to = el("span");
  #values = el("div");
  #details;
  /** @type {Lines} */
  #lines = { times: [], series: [] };

  /**
   * @param {string} title
   * @param {(value: number|null) => string} write how its values are written
   */
  constructor(title, write) {
    this.#title = title;
    this.#write = write;
    const named = { role: "img", "aria-label": title };
    this.#svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", ...named });
    this.#details = el("details", { class: "values" }, el("summary", {}, t("values")), this.#values);
    this.#details.addEventListener("toggle", () => this.#fillTable());
    this.node = el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, el("h3", {}, title), this.#legend),
      el("div", { class: "axis" }, this.#most),
      this.#svg,
      el("div", { class: "axis" }, this.#from, this.#to),
      this.#details,
    );
  }

  /** @param {Lines} lines */
  show(lines) {
    this.#lines = lines;
    const { times, series } = lines;
    const most = Math.max(0, ...series.flatMap(({ values }) => values.filter((value) => value !== null)));
    this.#svg.replaceChildren(
      shape("path", { class: "ground", d: `M0 ${HEIGHT - ROOM}H${WIDTH}M0 ${ROOM}H${WIDTH}` }),
      ...series.map(({ values }, at) => shape("path", { class: `line line-${at}`, d: path(values, most) })),
    );
    this.#svg.setAttribute("aria-label", t("of", { title: this.#title, lines: this.#inWords() }));
    this.#most.textContent = most > 0 ? this.#write(most) : "";
    this.#from.textContent = times[0] ?? "";
    this.#to.textContent = times.at(-1) ?? "";
    this.#legend.replaceChildren(...series.map((one, at) => this.#entry(one, at)));
    if (this.#details.open) this.#fillTable();
  }

  /** @param {Series} series @param {number} at */
  #entry({ name, values }, at) {
    const sample = shape("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
    sample.append(shape("path", { class: `line line-${at}`, d: "M0 4H24" }));
    return el("li", {}, sample, `${name} `, el("strong", {}, this.#write(last(values))));
  }

  #inWords() {
    const told = this.#lines.series.flatMap(({ name, values }) => {
      const known = values.filter((value) => value !== null);
      if (known.length === 0) return [];
      const [least, most] = [Math.min(...known), Math.max(...known)].map(this.#write);
      return [t("summary", { name, least, most, last: this.#write(last(values)) })];
    });
    return told.length === 0 ? t("nothing") : told.join("; ");
  }

  /** The newest first, without moments of which nothing is known. A closed table has no rows that would be made in vain. */
  #fillTable() {
    const { times, series } = this.#lines;
    if (!this.#details.open) {
      this.#values.replaceChildren();
      return;
    }
    const lines = times.map((time, at) => [time, ...series.map(({ values }) => this.#write(values[at]))]);
    const known = lines.filter(([, ...values]) => values.some((value) => value !== NONE)).reverse();
    const head = [t("time"), ...series.map(({ name }) => name)];
    renew(this.#values, table(t("valuesOf", { title: this.#title }), head, known));
  }
}

/** @param {(number|null)[]} values */
function last(values) {
  return values.findLast((value) => value !== null) ?? null;
}

/**
 * A line through the values, broken where there is none; a value alone is a short stroke.
 * @param {(number|null)[]} values
 * @param {number} most
 */
function path(values, most) {
  const step = WIDTH / Math.max(values.length - 1, 1);
  /** @param {number} value */
  const y = (value) => (HEIGHT - ROOM - ((HEIGHT - 2 * ROOM) * value) / (most || 1)).toFixed(1);
  return values
    .map((value, at) => {
      if (value === null) return "";
      const begins = (values[at - 1] ?? null) === null;
      const alone = begins && (values[at + 1] ?? null) === null ? "h3" : "";
      return `${begins ? "M" : "L"}${(at * step).toFixed(1)} ${y(value)}${alone}`;
    })
    .join("");
}

/**
 * @param {string} tag
 * @param {Record<string, string>} attributes
 * @param {...Node} children
 */
function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
