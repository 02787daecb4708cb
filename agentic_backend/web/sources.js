/** The sources of an answer: their markers in the text, the list under it, and where each of them leads. */

import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";
import { decoded, safeLink } from "./markdown/links.js";
import { sentencesIn, wordsIn } from "./sentences.js";

const t = catalogue({
  en: {
    sources: "Sources",
    source: "Source",
    marker: "Source {number}: {title}",
    page: "page {page}",
    score: "Score",
    more: { one: "{count} more source that was searched", other: "{count} more sources that were searched" },
    searched: { one: "{count} source that was searched", other: "{count} sources that were searched" },
  },
  fr: {
    sources: "Sources",
    source: "Source",
    marker: "Source {number} : {title}",
    page: "page {page}",
    score: "Score",
    more: { one: "{count} autre source consultée", other: "{count} autres sources consultées" },
    searched: { one: "{count} source consultée", other: "{count} sources consultées" },
  },
});

/**
 * @typedef {object} Place a place in a document
 * @property {string} documentUid
 * @property {string|null} chunkUid null where only the document is known
 * @property {string} [title] this and the rest is what the source says of itself
 * @property {string|null} [section]
 * @property {number|null} [page]
 * @typedef {(source: Frames.SearchHit, claim: string) => void} OpenSource
 */

const CITED = /\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?!\()/g;
const DOCUMENT_PATH = /^\/documents\/([^/]{1,512})$/;
const CHUNK = /^#chunk=([^&]{1,512})$/;
const CLAIM_BLOCKS = "p, li, td, th, h3, h4, h5, h6, blockquote";
/** A piece of a sentence with fewer words says too little to be found in a document. */
const LEAST_WORDS = 4;

/**
 * The place in a document that a source is.
 * @param {Frames.SearchHit} source
 * @returns {Place}
 */
export function placeOf(source) {
  const { title = "", section = "", page = null } = source;
  const cited = source.citation_url ?? "";
  const address = URL.canParse(cited, location.origin) ? placeInAddress(new URL(cited, location.origin)) : null;
  return { documentUid: source.uid, chunkUid: null, ...address, title, section, page };
}

/**
 * The place that an address of the form `/documents/{uid}#chunk={chunk_uid}` names, or null.
 * @param {{pathname: string, hash: string}} address
 * @returns {Place|null}
 */
export function placeInAddress({ pathname, hash }) {
  const document = DOCUMENT_PATH.exec(pathname);
  if (document === null) return null;
  const chunk = CHUNK.exec(hash);
  return { documentUid: decoded(document[1]), chunkUid: chunk === null ? null : decoded(chunk[1]) };
}

/**
 * Where in its document a passage stands, in words; "" where nothing is known of it.
 * @param {{section?: string|null, page?: number|null}} place
 */
export function placeText({ section, page }) {
  return [section, page ? t("page", { page: String(page) }) : ""].filter(Boolean).join(" · ");
}

/**
 * The marker of a source in an answer.
 * @param {number} number
 * @param {Frames.SearchHit} source
 * @param {OpenSource} open gets the sentence that the marker follows, so that
 * the reader can show which one of the passage it rests on
 */
export function citationButton(number, source, open) {
  const name = t("marker", { number, title: titleOf(source) });
  const button = el("button", { type: "button", class: "citation", "aria-label": name, title: name }, String(number));
  button.addEventListener("click", () => open(source, claimBefore(button)));
  return button;
}

/**
 * What a marker stands for: the sentence, or the piece of one, between it and the marker before. Where that says too
 * little, as between two markers in a row or at the beginning of a sentence, it is all of the sentence.
 * @param {Element} marker
 */
function claimBefore(marker) {
  const block = marker.closest(CLAIM_BLOCKS);
  if (block === null) return "";
  const markers = [...block.querySelectorAll(".citation")];
  const at = markers.indexOf(marker);
  const piece = lastSentence(wordsBetween(block, markers[at - 1], marker));
  return wordsIn(piece).length >= LEAST_WORDS ? piece : sentenceAround(block, marker) || piece;
}

