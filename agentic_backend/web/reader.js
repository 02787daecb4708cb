/**
 * The document that a citation opens, beside the answer: the sentence that was cited is marked and in sight, or the
 * passage where no one sentence can be told. Links of the document to others of its library open those, with a way back.
 * What is shown is rendered like an answer: as untrusted text.
 */

/**
 * @import { LinkedDocument, Passage } from "./api.js"
 * @import { Place } from "./sources.js"
 */

import { ApiError } from "./api.js";
import { deadLink, headingAt, showDocument, spanOf } from "./document.js";
import { el } from "./dom.js";
import { catalogue } from "./i18n.js";
import { markSentences } from "./marks.js";
import { Panel } from "./panel.js";
import { placeText } from "./sources.js";
import { errorText } from "./texts.js";

const t = catalogue({
  en: {
    document: "Document",
    opening: "Opening the document…",
    close: "Close the document",
    back: "Back",
    backTo: "Back to {title}",
    again: "Try again",
    passageOnly: "Only the passage could be read, not the document around it.",
    changed: "The document has changed since: the cited passage is not in it any more.",
    notFound: "The passage could not be found just now: this is the document from its beginning.",
    wholePassage: "No one sentence of this passage says it like the answer does: it is marked as a whole.",
    noSection: "This document has no such section.",
    notThere: "No document of this library that you may read is meant by this link.",
  },
  fr: {
    document: "Document",
    opening: "Ouverture du document…",
    close: "Fermer le document",
    back: "Retour",
    backTo: "Retour à {title}",
    again: "Réessayer",
    passageOnly: "Seul le passage a pu être lu, pas le document qui l'entoure.",
    changed: "Le document a changé depuis : le passage cité n'y figure plus.",
    notFound: "Le passage est introuvable pour l'instant : voici le document depuis son début.",
    wholePassage: "Aucune phrase de ce passage ne le dit comme la réponse : il est marqué en entier.",
    noSection: "Ce document n'a pas de section de ce nom.",
    notThere: "Ce lien ne mène à aucun document de cette bibliothèque que vous puissiez lire.",
  },
});

const MAX_TITLE_CHARS = 200;

/**
 * @typedef {object} Documents as the service has them; each rejects with ApiError
 * @property {(documentUid: string, chunkUid: string) => Promise<Passage>} passage
 * @property {(documentUid: string) => Promise<string>} documentText
 * @property {(documentUid: string, path: string) => Promise<LinkedDocument>} linkedDocument
 *
 * @typedef {object} Stop on the way through documents
 * @property {Place} place
 * @property {string} claim the sentence of the answer that cites it, "" where there is none
 * @property {string|null} mime null where its passage says so
 * @property {string} fragment the section it was opened at, "" for none
 * @property {Found|null} found once it was read
 * @property {number|null} scroll where it was left, null where it was not
 * @typedef {{passage: Passage|null, text: string, note: string}} Found
 */

export class Reader {
  #panel;
  #title;
  #place;
  #state;
  #text;
  #back;
  /** @type {Documents|null} */
  #documents = null;
  /** @type {Stop[]} where the person was before, latest last */
  #trail = [];
  /** @type {Stop|null} */
  #stop = null;
  #opened = 0;
  /** @type {(() => void)[]} */
  #waiting = [];

