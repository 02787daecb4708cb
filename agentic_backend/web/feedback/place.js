/** What people said of answers, for those who run the service: newest first, by agent and rating, and as a file. */

/** @import { Page } from "../places.js" */

import { ApiError } from "../api.js";
import { el, icon } from "../dom.js";
import { fullMoment, moment } from "../format.js";
import { catalogue } from "../i18n.js";
import { BAD, GOOD, ratingText, reasonText } from "../opinion.js";
import { saveCsv } from "../saving.js";
import { errorText } from "../texts.js";

/** Of the file. */
const COLUMNS = /** @type {const} */ (["createdAt", "agentName", "rating", "reason", "comment", "exchangeId"]);

const t = catalogue({
  en: {
    heading: "What people say of answers",
    about: "Newest first, without names. A rating that is taken back disappears here too.",
    agent: "Agent",
    everyAgent: "Every agent",
    rating: "Rating",
    everyRating: "Every rating",
    save: "Save as CSV",
    more: "Show more",
    loading: "Loading…",
    none: "Nobody has rated an answer yet.",
    noneHere: "Nothing fits these filters.",
    shown: { one: "{count} rating shown", other: "{count} ratings shown" },
    exchange: "Exchange",
    pending: "not stored yet",
    list: "Ratings",
    cut: "Only the newest {count} are in the file.",
    saved: { one: "{count} rating saved", other: "{count} ratings saved" },
  },
  fr: {
    heading: "Ce que l'on dit des réponses",
    about: "Les plus récents d'abord, sans noms. Un avis retiré disparaît aussi d'ici.",
    agent: "Agent",
    everyAgent: "Tous les agents",
    rating: "Note",
    everyRating: "Toutes les notes",
    save: "Enregistrer en CSV",
    more: "Afficher la suite",
    loading: "Chargement…",
    none: "Personne n'a encore noté de réponse.",
    noneHere: "Rien ne correspond à ces filtres.",
    shown: { one: "{count} avis affiché", other: "{count} avis affichés" },
    exchange: "Échange",
    pending: "pas encore enregistré",
    list: "Avis",
    cut: "Le fichier ne contient que les {count} plus récents.",
    saved: { one: "{count} avis enregistré", other: "{count} avis enregistrés" },
  },
});

const PAGE = 50;
const FILE_PAGE = 1000;
const MAX_IN_FILE = 50_000;

/**
 * @typedef {object} Said
 * @property {string} id
 * @property {number} rating
 * @property {string|null} reason
 * @property {string|null} comment
 * @property {string|null} exchangeId
 * @property {string} agentName
 * @property {string} createdAt
 */

/**
 * @param {HTMLElement} host
 * @param {Page} page
 */
export function show(host, page) {
  const place = new FeedbackPlace(page);
  host.append(place.node);
  place.start();
  return () => place.end();
}

class FeedbackPlace {
  #page;
  #agent = el("select", { onchange: () => this.#reload() }, el("option", { value: "" }, t("everyAgent")));
  #rating;
  #list = el("ol", { class: "opinions", "aria-label": t("list") });
  #state = el("p", { class: "hint", role: "status" });
  #more = el("button", { type: "button", hidden: true, onclick: () => this.#load() }, t("more"));
  #save = el("button", { type: "button", onclick: () => this.#saveFile() }, icon("save"), t("save"));
  /** How often the filters were changed: what was asked under earlier ones is not shown. */
  #round = 0;
  #count = 0;
  /** @type {Set<string>} */
  #agents = new Set();

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    const ratings = [GOOD, 4, 3, 2, BAD].map((value) => el("option", { value }, ratingText(value)));
    this.#rating = el("select", { onchange: () => this.#reload() }, el("option", { value: "" }, t("everyRating")), ratings);
    this.node = el(
      "div",
      { class: "feedback-place" },
      el("h2", {}, t("heading")),
      el("p", { class: "hint" }, t("about")),
      el(
        "div",
        { class: "filters" },
        el("label", {}, el("span", {}, t("agent")), this.#agent),
        el("label", {}, el("span", {}, t("rating")), this.#rating),
        this.#save,
      ),
      this.#state,
      this.#list,
      this.#more,
    );
  }

  start() {
    this.#reload();
    this.#offerAgents();
  }

  end() {
    this.#round += 1;
  }

  #offerAgents() {
    return this.#guarded(
      async () => {
        for (const { id } of await this.#page.api.agents()) this.#offer(id);
      },
      () => this.#offerAgents(),
    );
  }