/**
 * The text from behind one node to before another, without markers; from the beginning or to the end of the block
 * where there is no such node.
 * @param {Element} block
 * @param {Element|undefined} first
 * @param {Element|undefined} last
 */
function wordsBetween(block, first, last) {
  const range = document.createRange();
  range.selectNodeContents(block);
  if (first !== undefined) range.setStartAfter(first);
  if (last !== undefined) range.setEndBefore(last);
  const said = range.cloneContents();
  for (const marker of said.querySelectorAll(".citation")) marker.remove();
  return said.textContent.replaceAll("\n", " ");
}

/** @param {string} text */
function lastSentence(text) {
  const said = sentencesIn(text).map(({ from, to }) => text.slice(from, to));
  return said.findLast((sentence) => /[\p{L}\p{N}]/u.test(sentence)) ?? "";
}

/** @param {Element} block @param {Element} marker */
function sentenceAround(block, marker) {
  const before = wordsBetween(block, undefined, marker);
  const text = before + wordsBetween(block, marker, undefined);
  const end = before.trimEnd().length;
  const around = sentencesIn(text).findLast(({ from }) => from < end) ?? sentencesIn(text)[0];
  return around === undefined ? "" : text.slice(around.from, around.to);
}

/** The list under an answer: number, title, place and score of each source; those that the text does not cite are folded. */
export class SourceList {
  #open;
  #shown = "";

  /** @param {(source: Frames.SearchHit) => void} open */
  constructor(open) {
    this.#open = open;
    this.node = el("div", { class: "sources", role: "group", "aria-label": t("sources"), hidden: true });
  }

  /**
   * Shows the sources of an answer whose text is `text`.
   * @param {Frames.SearchHit[]} sources
   * @param {string} text
   */
  show(sources, text) {
    const cited = citedNumbers(text);
    const key = JSON.stringify([sources.map((source) => source.citation_url ?? source.uid), [...cited]]);
    if (key === this.#shown) return;
    this.#shown = key;
    this.node.hidden = sources.length === 0;
    const items = sources.map((source, at) => {
      return el("li", { class: cited.has(at + 1) ? "cited" : "" }, this.#entry(source, at + 1));
    });
    const used = items.filter((_, at) => cited.has(at + 1));
    const others = items.filter((_, at) => !cited.has(at + 1));
    this.node.replaceChildren(
      el("h3", {}, icon("book"), t("sources")),
      ...(used.length === 0 ? [] : [el("ol", {}, used)]),
      ...(others.length === 0 ? [] : [folded(others, used.length > 0)]),
    );
  }

  /** @param {Frames.SearchHit} source @param {number} number */
  #entry(source, number) {
    const score = Number.isFinite(source.score) ? source.score.toFixed(2) : "";
    // Several files may have one title.
    const file = source.file_name === titleOf(source) ? "" : source.file_name;
    const place = [file, placeText(source)].filter(Boolean).join(" · ");
    const words = [
      el("span", { class: "visually-hidden" }, `${t("source")} `),
      el("span", { class: "number" }, String(number)),
      el(
        "span",
        { class: "source-words" },
        el("span", { class: "source-title" }, titleOf(source)),
        place === "" ? "" : el("span", { class: "source-place" }, place),
      ),
      score === "" ? "" : el("span", { class: "source-score", title: t("score") }, score),
    ];
    // An address of the web is not a document of ours: it opens where it stands.
    if (/^https?:\/\//i.test(source.citation_url ?? "")) return safeLink(source.citation_url, words);
    return el("button", { type: "button", onclick: () => this.#open(source) }, words);
  }
}

/** @param {HTMLElement[]} items @param {boolean} more whether others stand above them */
function folded(items, more) {
  const text = t(more ? "more" : "searched", { count: items.length });
  return el("details", { class: "sources-more" }, el("summary", {}, text), el("ol", {}, items));
}

/** @param {string} text */
function citedNumbers(text) {
  const numbers = [...text.matchAll(CITED)].flatMap(([, list]) => list.split(/[,;]/));
  return new Set(numbers.map((number) => Number.parseInt(number, 10)));
}

/** @param {Frames.SearchHit} source */
function titleOf(source) {
  return source.title || source.file_name || source.uid;
}