  /** @param {HTMLElement} node with the nodes that index.html gives it */
  constructor(node) {
    /** @param {string} name */
    const part = (name) => /** @type {HTMLElement} */ (node.querySelector(`#reader-${name}`));
    this.#panel = new Panel(node, part("handle"), () => this.#closed());
    this.#title = part("title");
    this.#place = part("place");
    this.#state = part("state");
    this.#text = part("text");
    this.#back = part("back");
    this.#text.setAttribute("aria-label", t("document"));
    this.#back.append(t("back"));
    this.#back.addEventListener("click", () => this.#goBack());
    part("close").setAttribute("aria-label", t("close"));
    part("close").addEventListener("click", () => this.#panel.close());
    // Another conversation, or what is shown beside them: the answer that cites is not on the screen any more.
    addEventListener("hashchange", () => this.#panel.close());
  }

  /**
   * Opens at a place (see sources.js) with `claim`, the sentence of the answer that cites it, "" where there is none.
   * @param {Place & {claim?: string}} cited
   * @param {Documents} documents
   * @returns {Promise<void>} settled once the panel is closed
   */
  open({ claim = "", ...place }, documents) {
    this.#documents = documents;
    this.#trail = [];
    this.#go({ place, claim, mime: null, fragment: "", found: null, scroll: null });
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }

  #closed() {
    this.#opened += 1;
    this.#trail = [];
    this.#stop = null;
    this.#text.replaceChildren();
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  /** What is shown stays until the next is there. @param {Stop} stop */
  async #go(stop) {
    this.#opened += 1;
    const opened = this.#opened;
    if (!this.#panel.isOpen) {
      this.#head(stop.place);
      this.#say(t("opening"));
    }
    this.#panel.open();
    this.#text.setAttribute("aria-busy", "true");
    this.#text.focus({ preventScroll: true });
    const read = stop.found ?? (await this.#read(stop));
    if (opened !== this.#opened) return;
    this.#text.removeAttribute("aria-busy");
    this.#stop = stop;
    this.#showTrail();
    if (read instanceof ApiError) {
      this.#head(stop.place);
      this.#text.replaceChildren();
      this.#refuse(read, () => this.#go(stop));
      return;
    }
    stop.found = read;
    this.#show(stop, read);
  }

  /** @param {Stop} stop @returns {Promise<Found|ApiError>} */
  async #read({ place: { documentUid, chunkUid } }) {
    const documents = /** @type {Documents} */ (this.#documents);
    const wanted = await Promise.allSettled([
      chunkUid === null ? null : documents.passage(documentUid, chunkUid),
      documents.documentText(documentUid),
    ]);
    const [passage, text] = [settled(wanted[0]), settled(wanted[1])];
    const found = passage.value ?? null;
    if (text.value !== undefined) return { passage: found, text: text.value, note: missingText(passage.error) };
    if (found !== null) return { passage: found, text: found.text, note: t("passageOnly") };
    return /** @type {ApiError} */ (text.error);
  }

  #goBack() {
    const stop = this.#trail.pop();
    if (stop !== undefined) this.#go(stop);
  }

  #showTrail() {
    const before = this.#trail.at(-1);
    this.#back.hidden = before === undefined;
    if (before !== undefined) this.#back.setAttribute("aria-label", t("backTo", { title: titleOf(before) }));
  }

  /** @param {Place} place */
  #head(place) {
    this.#title.textContent = place.title || t("document");
    this.#place.textContent = placeText(place);
  }

