/** Usage: turns, tokens and cost by day, agent and model; for operators of everybody, by person. */

/** @import { Page } from "../places.js" */
/** @import { Values } from "../saving.js" */
import { ApiError } from "../api.js";
import { el } from "../dom.js";
import { Chart } from "../figures/chart.js";
import { count } from "../figures/numbers.js";
import { table } from "../figures/table.js";
import { saveCsv } from "../saving.js";
import { catalogue, language } from "../i18n.js";

const t = catalogue({
  en: {
    period: "Period",
    week: "7 days",
    month: "30 days",
    quarter: "90 days",
    whose: "Whose",
    mine: "Mine",
    everybody: "Everybody's",
    save: "Save as CSV",
    reading: "Reading the figures…",
    failed: "The figures could not be read ({why}).",
    retry: "Try again",
    from: "{first} to {last}, days of {zone}. Deleted conversations and turns that failed do not count.",
    total: "In total",
    turns: "Answers",
    input: "Tokens in",
    output: "Tokens out",
    tokens: "Tokens",
    cost: "Cost",
    unpriced: "Costs are shown once a model has a price (ai.prices in the settings).",
    days: "By day",
    day: "Day",
    agents: "By agent",
    agent: "Agent",
    models: "By model",
    model: "Model",
    persons: "By person",
    person: "Person",
    unknown: "not said",
    cut: "Those with most answers; there are more.",
    nothing: "No answer in this time.",
  },
  fr: {
    period: "Période",
    week: "7 jours",
    month: "30 jours",
    quarter: "90 jours",
    whose: "De qui",
    mine: "La mienne",
    everybody: "Celle de tous",
    save: "Enregistrer en CSV",
    reading: "Lecture des chiffres…",
    failed: "Les chiffres n'ont pas pu être lus ({why}).",
    retry: "Réessayer",
    from: "Du {first} au {last}, jours de {zone}. Les conversations supprimées et les tours en échec ne comptent pas.",
    total: "Au total",
    turns: "Réponses",
    input: "Jetons entrants",
    output: "Jetons sortants",
    tokens: "Jetons",
    cost: "Coût",
    unpriced: "Les coûts s'affichent dès qu'un modèle a un prix (ai.prices dans la configuration).",
    days: "Par jour",
    day: "Jour",
    agents: "Par agent",
    agent: "Agent",
    models: "Par modèle",
    model: "Modèle",
    persons: "Par personne",
    person: "Personne",
    unknown: "non précisé",
    cut: "Celles et ceux qui ont le plus de réponses ; il y en a d'autres.",
    nothing: "Aucune réponse sur cette période.",
  },
});

/**
 * @typedef {{turns: number, input_tokens: number, output_tokens: number, cost: number}} Used
 * @typedef {object} Usage
 * @property {string} first
 * @property {string} last
 * @property {string} zone
 * @property {string|null} currency
 * @property {Used} total
 * @property {(Used & {day: string})[]} days
 * @property {(Used & {agent_id: string|null})[]} agents
 * @property {(Used & {model: string|null})[]} models
 * @property {(Used & {user_id: string|null})[]} [persons]
 * @property {string[]} cut
 */

const PERIODS = /** @type {const} */ ([["week", 7], ["month", 30], ["quarter", 90]]);
const DAY_MS = 86_400_000;
const SHORT_DAY = new Intl.DateTimeFormat(language, { day: "numeric", month: "short", timeZone: "UTC" });
const LONG_DAY = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeZone: "UTC" });
/** The sum of everybody may take a while. */
const DEADLINE_MS = 60_000;

/**
 * @param {HTMLElement} host
 * @param {Page} page
 */
export function show(host, page) {
  const view = new UsageView(page);
  host.replaceChildren(view.node);
  view.read();
  return () => view.end();
}