  /** @param {string} agent */
  #offer(agent) {
    if (this.#agents.has(agent)) return;
    this.#agents.add(agent);
    this.#agent.append(el("option", { value: agent }, agent));
  }

  #reload() {
    this.#round += 1;
    this.#count = 0;
    this.#list.replaceChildren();
    this.#more.hidden = true;
    return this.#load();
  }

  /** @param {number} limit @param {number} offset @returns {Promise<Said[]>} */
  #read(limit, offset) {
    const query = new URLSearchParams({ limit: String(limit), offset: String(offset) });
    if (this.#agent.value !== "") query.set("agent", this.#agent.value);
    if (this.#rating.value !== "") query.set("rating", this.#rating.value);
    return this.#page.api.call("GET", `kpi/feedback?${query}`);
  }

  async #load() {
    const round = this.#round;
    this.#state.textContent = t("loading");
    const call = async () => {
      const found = await this.#read(PAGE, this.#count);
      if (round !== this.#round) return;
      this.#count += found.length;
      for (const said of found) this.#offer(said.agentName);
      const cards = found.map(cardOf);
      this.#list.append(...cards);
      const focused = document.activeElement === this.#more;
      this.#more.hidden = found.length < PAGE;
      // The button may be gone: the keyboard goes on with what it brought.
      if (focused) (this.#more.hidden ? cards[0] : this.#more)?.focus();
    };
    const read = await this.#guarded(call, () => this.#load());
    // Of ratings that could not be read nobody knows whether there are any.
    if (round === this.#round) this.#state.textContent = read || this.#count > 0 ? this.#countText() : "";
  }

  #countText() {
    if (this.#count > 0) return t("shown", { count: this.#count });
    return this.#agent.value === "" && this.#rating.value === "" ? t("none") : t("noneHere");
  }

  async #saveFile() {
    const round = this.#round;
    const focused = document.activeElement === this.#save;
    this.#save.disabled = true;
    const call = async () => {
      /** @type {Said[]} */
      const all = [];
      for (let more = true; more && all.length < MAX_IN_FILE; ) {
        const found = await this.#read(FILE_PAGE, all.length);
        if (round !== this.#round) return;
        all.push(...found);
        more = found.length === FILE_PAGE;
      }
      saveCsv("feedback.csv", [[...COLUMNS], ...all.map((one) => COLUMNS.map((name) => one[name]))]);
      const count = all.length;
      this.#state.textContent = count >= MAX_IN_FILE ? t("cut", { count }) : t("saved", { count });
    };
    await this.#guarded(call, () => this.#saveFile());
    this.#save.disabled = false;
    if (focused && document.activeElement === document.body) this.#save.focus();
  }

  /** Whether it did not fail. @param {() => Promise<void>} call @param {() => void} retry */
  async #guarded(call, retry) {
    try {
      await call();
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#page.notify(errorText(error.failure), error.retryable ? retry : null);
      return false;
    }
  }
}

/** @param {Said} said */
function cardOf({ rating, reason, comment, exchangeId, agentName, createdAt }) {
  const mark = rating > 3 ? [icon("like")] : rating < 3 ? [icon("dislike")] : [];
  const facts = el(
    "p",
    { class: "facts" },
    el("strong", {}, mark, ratingText(rating)),
    reason === null ? "" : el("span", { class: "reason" }, reasonText(reason)),
    el("bdi", {}, agentName),
    el("time", { datetime: createdAt, title: fullMoment(createdAt) }, moment(createdAt)),
  );
  const exchange = el("p", { class: "exchange" }, `${t("exchange")} `, el("code", {}, exchangeId ?? t("pending")));
  const words = comment === null ? [] : [el("p", { class: "said", dir: "auto" }, comment)];
  return el("li", { tabindex: "-1" }, facts, words, exchange);
}