  /** @param {string} text */
  #say(text) {
    this.#state.replaceChildren(text);
    this.#state.hidden = text === "";
  }

  /** @param {ApiError} error @param {() => void} again */
  #refuse(error, again) {
    const { title, message } = errorText(error.failure);
    const button = el("button", { type: "button", class: "small", onclick: again }, t("again"));
    this.#state.replaceChildren([title, message].filter(Boolean).join(". "), " ", error.retryable ? button : "");
    this.#state.hidden = false;
  }

  /** @param {Stop} stop @param {Found} found */
  #show(stop, { passage: cited, text, note }) {
    const { place, claim } = stop;
    const span = cited === null ? null : spanOf(text, cited);
    const mime = cited?.document?.mime_type ?? stop.mime;
    const { nodes, passage } = showDocument(text, span, mime, (to, label) => this.#link(to, label));
    const body = el("div", { class: "markdown" }, nodes);
    place.title = cited?.document?.title || place.title || headingOf(body);
    this.#head({ ...place, ...cited });
    this.#text.replaceChildren(body);
    for (const node of passage) node.classList.add("cited");
    const marks = claim === "" ? [] : markSentences(passage, claim);
    body.classList.toggle("at-sentence", marks.length > 0);
    this.#say(note || (claim !== "" && passage.length > 0 && marks.length === 0 ? t("wholePassage") : ""));
    this.#bringInSight(stop, marks[0] ?? passage[0]);
  }

  /** @param {Stop} stop @param {Element|undefined} target */
  #bringInSight({ scroll, fragment }, target) {
    this.#text.scrollTop = scroll ?? 0;
    if (scroll !== null) return;
    if (fragment !== "") {
      if (!this.#toSection(fragment)) this.#say(t("noSection"));
      return;
    }
    const tall = target !== undefined && target.getBoundingClientRect().height > this.#text.clientHeight;
    target?.scrollIntoView({ block: tall ? "start" : "center" });
  }

  // ---- links ----

  /**
   * A relative link is followed when it is pressed: only then does anybody need to know where it leads.
   * @param {string} address
   * @param {Node[]} label
   */
  #link(address, label) {
    const button = el("button", { type: "button", class: "link" }, label);
    button.addEventListener("click", () => this.#follow(button, address));
    return button;
  }

  /** @param {HTMLElement} button @param {string} address */
  async #follow(button, address) {
    const [, path, fragment] = /** @type {RegExpExecArray} */ (/^([^?#]*)[^#]*#?(.*)$/s.exec(address));
    if (path === "") {
      const [from, scroll] = [this.#stop, this.#text.scrollTop];
      if (!this.#toSection(fragment)) this.#give(button, t("noSection"));
      else if (from !== null) this.#leave({ ...from, scroll });
      return;
    }
    const from = this.#stop;
    if (from === null || button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    const linked = await this.#linked(from, path);
    button.removeAttribute("aria-busy");
    if (from !== this.#stop) return;
    if (linked instanceof ApiError) {
      if (linked.status === 404 || linked.status === 422) this.#give(button, t("notThere"));
      else this.#refuse(linked, () => this.#follow(button, address));
      return;
    }
    this.#leave({ ...from, scroll: this.#text.scrollTop });
    const place = { documentUid: linked.document_uid, chunkUid: null, title: linked.title };
    this.#go({ place, claim: "", mime: linked.mime_type, fragment, found: null, scroll: null });
  }

  /** @param {Stop} from @param {string} path */
  async #linked(from, path) {
    try {
      return await /** @type {Documents} */ (this.#documents).linkedDocument(from.place.documentUid, path);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return error;
    }
  }

  /** @param {Stop} from */
  #leave(from) {
    this.#trail.push(from);
    this.#showTrail();
  }

  /** @param {HTMLElement} button @param {string} reason */
  #give(button, reason) {
    button.replaceWith(deadLink([...button.childNodes], reason));
    this.#say(reason);
    this.#text.focus({ preventScroll: true });
  }

  /** @param {string} fragment */
  #toSection(fragment) {
    const heading = headingAt(this.#text, fragment);
    if (heading === null) return false;
    heading.tabIndex = -1;
    heading.scrollIntoView({ block: "start" });
    heading.focus({ preventScroll: true });
    return true;
  }
}

/** @param {Stop} stop */
function titleOf({ place }) {
  return place.title || t("document");
}

/** @param {Element} body */
function headingOf(body) {
  return body.querySelector("h3")?.textContent.slice(0, MAX_TITLE_CHARS) ?? "";
}

/**
 * What a call gave or, where it rejected with ApiError, that error.
 * @template T
 * @param {PromiseSettledResult<T>} result
 * @returns {{value?: T, error: ApiError|null}}
 */
function settled(result) {
  if (result.status === "fulfilled") return { value: result.value, error: null };
  if (!(result.reason instanceof ApiError)) throw result.reason;
  return { error: result.reason };
}

/** @param {ApiError|null} error */
function missingText(error) {
  if (error === null) return "";
  return error.status === 404 ? t("changed") : t("notFound");
}
