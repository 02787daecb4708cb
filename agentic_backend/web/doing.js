/** The line under a turn that runs: what happens now, and for how long the person has waited. */

/**
 * @import { Agent } from "./api.js"
 * @import { Turn } from "./protocol.js"
 */

import { Clock, el } from "./dom.js";
import { wholeSeconds } from "./format.js";
import { catalogue } from "./i18n.js";
import { dots, rowsOf } from "./steps.js";

const t = catalogue({
  en: {
    stopping: "Stopping…",
    connection: "Waiting for the connection…",
    resuming: "Resuming the answer…",
    queue: "In the queue, position {position}",
    waiting: "Waiting for the service…",
    searching: "Searching the documents…",
    thinking: "Thinking…",
    calling: "Calling {name}…",
    callingMore: { one: "Calling {name} and {count} more…", other: "Calling {name} and {count} more…" },
    writing: "Writing…",
  },
  fr: {
    stopping: "Arrêt en cours…",
    connection: "En attente de la connexion…",
    resuming: "Reprise de la réponse…",
    queue: "Dans la file d'attente, position {position}",
    waiting: "En attente du service…",
    searching: "Recherche dans les documents…",
    thinking: "Réflexion…",
    calling: "Appel de {name}…",
    callingMore: { one: "Appel de {name} et d'un autre…", other: "Appel de {name} et de {count} autres…" },
    writing: "Rédaction…",
  },
});

/**
 * Whether an agent looks into documents before it answers: it then has settings of that search.
 * @param {Agent|undefined} agent
 */
export function searchesDocuments(agent) {
  return agent?.tuning?.fields?.some(({ key }) => key.startsWith("rag.")) === true;
}

/**
 * What a turn does now, in words; "" for one that has ended.
 * @param {Turn} turn
 * @param {boolean} searches whether its agent looks into documents first
 */
function doingText(turn, searches) {
  if (turn.ended) return "";
  if (turn.status === "stopping") return t("stopping");
  if (turn.waitingForConnection) return t("connection");
  if (turn.resuming) return t("resuming");
  if (turn.queuePosition !== null) return t("queue", { position: turn.queuePosition });
  if (turn.note !== "") return turn.note;
  return agentText(turn, searches);
}

/** @param {Turn} turn @param {boolean} searches */
function agentText(turn, searches) {
  const { items } = turn;
  if (items.some(({ thinking }) => thinking !== undefined && thinking.since !== null)) return t("thinking");
  const open = rowsOf(items).flatMap((row) => (row.kind === "call" && row.result === null ? [row.call.name] : []));
  if (open.length === 1) return t("calling", { name: open[0] });
  if (open.length > 1) return t("callingMore", { name: open[0], count: open.length - 1 });
  const last = items.at(-1);
  if (last?.message === null && last.thinking === undefined && last.text !== "") return t("writing");
  if (turn.status === "sending") return t("waiting");
  return searches && items.length === 0 && turn.sources.length === 0 ? t("searching") : t("thinking");
}

/** Shows it, with seconds that are for the eye alone: a screen reader hears each change of the words, and no clock. */
export class StateLine {
  #words = el("span", { class: "doing" });
  #time = el("span", { class: "elapsed", "aria-hidden": "true" });
  #shown = "";
  /** @type {Turn|null} */
  #turn = null;
  node = el("div", { class: "turn-state" });
  #clock = new Clock(this.node, () => this.#showTime());

  /** @param {Turn} turn @param {boolean} searches */
  update(turn, searches) {
    this.#turn = turn;
    const text = doingText(turn, searches);
    if (text === "") {
      this.#clock.stop();
      this.node.replaceChildren();
    } else {
      this.#clock.start();
      if (this.node.firstChild === null) this.node.append(dots(), this.#words, this.#time);
      if (this.#shown !== text) this.#words.textContent = text;
      this.#showTime();
    }
    this.#shown = text;
  }

  #showTime() {
    const ms = this.#turn === null ? null : elapsedMs(this.#turn);
    const text = ms === null ? "" : wholeSeconds(Math.floor(ms / 1000) * 1000);
    if (this.#time.textContent !== text) this.#time.textContent = text;
  }
}

/**
 * For how long the person has waited; after a reload by the clock on the wall. Null where nobody knows.
 * @param {Turn} turn
 */
function elapsedMs({ askedAt, savedAt }) {
  if (askedAt !== null) return Math.max(0, performance.now() - askedAt);
  return savedAt > 0 ? Math.max(0, Date.now() - savedAt) : null;
}
