/** The sources of an answer: their markers in the text, the list under it, and where each of them leads. */

import { el, icon } from "./dom.js";
import { safeLink } from "./markdown/links.js";

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
const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });

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

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (error instanceof URIError) return text;
    throw error;
  }
}

/**
 * Where in its document a passage stands, in words; "" where nothing is known of it.
 * @param {{section?: string|null, page?: number|null}} place
 */
export function placeText({ section, page }) {
  return [section, page ? `page ${page}` : ""].filter(Boolean).join(" · ");
}

/**
 * The marker of a source in an answer.
 * @param {number} number
 * @param {Frames.SearchHit} source
 * @param {OpenSource} open is told the sentence that the marker stands behind, so that
 * the reader can show which one of the passage it rests on
 * @param {Frames.SearchHit} source
 */
export function citationButton(number, source, open) {
  const name = `Source ${number}: ${titleOf(source)}`;
  const button = el("button", { type: "button", class: "citation", "aria-label": name, title: name }, String(number));
  button.addEventListener("click", () => open(source, claimBefore(button)));
  return button;
}

/**
 * The last sentence between a marker and the one before it that has words in between; "" where there is none.
 * @param {Element} marker
 */
function claimBefore(marker) {
  const block = marker.closest(CLAIM_BLOCKS);
  if (block === null) return "";
  const markers = [...block.querySelectorAll(".citation")];
  const range = document.createRange();
  for (let at = markers.indexOf(marker) - 1; at >= -1; at -= 1) {
    if (at === -1) range.setStart(block, 0);
    else range.setStartAfter(markers[at]);
    range.setEndBefore(marker);
    const said = range.cloneContents();
    for (const other of said.querySelectorAll(".citation")) other.remove();
    const sentences = [...SENTENCES.segment(said.textContent.replaceAll("\n", " "))].map(({ segment }) => segment.trim());
    const claim = sentences.findLast((sentence) => /[\p{L}\p{N}]/u.test(sentence));
    if (claim !== undefined) return claim;
  }
  return "";
}

/** The list under an answer: number, title, place and score of each source; those the text cites stand out. */
export class SourceList {
  #open;
  #shown = "";

  /** @param {(source: Frames.SearchHit) => void} open */
  constructor(open) {
    this.#open = open;
    this.node = el("section", { class: "sources", "aria-label": "Sources", hidden: true });
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
    this.node.replaceChildren(el("h3", {}, icon("book"), "Sources"), el("ol", {}, items));
  }

  /** @param {Frames.SearchHit} source @param {number} number */
  #entry(source, number) {
    const score = Number.isFinite(source.score) ? source.score.toFixed(2) : "";
    // Several files may have one title.
    const file = source.file_name === titleOf(source) ? "" : source.file_name;
    const place = [file, placeText(source)].filter(Boolean).join(" · ");
    const words = [
      el("span", { class: "number", "aria-hidden": "true" }, String(number)),
      el(
        "span",
        { class: "source-words" },
        el("span", { class: "source-title" }, titleOf(source)),
        place === "" ? "" : el("span", { class: "source-place" }, place),
      ),
      score === "" ? "" : el("span", { class: "source-score", title: "Score" }, score),
    ];
    const label = [`Source ${number}: ${titleOf(source)}`, place].filter(Boolean).join(", ");
    // An address of the web is not a document of ours: it opens where it stands.
    if (/^https?:\/\//i.test(source.citation_url ?? "")) return safeLink(source.citation_url, words);
    return el("button", { type: "button", "aria-label": label, onclick: () => this.#open(source) }, words);
  }
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
