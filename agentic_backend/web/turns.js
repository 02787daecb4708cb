/** One turn on the page: question, what the agent did, streamed answer, how it ended, and where its time went. */

/**
 * @import { Card, Said } from "./hitl.js"
 * @import { Opinion } from "./opinion.js"
 * @import { Item, Turn, TurnError } from "./protocol.js"
 * @import { QuestionActions } from "./question.js"
 * @import { OpenSource } from "./sources.js"
 * @import { Phase, Row } from "./steps.js"
 */

import { adviceFor, limitHit } from "./advice.js";
import { StateLine } from "./doing.js";
import { copyButton, el, icon } from "./dom.js";
import { duration, fullMoment, moment } from "./format.js";
import { humanCard } from "./hitl.js";
import { catalogue } from "./i18n.js";
import { renderLedger, summarise } from "./ledger.js";
import { loadMarkdown, MarkdownView } from "./markdown/view.js";
import { OpinionBar } from "./opinion.js";
import { QuestionView } from "./question.js";
import { citationButton, SourceList } from "./sources.js";
import { CallItem, DecisionItem, renderPart, rowsOf, StepItem, ThinkingItem } from "./steps.js";
import { errorText, warningText } from "./texts.js";

const t = catalogue({
  en: {
    regenerate: "Another answer",
    turn: "Question and answer",
    cancelled: "Stopped. What was written so far is kept.",
    interrupted: "This answer was interrupted.",
    passed: "You went on without answering the agent.",
    unanswered: "This question has no stored answer.",
    askAgain: "Ask again",
    askAgainThis: "Ask again: {question}",
    edit: "Edit",
    partial: "The part above was written before it broke off.",
    tryAgain: "Try again",
    tryAgainIn: "Try again in {seconds} s",
    copy: "Copy answer",
    inBrowser: "{time} in this browser",
  },
  fr: {
    regenerate: "Une autre réponse",
    turn: "Question et réponse",
    cancelled: "Arrêté. Ce qui a été écrit jusque-là est conservé.",
    interrupted: "Cette réponse a été interrompue.",
    passed: "Vous avez continué sans répondre à l'agent.",
    unanswered: "Cette question n'a pas de réponse enregistrée.",
    askAgain: "Redemander",
    askAgainThis: "Redemander : {question}",
    edit: "Modifier",
    partial: "La partie ci-dessus a été écrite avant l'interruption.",
    tryAgain: "Réessayer",
    tryAgainIn: "Réessayer dans {seconds} s",
    copy: "Copier la réponse",
    inBrowser: "{time} dans ce navigateur",
  },
});

/** Ends after which the person may want the answer all the same. */
const ASKED_AGAIN = new Set(["cancelled", "interrupted"]);
/** Ends of which a line under the turn tells. */
const NOTED = /** @type {const} */ (["cancelled", "interrupted", "passed", "unanswered"]);

/**
 * What the buttons under a turn do.
 * @typedef {object} AnswerActions
 * @property {(turn: Turn) => void} retry of a failed turn
 * @property {(turn: Turn) => void} edit of a failed turn
 * @property {(turn: Turn) => void} regenerate asks for another answer in the place of this one
 * @property {(turn: Turn) => void} askAgain of one that was stopped or interrupted
 * @property {(turn: Turn, rating: number, said: Opinion|null) => void} rate of an answer
 * @property {(turn: Turn) => boolean} searches whether its agent looks into documents first
 * @property {(turn: Turn, said: Said) => void} answerHuman of one that waits for the person
 * @property {OpenSource} openSource
 * @typedef {AnswerActions & QuestionActions} TurnActions
 */

/** Shows a Turn and follows it: `update` after each change, which costs only what has changed. */
export class TurnView {
  #turn;
  #actions;
  /** @type {Map<string, RowView>} by key */
  #rows = new Map();
  #restarts = 0;
  /** @type {{checkpointId: string, card: Card}|null} */
  #card = null;
  #sources;
  /** @type {QuestionView|null} */
  #asked = null;
  #steps = el("div", { class: "items" });
  #state = new StateLine();
  #end = el("div", { class: "turn-end" });
  #endKey = "";
  /** @type {number|undefined} */
  #retryTimer;
  #opinion;

