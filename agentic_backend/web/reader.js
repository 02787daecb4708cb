/**
 * The panel in which a citation opens: the document, with the passage tinted, the sentence that was cited marked, and
 * that sentence in sight. What is shown is rendered like an answer: as untrusted text.
 */

/**
 * @import { Passage } from "./api.js"
 * @import { Place } from "./sources.js"
 */

import { ApiError } from "./api.js";
import { el } from "./dom.js";
import { loadMarkdown } from "./markdown/view.js";
import { placeText } from "./sources.js";
import { errorText } from "./texts.js";

/** A document above this is shown as plain text around the passage: its nodes would take the page seconds. */
const MAX_MARKDOWN_CHARS = 400_000;
const WINDOW_CHARS = 60_000;
const LEAVES = "p, li, td, th, h3, h4, h5, h6, pre, .plain";
/** Shares of words: how much of a sentence must be in the claim, or how alike the two must be, for it to be marked. */
const CONTAINED = 0.85;
const ALIKE = 0.4;
const LEAST_WORDS = 4;
const WORD = /[\p{L}\p{N}]+/gu;
const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });

/**
 * @typedef {{passage: (() => Promise<Passage>)|null, text: () => Promise<string>}} Read rejecting with ApiError;
 *   `passage` is null where only the document is known
 * @typedef {[number, number]} Span from the one to before the other, in UTF-16 units
 * @typedef {object} Sentence a passage of the joined text of its nodes, and how much of it the claim says
 * @property {Text[]} nodes
 * @property {number} from
 * @property {number} to
 * @property {Set<string>} words
 * @property {boolean} contained
 * @property {number} alike
 */

export class Reader {
  #dialog;
  #title;
  #place;
  #state;
  #text;
  #opened = 0;
  /** @type {typeof import("./markdown.js")|null} where it cannot be fetched, documents are shown as plain text */
  #markdown = null;

  /** @param {HTMLDialogElement} dialog with the nodes that index.html gives it */
  constructor(dialog) {
    /** @param {string} name */
    const part = (name) => /** @type {HTMLElement} */ (dialog.querySelector(`#reader-${name}`));
    this.#dialog = dialog;
    this.#title = part("title");
    this.#place = part("place");
    this.#state = part("state");
    this.#text = part("text");
    part("close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", ({ target }) => {
      // The dialog has no padding: only a click beside it has the dialog itself as its target.
      if (target === dialog) dialog.close();
    });
  }

  /**
   * Opens at a place (see sources.js) with `claim`, the sentence of the answer that cites it, "" where there is none.
   * @param {Place & {claim?: string}} cited
   * @param {Read} read
   * @returns {Promise<void>} settled once the panel is closed
   */
  open({ claim = "", ...place }, read) {
    this.#opened += 1;
    this.#head(place);
    this.#say("Opening the document…");
    this.#text.replaceChildren();
    if (!this.#dialog.open) this.#dialog.showModal();
    /** @type {Promise<void>} */
    const closed = new Promise((resolve) => {
      this.#dialog.addEventListener("close", () => resolve(), { once: true });
    });
    this.#load(place, claim, read, this.#opened);
    return closed;
  }

  /** @param {Place} place @param {string} claim @param {Read} read @param {number} opened */
  async #load(place, claim, read, opened) {
    const [wanted, markdown] = await Promise.all([Promise.allSettled([read.passage?.(), read.text()]), loadMarkdown()]);
    this.#markdown = markdown;
    const [passage, text] = [settled(wanted[0]), settled(wanted[1])];
    if (opened !== this.#opened || !this.#dialog.open) return;
    const found = passage.value ?? null;
    if (found !== null) this.#head({ ...place, ...found, title: found.document?.title || place.title });
    const whole = text.value ?? found?.text;
    if (whole === undefined) {
      if (text.error !== null) this.#refuse(text.error, () => this.open({ claim, ...place }, read));
      return;
    }
    this.#say(text.error ? "Only the passage could be read, not the document around it." : missingText(passage.error));
    this.#show(whole, found === null ? null : spanOf(whole, found), { claim, mime: found?.document?.mime_type });
  }

  /** @param {Place} place */
  #head(place) {
    this.#title.textContent = place.title || "Document";
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
    const button = el("button", { type: "button", class: "small", onclick: again }, "Try again");
    this.#state.replaceChildren([title, message].filter(Boolean).join(". "), " ", error.retryable ? button : "");
  }