class UsageView {
  #page;
  #asked = 0;
  /** @type {Usage|null} */
  #usage = null;
  /** @type {Map<string, string>} */
  #names = new Map();
  #period = el("select", { id: "usage-period", onchange: () => this.read() }, PERIODS.map(([name, days]) => el("option", { value: days, selected: days === 30 }, t(name))));
  #whose = el("select", { id: "usage-whose", onchange: () => this.read() }, el("option", { value: "" }, t("mine")), el("option", { value: "all" }, t("everybody")));
  #save = el("button", { type: "button", disabled: true, onclick: () => this.#saveCsv() }, t("save"));
  #told = el("p", { class: "hint", role: "status" }, t("reading"));
  #again = el("button", { type: "button", hidden: true, onclick: () => this.read() }, t("retry"));
  #ofAll = el("span", { hidden: true }, el("label", { for: "usage-whose" }, t("whose")), this.#whose);
  #body = el("div");

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.#offerAll();
    this.node = el(
      "div",
      { class: "figures" },
      el(
        "div",
        { class: "controls" },
        el("span", {}, el("label", { for: "usage-period" }, t("period")), this.#period),
        this.#ofAll,
        this.#save,
      ),
      this.#told,
      this.#again,
      this.#body,
    );
  }

  end() {
    this.#asked += 1;
  }

  /** Who comes here by the address is here before the page knows what they may see. */
  async #offerAll() {
    const { api, permissions } = this.#page;
    try {
      this.#ofAll.hidden = !(permissions.has("kpi:read") || (await api.permissions()).includes("kpi:read"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  /** Reads and shows; of two readings the later one counts. */
  async read() {
    this.#asked += 1;
    const asked = this.#asked;
    this.#told.textContent = t("reading");
    try {
      const [usage, names] = await Promise.all([this.#readUsage(), this.#readNames()]);
      if (asked !== this.#asked) return;
      this.#names = names;
      this.#show(usage);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked !== this.#asked) return;
      this.#told.textContent = t("failed", { why: error.code });
      this.#again.hidden = false;
    }
  }

  /** By days of the person's time zone; of UTC where the service does not know that. @returns {Promise<Usage>} */
  async #readUsage() {
    const { timeZone } = new Intl.DateTimeFormat().resolvedOptions();
    try {
      return await this.#usageIn(timeZone ?? "UTC", new Date());
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 422 || timeZone === "UTC") throw error;
      return this.#usageIn("UTC", new Date());
    }
  }

  /** @param {string} zone @param {Date} now @returns {Promise<Usage>} */
  #usageIn(zone, now) {
    // The Swedish write dates as ISO 8601 does.
    const last = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeZone: zone }).format(now);
    const first = isoDay(new Date(last).getTime() - DAY_MS * (Number(this.#period.value) - 1));
    const path = this.#whose.value === "all" ? "kpi/usage" : "metrics/chatbot/usage";
    return this.#page.api.call("GET", `${path}?${new URLSearchParams({ first, last, zone })}`, undefined, DEADLINE_MS);
  }

  /** The names of agents by their ids; an agent that is gone is shown by its id. */
  async #readNames() {
    const agents = await this.#page.api.agents();
    return new Map(agents.map(({ id, name }) => [id, name]));
  }

  /** @param {Usage} usage */
  #show(usage) {
    this.#usage = usage;
    this.#save.disabled = false;
    if (document.activeElement === this.#again) this.#period.focus();
    this.#again.hidden = true;
    const [first, last] = [usage.first, usage.last].map((day) => LONG_DAY.format(new Date(day)));
    this.#told.textContent = t("from", { first, last, zone: usage.zone });
    const tiles = this.#figures(usage.total).map((value, at) => el("div", {}, el("dt", {}, this.#head[at]), el("dd", {}, value)));
    const charts = this.#charts(usage);
    this.#body.replaceChildren(
      el("h2", {}, t("total")),
      el("dl", { class: "tiles" }, tiles),
      ...(usage.currency === null ? [el("p", { class: "hint" }, t("unpriced"))] : []),
      el("h2", {}, t("days")),
      el("div", { class: "charts" }, charts),
      ...this.#lists(usage).flatMap(({ name, head, rows }) => this.#section(usage, { name, head, rows })),
    );
  }