  /** @param {Turn} turn @param {TurnActions} actions */
  constructor(turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#sources = new SourceList((source) => actions.openSource(source, ""));
    this.#opinion = new OpinionBar((rating, said) => actions.rate(turn, rating, said));
    this.answer = el("div", { class: "answer" }, this.#steps, this.#state.node, this.#sources.node);
    this.node = el("article", { class: "turn", "aria-label": t("turn") }, this.answer, this.#end);
    if (turn.question !== null) {
      this.#asked = new QuestionView(turn, actions);
      this.node.prepend(this.#asked.node);
    }
    this.node.prepend(el("h2", { class: "visually-hidden" }, t("turn")));
    loadMarkdown(); // while the answer is waited for
    this.update();
  }

  /** Brings the nodes in line with the turn. */
  update() {
    const turn = this.#turn;
    this.node.dataset.status = turn.status;
    if (turn.ended) this.answer.removeAttribute("aria-busy");
    else this.answer.setAttribute("aria-busy", "true");
    this.#asked?.update();
    this.#updateItems();
    this.#state.update(turn, this.#actions.searches(turn));
    // Under a finished answer only: while it is written the list would move with every line.
    if (turn.ended) this.#sources.show(turn.sources, turn.answer?.text ?? "");
    if (turn.ended) this.#updateEnd();
    else this.#clearEnd();
    this.#opinion.update(turn.feedback);
  }

  /** The same for the question alone, which may have other versions now. */
  updateQuestion() {
    this.#asked?.update();
  }

  /** @param {-1|1} step */
  focusVersions(step) {
    this.#asked?.focusVersions(step);
  }

  /** A turn that waited for the person goes on: what stood under it is over. */
  #clearEnd() {
    if (this.#endKey === "") return;
    this.#endKey = "";
    this.#end.replaceChildren();
  }

  #updateItems() {
    const turn = this.#turn;
    if (turn.restarts !== this.#restarts) this.#clearItems();
    const phase = phaseOf(turn);
    const rows = rowsOf(turn.items);
    const keys = new Set(rows.map(({ key }) => key));
    for (const [key, view] of this.#rows) {
      if (keys.has(key)) continue;
      view.node.remove();
      this.#rows.delete(key);
    }
    /** @type {Element|null} */
    let next = this.#steps.firstElementChild;
    for (const row of rows) {
      const view = this.#rows.get(row.key) ?? this.#newRow(row);
      if (view.node === next) next = view.node.nextElementSibling;
      else this.#steps.insertBefore(view.node, next);
      if (view instanceof CallItem && row.kind === "call") view.update(row, phase);
      else if (view instanceof AnswerItem) view.update(row.item, turn.sources);
      else if (view instanceof StepItem || view instanceof ThinkingItem) view.update(row.item);
    }
  }

  /** The turn runs again: a row of its first run may have the key of another one now. */
  #clearItems() {
    this.#restarts = this.#turn.restarts;
    this.#rows.clear();
    this.#steps.replaceChildren();
  }

  /** @param {Row} row @returns {RowView} */
  #newRow(row) {
    const view = this.#viewOf(row);
    this.#rows.set(row.key, view);
    return view;
  }

  /** @param {Row} row @returns {RowView} */
  #viewOf(row) {
    switch (row.kind) {
      case "answer":
        return new AnswerItem((source, claim) => this.#actions.openSource(source, claim));
      case "thinking":
        return new ThinkingItem();
      case "decision":
        return new DecisionItem(row);
      case "call":
        return new CallItem(row);
      default:
        return new StepItem(row.item);
    }
  }

  #updateEnd() {
    const turn = this.#turn;
    const key = `${turn.status}:${turn.retried === true}:${turn.awaiting?.checkpoint_id}`;
    if (key === this.#endKey) {
      // The answer to the agent was not taken, between two frames.
      if (turn.status === "awaiting") this.#card?.card.unlock();
      return;
    }
    this.#endKey = key;
    clearInterval(this.#retryTimer);
    const warnings = turn.warnings.map((code) => el("p", { class: "note warning" }, icon("alert"), warningText(code)));
    this.#end.replaceChildren(
      ...warnings,
      ...this.#endNote(),
      ...this.#question(),
      ...(turn.error === null ? [] : [this.#errorBox(turn.error)]),
      this.#footer(),
    );
  }

  /** @returns {HTMLElement[]} */
  #question() {
    const turn = this.#turn;
    const { awaiting } = turn;
    if (turn.status !== "awaiting" || awaiting === null) return [];
    // An answer that was not taken is given again from where it was: what was typed is still in its card.
    if (this.#card?.checkpointId !== awaiting.checkpoint_id) {
      const card = humanCard(awaiting, (said) => this.#actions.answerHuman(turn, said));
      this.#card = { checkpointId: awaiting.checkpoint_id, card };
    }
    this.#card.card.unlock();
    return [this.#card.card.node];
  }

  #endNote() {
    const { status, question, retried } = this.#turn;
    const note = NOTED.find((one) => one === status);
    if (note === undefined) return [];
    const again = ASKED_AGAIN.has(status) && question !== null && !retried ? [this.#askAgainButton()] : [];
    const mark = status === "interrupted" ? [icon("alert")] : [];
    return [el("div", { class: `note ended ${status}` }, mark, el("p", {}, t(note)), again)];
  }

  /** Its name says which question it asks: a log may hold several. */
  #askAgainButton() {
    const label = t("askAgainThis", { question: this.#turn.question?.slice(0, 80) ?? "" });
    const onclick = () => this.#actions.askAgain(this.#turn);
    return el("button", { type: "button", class: "small", "aria-label": label, onclick }, t("askAgain"));
  }

  /**
   * Says once what happened, what to do, and which limit it was.
   * @param {TurnError} error
   */
  #errorBox(error) {
    const { title, message } = errorText(error);
    const advice = adviceFor(error.code);
    const limit = limitHit(error.code, this.#turn.question);
    const buttons = el("div", { class: "buttons" });
    if (!this.#turn.retried && this.#turn.question !== null) {
      if (error.retryable) buttons.append(this.#retryButton(error.retryAfterMs));
      if (this.#turn.status === "refused") {
        buttons.append(el("button", { type: "button", onclick: () => this.#actions.edit(this.#turn) }, t("edit")));
      }
    }
    const partial = error.partial ? t("partial") : "";
    // The service's own sentence says what the title does, in other words: it stands where nothing better is known.
    const words = [limit, advice || message, partial].filter((text) => text !== "" && text !== title).join(" ");
    const text = el("div", {}, el("strong", {}, title), words === "" ? "" : el("p", {}, words), buttons);
    return el("div", { class: "error", role: "alert", "data-code": error.code }, icon("alert"), text);
  }

  /**
   * Can be pressed once the server's `retry_after_ms` is over.
   * @param {number} waitMs
   */
  #retryButton(waitMs) {
    const button = el("button", { type: "button", onclick: () => this.#actions.retry(this.#turn) });
    const due = performance.now() + waitMs;
    const show = () => {
      const left = Math.ceil((due - performance.now()) / 1000);
      button.disabled = left > 0;
      button.textContent = left > 0 ? t("tryAgainIn", { seconds: left }) : t("tryAgain");
      if (left <= 0) clearInterval(this.#retryTimer);
    };
    this.#retryTimer = setInterval(show, 250);
    show();
    return button;
  }

  #regenerateButton() {
    const label = t("regenerate");
    const onclick = () => this.#actions.regenerate(this.#turn);
    const attributes = { type: "button", class: "quiet small regenerate", "aria-label": label, title: label, onclick };
    return el("button", attributes, icon("again"));
  }

  #footer() {
    const turn = this.#turn;
    const footer = el("footer", {});
    const row = el("div", { class: "turn-meta" });
    if (turn.answer !== undefined && turn.answer.text !== "") {
      row.append(copyButton(() => turn.answer?.text ?? "", t("copy")));
    }
    if (turn.status === "done" && turn.question !== null && turn.rank !== null) row.append(this.#regenerateButton());
    const rated = turn.status === "done";
    if (rated) row.append(...this.#opinion.buttons);
    const { timestamp } = turn;
    if (timestamp !== null) {
      row.append(el("time", { datetime: timestamp, title: fullMoment(timestamp) }, moment(timestamp)));
    }
    const { model } = turn.metadata;
    if (typeof model === "string" && model !== "") row.append(el("span", {}, model));
    const summary = summarise(turn.ledger);
    if (summary !== null) {
      footer.append(renderLedger(summary, turn));
    } else if (turn.elapsedMs !== null && turn.status !== "refused") {
      row.append(el("span", {}, t("inBrowser", { time: duration(turn.elapsedMs) })));
    }
    footer.append(row, ...(rated ? [this.#opinion.node] : []));
    return footer;
  }
}

/** @typedef {AnswerItem|StepItem|ThinkingItem|CallItem|DecisionItem} RowView */

/** @param {Turn} turn @returns {Phase} */
function phaseOf(turn) {
  if (!turn.ended) return "running";
  return turn.status === "awaiting" ? "waiting" : "over";
}

/** The answer, or a whole message of text among the steps. */
export class AnswerItem {
  #stream;
  #extras = el("div", { class: "extras" });
  /** @type {Frames.ChatMessage|null} */
  #message = null;
  /** @type {Frames.SearchHit[]} */
  #sources = [];

  /** @param {OpenSource} openSource */
  constructor(openSource) {
    const body = el("div", { class: "markdown" });
    /** @param {number} number */
    const cite = (number) => {
      const source = this.#sources[number - 1];
      return source === undefined ? null : citationButton(number, source, openSource);
    };
    this.#stream = new MarkdownView(body, cite);
    this.node = el("div", { class: "item" }, body, this.#extras);
  }

  /** @param {Item} item @param {Frames.SearchHit[]} sources */
  update(item, sources) {
    // They come before the text; in a turn that is replayed, or from storage, they may come with or after it.
    if (!sameSources(sources, this.#sources)) this.#stream.reset();
    this.#sources = sources;
    this.#stream.update(item.text);
    if (item.message === null || item.message === this.#message) return;
    this.#message = item.message;
    this.#extras.replaceChildren(...item.message.parts.filter((part) => !isListed(part, sources)).flatMap(renderPart));
  }
}

/**
 * Whether markers of the one list still stand for the same sources in the other.
 * @param {Frames.SearchHit[]} some
 * @param {Frames.SearchHit[]} others
 */
function sameSources(some, others) {
  return some.length === others.length && some.every((source, at) => source.citation_url === others[at].citation_url);
}

/**
 * A citation whose source stands in the list under the answer needs no link of its own.
 * @param {Frames.Part} part
 * @param {Frames.SearchHit[]} sources
 */
function isListed(part, sources) {
  return part.type === "link" && part.kind === "citation" && sources[Number(part.source_id) - 1] !== undefined;
}