  /** @param {string} text @param {Span|null} span @param {{claim: string, mime?: string|null}} shown */
  #show(text, span, { claim, mime }) {
    const markdown = mime === "text/plain" || text.length > MAX_MARKDOWN_CHARS ? null : this.#markdown;
    const { nodes, cited } = markdown === null ? plainNodes(text, span) : markdownNodes(markdown, text, span);
    this.#text.replaceChildren(el("div", { class: "markdown" }, nodes));
    // A relative address means a file beside the document, which is not where this page is.
    for (const link of this.#text.querySelectorAll("a")) {
      if (link.origin === location.origin) link.replaceWith(...link.childNodes);
    }
    for (const image of this.#text.querySelectorAll("img")) image.replaceWith(image.alt);
    for (const node of cited) node.classList.add("cited");
    const marks = claim === "" ? [] : markSentences(cited, claim);
    this.#text.scrollTop = 0;
    const target = marks[0] ?? cited[0];
    const tall = target !== undefined && target.getBoundingClientRect().height > this.#text.clientHeight;
    target?.scrollIntoView({ block: tall ? "start" : "center" });
    this.#text.focus({ preventScroll: true });
  }
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
  return error.status === 404
    ? "The document has changed since: the cited passage is not in it any more."
    : "The passage could not be found just now: this is the document from its beginning.";
}

/**
 * [from, to) of a passage in the text, in UTF-16 units, or null where the text does not hold it.
 * @param {string} text
 * @param {Passage} passage
 * @returns {Span|null}
 */
function spanOf(text, passage) {
  const from = unitsOf(text, passage.start);
  if (text.startsWith(passage.text, from)) return [from, from + passage.text.length];
  const at = text.indexOf(passage.text);
  return at === -1 ? null : [at, at + passage.text.length];
}

/**
 * The service counts in code points, a string here in UTF-16 units.
 * @param {string} text
 * @param {number} codePoints
 */
function unitsOf(text, codePoints) {
  let at = 0;
  for (let left = codePoints; left > 0 && at < text.length; left -= 1) {
    at += Number(text.codePointAt(at)) > 0xffff ? 2 : 1;
  }
  return at;
}

/**
 * The document as it is, or the part of it around the passage; the passage is a node of its own.
 * @param {string} text
 * @param {Span|null} span
 */
function plainNodes(text, span) {
  const [from, to] = span ?? [0, 0];
  const first = Math.max(0, from - WINDOW_CHARS);
  const last = Math.min(text.length, to + WINDOW_CHARS);
  const passage = el("span", {}, text.slice(from, to));
  const body = el("p", { class: "plain" }, text.slice(first, from), passage, text.slice(to, last));
  const gap = () => el("p", { class: "hint" }, "This document goes on here; only the part around the passage is shown.");
  const nodes = [...(first > 0 ? [gap()] : []), body, ...(last < text.length ? [gap()] : [])];
  return { nodes, cited: span === null ? [] : [passage] };
}

/** @param {typeof import("./markdown.js")} markdown @param {string} text @param {Span|null} span */
function markdownNodes({ parse, render }, text, span) {
  const blocks = parse(text);
  const nodes = render(blocks);
  if (span === null) return { nodes, cited: [] };
  const [from, to] = span;
  const firstLine = lineOf(text, from);
  const lastLine = lineOf(text, from + text.slice(from, to).trimEnd().length);
  const words = wordsOf(text.slice(from, to));
  const cited = nodes.filter((_, at) => {
    const end = blocks[at + 1]?.line ?? Number.POSITIVE_INFINITY;
    return blocks[at].line <= lastLine && end > firstLine;
  });
  return { nodes, cited: cited.flatMap((node) => partsOf(node, words)) };
}

/** @param {string} text @param {number} at */
function lineOf(text, at) {
  let line = 0;
  for (let next = text.indexOf("\n"); next !== -1 && next < at; next = text.indexOf("\n", next + 1)) line += 1;
  return line;
}

/**
 * A long list or table may lie in several passages: the entries that are of this one, or all where none can be told.
 * @param {Element} node
 * @param {Set<string>} words
 */
function partsOf(node, words) {
  const parts = [...node.querySelectorAll(":scope > li, tr")];
  const own = parts.filter((part) => share(wordsOf(part.textContent), words) >= CONTAINED);
  return own.length === 0 ? [node] : own;
}

/** @param {string} text */
function wordsOf(text) {
  return new Set(text.toLowerCase().match(WORD) ?? []);
}

/**
 * How much of `some` is in `others`, 0 to 1.
 * @param {Set<string>} some
 * @param {Set<string>} others
 */