  get #priced() {
    return this.#usage?.currency ?? null;
  }

  get #head() {
    return [t("turns"), t("input"), t("output"), ...(this.#priced === null ? [] : [t("cost")])];
  }

  /** @param {Used} used */
  #figures(used) {
    const cost = this.#priced === null ? [] : [money(used.cost, this.#priced)];
    return [count(used.turns), count(used.input_tokens), count(used.output_tokens), ...cost];
  }

  /** @param {Usage} usage */
  #charts({ first, last, days, currency }) {
    const known = new Map(days.map((one) => [one.day, one]));
    const all = daysBetween(first, last);
    const times = all.map((day) => SHORT_DAY.format(new Date(day)));
    /** @param {(used: Used) => number} of */
    const values = (of) => all.map((day) => of(known.get(day) ?? { turns: 0, input_tokens: 0, output_tokens: 0, cost: 0 }));
    const turns = new Chart(t("turns"), count);
    turns.show({ times, series: [{ name: t("turns"), values: values((used) => used.turns) }] });
    const tokens = new Chart(t("tokens"), count);
    const input = { name: t("input"), values: values((used) => used.input_tokens) };
    tokens.show({ times, series: [input, { name: t("output"), values: values((used) => used.output_tokens) }] });
    if (currency === null) return [turns.node, tokens.node];
    const cost = new Chart(t("cost"), (value) => money(value ?? 0, currency));
    cost.show({ times, series: [{ name: t("cost"), values: values((used) => used.cost) }] });
    return [turns.node, tokens.node, cost.node];
  }

  /**
   * What is in the tables: their names, what names their rows, and those.
   * @param {Usage} usage
   * @returns {{name: "agents"|"models"|"persons", head: "agent"|"model"|"person", rows: (Used & {name: string|null})[]}[]}
   */
  #lists({ agents, models, persons }) {
    const named = agents.map((one) => ({ ...one, name: one.agent_id === null ? null : (this.#names.get(one.agent_id) ?? one.agent_id) }));
    const ofPersons = (persons ?? []).map((one) => ({ ...one, name: one.user_id }));
    return [
      { name: "agents", head: "agent", rows: named },
      { name: "models", head: "model", rows: models.map((one) => ({ ...one, name: one.model })) },
      ...(persons === undefined ? [] : [{ name: /** @type {const} */ ("persons"), head: /** @type {const} */ ("person"), rows: ofPersons }]),
    ];
  }

  /** @param {Usage} usage @param {{name: "agents"|"models"|"persons", head: "agent"|"model"|"person", rows: (Used & {name: string|null})[]}} list */
  #section({ cut }, { name, head, rows }) {
    if (rows.length === 0) return [el("h2", {}, t(name)), el("p", { class: "hint" }, t("nothing"))];
    const lines = rows.map((row) => [row.name ?? t("unknown"), ...this.#figures(row)]);
    const more = cut.includes(name) ? [el("p", { class: "hint" }, t("cut"))] : [];
    return [el("h2", {}, t(name)), table(t(name), [t(head), ...this.#head], lines), ...more];
  }

  #saveCsv() {
    const usage = this.#usage;
    if (usage === null) return;
    /** @param {string} by @param {string|null} name @param {Used} used @returns {Values} */
    const row = (by, name, used) => [by, name, used.turns, used.input_tokens, used.output_tokens, usage.currency === null ? null : used.cost];
    saveCsv(`turnwise-usage-${usage.first}-${usage.last}.csv`, [
      ["by", "name", "answers", "input_tokens", "output_tokens", `cost${usage.currency === null ? "" : `_${usage.currency}`}`],
      row("total", null, usage.total),
      ...usage.days.map((one) => row("day", one.day, one)),
      ...this.#lists(usage).flatMap(({ head, rows }) => rows.map((one) => row(head, one.name, one))),
    ]);
  }
}

/** @param {number} ms */
function isoDay(ms) {
  return new Date(ms).toISOString().slice(0, 10);
}

/** @param {string} first @param {string} last */
function daysBetween(first, last) {
  const [begin, end] = [first, last].map((day) => new Date(day).getTime());
  return Array.from({ length: Math.round((end - begin) / DAY_MS) + 1 }, (_, number) => isoDay(begin + number * DAY_MS));
}

/**
 * A sum of money; a small one with the digits that matter.
 * @param {number} value
 * @param {string} currency
 */
function money(value, currency) {
  const digits = value !== 0 && Math.abs(value) < 1 ? { maximumSignificantDigits: 3 } : {};
  return new Intl.NumberFormat(language, { style: "currency", currency, ...digits }).format(value);
}
