/** Finds the ledger of one turn by the id of its exchange, at whichever instance knows it. */

/** @import { Page } from "../places.js" */
import { ApiError } from "../api.js";
import { el } from "../dom.js";
import { amount, clock, count, NONE } from "../figures/numbers.js";
import { renderLedger, summarise } from "../ledger.js";
import { milliseconds } from "./figures.js";
import { t } from "./texts.js";

/**
 * @typedef {object} KeptTurn
 * @property {string} agent
 * @property {number} ended_at in seconds since the epoch
 * @property {string} status
 * @property {string|null} code
 * @property {string|null} model
 * @property {number} total_ms
 * @property {number|null} ttft_ms
 * @property {number} gap_max_ms
 * @property {number} deltas
 * @property {number} input_tokens
 * @property {number} output_tokens
 * @property {number} cost
 * @property {number} unattributed_ms
 * @property {Frames.LedgerRow[]} ledger
 */

export class TurnFinder {
  #page;
  #instances;
  #field = el("input", { id: "live-exchange", maxlength: "200", autocomplete: "off", spellcheck: "false", required: true });
  #told = el("p", { role: "status" });
  #found = el("div");

  /**
   * @param {Page} page
   * @param {() => string[]} instances whose turns there are; none where there is only one
   */
  constructor(page, instances) {
    this.#page = page;
    this.#instances = instances;
    const form = el(
      "form",
      { class: "controls" },
      el("label", { for: "live-exchange" }, t("exchange")),
      this.#field,
      el("button", {}, t("find")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.find(this.#field.value.trim());
    });
    this.node = el("section", {}, el("h2", {}, t("ledger")), el("p", { class: "hint" }, t("ledgerHint")), form, this.#told, this.#found);
  }

  /** @param {string} exchange */
  async find(exchange) {
    if (exchange === "") return;
    this.#field.value = exchange;
    this.#told.textContent = t("finding");
    this.#found.replaceChildren();
    try {
      const turn = await this.#look(exchange);
      this.#told.textContent = turn === null ? t("notFound") : "";
      if (turn !== null) this.#show(turn);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#told.textContent = t("failedToRead", { why: error.code });
    }
  }

  /** @param {string} exchange @returns {Promise<KeptTurn|null>} */
  async #look(exchange) {
    const instances = this.#instances();
    for (const instance of instances.length === 0 ? [null] : instances) {
      const at = instance === null ? "" : `?${new URLSearchParams({ instance })}`;
      try {
        const { turn } = await this.#page.api.call("GET", `kpi/turns/${encodeURIComponent(exchange)}${at}`);
        return turn;
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404) throw error;
      }
    }
    return null;
  }

  /** @param {KeptTurn} turn */
  #show(turn) {
    /** @type {[string, string][]} */
    const facts = [
      [t("agent"), turn.agent],
      [t("model"), turn.model ?? NONE],
      [t("status"), turn.code === null ? turn.status : `${turn.status} (${turn.code})`],
      [t("ended"), clock(new Date(1000 * turn.ended_at).toISOString(), { seconds: true })],
      [t("turn"), milliseconds(turn.total_ms)],
      [t("firstToken"), milliseconds(turn.ttft_ms)],
      [t("gap"), milliseconds(turn.gap_max_ms)],
      [t("deltas"), count(turn.deltas)],
      [t("tokens"), `${count(turn.input_tokens)} / ${count(turn.output_tokens)}`],
      [t("cost"), amount(turn.cost)],
    ];
    const tiles = facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    this.#found.replaceChildren(el("dl", { class: "tiles" }, tiles));
    const summary = summarise({ rows: turn.ledger, unattributedMs: turn.unattributed_ms });
    if (summary === null) return;
    const ledger = renderLedger(summary, { metadata: {}, agentId: turn.agent, firstTokenMs: null, elapsedMs: null });
    ledger.open = true;
    this.#found.append(ledger);
  }
}
