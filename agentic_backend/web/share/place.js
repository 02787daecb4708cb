/** A conversation that somebody has shared, at `#/s/TOKEN`: to be read, with nothing in it that acts. */

/**
 * @import { Page } from "../places.js"
 * @import { SharedConversation } from "./links.js"
 */

import { ApiError } from "../api.js";
import { copyButton, el, icon } from "../dom.js";
import { catalogue } from "../i18n.js";
import { Turn } from "../protocol.js";
import { placeText, SourceList } from "../sources.js";
import { errorText } from "../texts.js";
import { AnswerItem } from "../turns.js";
import { dateText, pathIn } from "./links.js";

const t = catalogue({
  en: {
    nothing: "This link leads nowhere: it was revoked, has ended, or never was one.",
    reading: "Reading the conversation…",
    untitled: "Conversation without a title",
    about: "Answered by {agent}. Shared {at}.",
    about_live: "Answered by {agent}. Shared {at}, with what is said since.",
    earlier: "Show earlier messages",
    no_answer: "There is no answer to this question.",
    stopped: "This answer was stopped.",
    failed: "There was an error: {code}.",
    copy: "Copy answer",
    turn: "Question and answer",
    passage: "Passage of a source",
    no_passage: "The passage is not shared.",
    close: "Close",
  },
  fr: {
    nothing: "Ce lien ne mène nulle part : il a été révoqué, a expiré ou n'a jamais existé.",
    reading: "Lecture de la conversation…",
    untitled: "Conversation sans titre",
    about: "Réponses de {agent}. Partagée le {at}.",
    about_live: "Réponses de {agent}. Partagée le {at}, avec ce qui s'est dit depuis.",
    earlier: "Afficher les messages précédents",
    no_answer: "Cette question n'a pas de réponse.",
    stopped: "Cette réponse a été arrêtée.",
    failed: "Il y a eu une erreur : {code}.",
    copy: "Copier la réponse",
    turn: "Question et réponse",
    passage: "Passage d'une source",
    no_passage: "Le passage n'est pas partagé.",
    close: "Fermer",
  },
});

const WINDOW = 200;

/**
 * @param {HTMLElement} host
 * @param {Page} page
 * @param {string} rest
 */
export function show(host, page, rest) {
  const view = new SharedView(host, page, pathIn(rest));
  view.load();
  return () => view.end();
}

class SharedView {
  #host;
  #page;
  #path;
  #ended = false;
  #read = 0;
  /** @type {Map<number, Frames.ChatMessage>} by rank */
  #messages = new Map();
  #turns = el("div", { class: "shared-turns" });
  #earlier = el("button", { type: "button", class: "small" }, t("earlier"));

  /** @param {HTMLElement} host @param {Page} page @param {string|null} path */
  constructor(host, page, path) {
    this.#host = host;
    this.#page = page;
    this.#path = path;
    this.#earlier.addEventListener("click", () => this.load());
  }

  end() {
    this.#ended = true;
  }

  /** The next window towards the beginning; the first time the newest. */
  async load() {
    if (this.#path === null) {
      this.#say(t("nothing"));
      return;
    }
    if (this.#read === 0) this.#say(t("reading"));
    try {
      const window = new URLSearchParams({ limit: String(WINDOW), offset: String(this.#read) });
      /** @type {SharedConversation} */
      const conversation = await this.#page.api.call("GET", `${this.#path}?${window}`);
      if (!this.#ended) this.#show(conversation);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!this.#ended) this.#fail(error);
    }
  }

  /** @param {ApiError} error */
  #fail(error) {
    if (error.code === "share_not_found") {
      this.#say(t("nothing"));
      return;
    }
    if (this.#read === 0) this.#host.replaceChildren();
    this.#page.notify(errorText(error.failure), error.retryable ? () => this.load() : null);
  }

  /** @param {string} sentence */
  #say(sentence) {
    this.#host.replaceChildren(el("p", { class: "shared hint", role: "status" }, sentence));
  }

  /** @param {SharedConversation} conversation */
  #show(conversation) {
    const first = this.#read === 0;
    this.#read += WINDOW;
    for (const [at, message] of conversation.messages.entries()) {
      this.#messages.set(message.rank, { session_id: "", exchange_id: String(at), ...message });
    }
    const hadFocus = document.activeElement === this.#earlier;
    this.#earlier.hidden = !conversation.earlier;
    this.#turns.replaceChildren(...turnsOf(this.#messages).map((messages) => turnNode(messages)));
    if (first) this.#host.replaceChildren(this.#frame(conversation));
    else if (hadFocus && this.#earlier.hidden) this.#host.focus();
  }

  /** @param {SharedConversation} conversation */
  #frame({ title, agent, shared_at, later_turns: live }) {
    const about = t(live ? "about_live" : "about", { agent: agent.name, at: dateText(shared_at) });
    const heading = el("h2", { dir: "auto" }, title || t("untitled"));
    return el("div", { class: "shared column" }, heading, el("p", { class: "hint" }, about), this.#earlier, this.#turns);
  }
}

/**
 * The messages by turns: each begins with a question.
 * @param {Map<number, Frames.ChatMessage>} messages
 */
function turnsOf(messages) {
  /** @type {Frames.ChatMessage[][]} */
  const turns = [];
  for (const message of [...messages.values()].sort((a, b) => a.rank - b.rank)) {
    const open = turns.at(-1);
    if (message.role === "user" || open === undefined) turns.push([message]);
    else open.push(message);
  }
  return turns;
}

/** @param {Frames.ChatMessage[]} messages */
function turnNode(messages) {
  const turn = Turn.fromMessages(messages);
  const node = el("article", { class: "turn", "aria-label": t("turn") });
  if (turn.question !== null) node.append(el("div", { class: "question", dir: "auto" }, turn.question));
  const { answer } = turn;
  if (answer !== undefined) {
    const item = new AnswerItem((source) => showPassage(source));
    item.update(answer, turn.sources);
    const sources = new SourceList((source) => showPassage(source));
    sources.show(turn.sources, answer.text);
    node.append(el("div", { class: "answer" }, item.node, sources.node));
  }
  const note = noteOf(turn);
  if (note !== "") node.append(el("p", { class: "note" }, note));
  if (answer !== undefined && answer.text !== "") {
    node.append(el("footer", {}, el("div", { class: "turn-meta" }, copyButton(() => answer.text, t("copy")))));
  }
  return node;
}

/** @param {Turn} turn */
function noteOf({ status, error }) {
  if (error !== null) return t("failed", { code: error.code.replaceAll("_", " ") });
  if (status === "unanswered") return t("no_answer");
  return status === "cancelled" ? t("stopped") : "";
}

/**
 * The passage as it stands in the conversation: whether the reader may open its document is another matter.
 * @param {Frames.SearchHit} source
 */
function showPassage(source) {
  const close = el("button", { type: "button", class: "quiet icon-button", "aria-label": t("close") }, icon("close"));
  const title = el("h2", { id: "passage-title", dir: "auto" }, source.title || t("passage"));
  const text = source.content === "" ? t("no_passage") : source.content;
  const dialog = el(
    "dialog",
    { class: "passage", "aria-labelledby": "passage-title" },
    el("header", {}, title, close),
    el("p", { class: "hint" }, [source.file_name, placeText(source)].filter(Boolean).join(" · ")),
    el("div", { class: "passage-text", tabindex: "0", dir: "auto", role: "region", "aria-label": t("passage") }, text),
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