function share(some, others) {
  let common = 0;
  for (const word of some) common += Number(others.has(word));
  return some.size === 0 ? 0 : common / some.size;
}

/**
 * Marks what the claim repeats of the passage or, where it was put into other words, the sentences it is made of, or
 * @param {Element[]} cited
 * @param {string} claim
 * else the one most like it.
 * @returns {HTMLElement[]} the marks in order of the text
 */
function markSentences(cited, claim) {
  const leaves = [...leavesOf(cited).values()];
  for (const nodes of leaves) {
    const found = quoteIn(nodes, claim);
    if (found !== null) return wrap(nodes, found.from, found.to).reverse();
  }
  const wanted = wordsOf(claim);
  const sentences = leaves.flatMap(sentencesOf);
  for (const sentence of sentences) {
    const common = share(sentence.words, wanted) * sentence.words.size;
    sentence.contained = sentence.words.size >= LEAST_WORDS && common / sentence.words.size >= CONTAINED;
    sentence.alike = (2 * common) / (sentence.words.size + wanted.size || 1);
  }
  const contained = sentences.filter((sentence) => sentence.contained);
  const likest = sentences.reduce(
    (/** @type {Sentence|null} */ best, next) => (next.alike > (best?.alike ?? ALIKE) ? next : best),
    null,
  );
  const chosen = contained.length > 0 ? contained : likest === null ? [] : [likest];
  // From the last to the first: a mark splits the text nodes that those behind it are counted in.
  return chosen.reverse().flatMap(({ nodes, from, to }) => wrap(nodes, from, to)).reverse();
}

/**
 * Where the words of the claim stand in a row, with the punctuation behind them: {from, to} or null.
 * @param {Text[]} nodes
 * @param {string} claim
 * @returns {{from: number, to: number}|null}
 */
function quoteIn(nodes, claim) {
  const text = nodes.map((node) => node.data).join("");
  const wanted = [...claim.toLowerCase().matchAll(WORD)].map(([word]) => word);
  const words = [...text.matchAll(WORD)].map(({ 0: word, index }) => ({ word: word.toLowerCase(), index }));
  if (wanted.length === 0) return null;
  const at = words.findIndex((_, start) => wanted.every((word, next) => words[start + next]?.word === word));
  if (at === -1) return null;
  const last = words[at + wanted.length - 1];
  const end = last.index + last.word.length;
  return { from: words[at].index, to: end + (/^[^\p{L}\p{N}\s]*/u.exec(text.slice(end))?.[0].length ?? 0) };
}

/**
 * The text nodes in `roots`, by the block that they are the text of.
 * @param {Element[]} roots
 * @returns {Map<Element, Text[]>}
 */
function leavesOf(roots) {
  /** @type {Map<Element, Text[]>} */
  const leaves = new Map();
  for (const root of roots) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
      if (!(node instanceof Text) || node.parentElement?.closest("figcaption") !== null) continue;
      const leaf = node.parentElement.closest(LEAVES) ?? root;
      const known = leaves.get(leaf);
      if (known === undefined) leaves.set(leaf, [node]);
      else known.push(node);
    }
  }
  return leaves;
}

/** @param {Text[]} nodes @returns {Sentence[]} */
function sentencesOf(nodes) {
  const text = nodes.map((node) => node.data).join("");
  // A line that is wrapped in the file does not end its sentence; in code it does.
  const joined = nodes[0].parentElement?.closest("pre, .plain") === null ? text.replaceAll("\n", " ") : text;
  return [...SENTENCES.segment(joined)].map(({ segment, index }) => {
    const end = index + segment.trimEnd().length;
    return { nodes, from: index, to: end, words: wordsOf(segment), contained: false, alike: 0 };
  });
}

/**
 * Puts the characters [from, to) of the joined text nodes into marks.
 * @param {Text[]} nodes
 * @param {number} from
 * @param {number} to
 * @returns {HTMLElement[]}
 */
function wrap(nodes, from, to) {
  /** @type {HTMLElement[]} */
  const marks = [];
  let at = 0;
  for (const node of nodes) {
    const [first, last] = [Math.max(from - at, 0), Math.min(to - at, node.length)];
    at += node.length;
    if (first >= last) continue;
    const range = document.createRange();
    range.setStart(node, first);
    range.setEnd(node, last);
    const mark = el("mark");
    range.surroundContents(mark);
    marks.push(mark);
  }
  return marks.reverse();
}
