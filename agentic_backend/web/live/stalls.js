/** What held the event loop since the start: where, in whose turn, how often and how long. */

import { el } from "../dom.js";
import { count } from "../figures/numbers.js";
import { table } from "../figures/table.js";
import { duration, wholeSeconds } from "../format.js";
import { t } from "./texts.js";

/**
 * @typedef {object} Stall
 * @property {string} place
 * @property {string} task
 * @property {string|null} phase
 * @property {string|null} agent
 * @property {string} stack
 * @property {number} stalls
 * @property {number} total_ms
 * @property {number} worst_ms
 * @property {number} seconds_ago
 */

export class Stalls {
  #body = el("div");
  /** Stacks that a person has opened stay open over the next figures. @type {Set<string>} */
  #open = new Set();
  node = el("section", {}, el("h2", {}, t("stalls")), this.#body);

  /** @param {Stall[]} stalls */
  show(stalls) {
    if (stalls.length === 0) {
      this.#body.replaceChildren(el("p", { class: "hint" }, t("noStalls")));
      return;
    }
    if (this.#body.contains(document.activeElement)) return; // somebody reads a stack
    const head = [t("place"), t("phase"), t("agent"), t("times"), t("total"), t("worst"), t("lastSeen")];
    this.#body.replaceChildren(table(t("stalls"), head, stalls.map((stall) => this.#line(stall))));
  }

  /** @param {Stall} stall */
  #line(stall) {
    const { place, phase, agent, stack } = stall;
    const details = el("details", {}, el("summary", {}, place), el("pre", { tabindex: "0", role: "region", "aria-label": t("stack") }, stack));
    details.open = this.#open.has(place);
    details.addEventListener("toggle", () => (details.open ? this.#open.add(place) : this.#open.delete(place)));
    const ago = t("ago", { time: wholeSeconds(1000 * stall.seconds_ago) });
    return [details, phase ?? "", agent ?? "", count(stall.stalls), duration(stall.total_ms), duration(stall.worst_ms), ago];
  }
}
