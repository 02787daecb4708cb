/** A document as nodes, as untrusted as an answer: its passage told apart, its headings in order, its links inert. */

/**
 * @import { Passage } from "./api.js"
 * @import { Block } from "./markdown.js"
 * @import { Token } from "/web/vendor/markdown-it/markdown-it.min.js"
 */

import { el } from "./dom.js";
import { catalogue } from "./i18n.js";
import { parse, render } from "./markdown.js";
import { decoded } from "./markdown/links.js";

/**
 * @typedef {[number, number]} Span from the one to before the other, in UTF-16 units
 * @typedef {{nodes: HTMLElement[], passage: Element[]}} Shown
 * @typedef {(address: string, label: Node[]) => Node} LinkTo the node of a relative link
 */

const t = catalogue({
  en: {
    goesOn: "This document goes on here; only the part around the passage is shown.",
    noImages: "Images of a document are not shown.",
  },
  fr: {
    goesOn: "Le document continue ici ; seule la partie autour du passage est affichée.",
    noImages: "Les images d'un document ne sont pas affichées.",
  },
});

/** A document above this is shown as plain text around the passage: its nodes would take the page seconds. */
const MAX_MARKDOWN_CHARS = 400_000;
const WINDOW_CHARS = 60_000;
/** How much of an entry of a list or table must be in the passage for it to be of the passage. */
const CONTAINED = 0.85;
const WORD = /[\p{L}\p{N}]+/gu;
/** A relative address stands behind this one until it is known what becomes of it; nothing answers there. */
const SET_ASIDE = "https://relative.invalid/";

/**
 * @param {string} text
 * @param {Span|null} span of the passage
 * @param {string|null} mime
 * @param {LinkTo} linkTo
 * @returns {Shown}
 */
export function showDocument(text, span, mime, linkTo) {
  const plain = mime === "text/plain" || text.length > MAX_MARKDOWN_CHARS;
  return plain ? plainNodes(text, span) : markdownNodes(text, span, linkTo);
}

/**
 * [from, to) of a passage in the text, in UTF-16 units, or null where the text does not hold it.
 * @param {string} text
 * @param {Passage} passage
 * @returns {Span|null}
 */
export function spanOf(text, passage) {
  const from = unitsOf(text, passage.start);
  if (text.startsWith(passage.text, from)) return [from, from + passage.text.length];
  const at = text.indexOf(passage.text);
  return at === -1 ? null : [at, at + passage.text.length];
}

/**
 * The heading that the part of an address behind `#` names, as the addresses of headings are commonly made.
 * @param {Element} root
 * @param {string} fragment
 * @returns {HTMLElement|null}
 */
export function headingAt(root, fragment) {
  const wanted = slugOf(decoded(fragment));
  /** @type {Map<string, number>} */
  const seen = new Map();
  for (const heading of headingsIn(root)) {
    const slug = slugOf(heading.textContent);
    const times = seen.get(slug) ?? 0;
    seen.set(slug, times + 1);
    if ((times === 0 ? slug : `${slug}-${times}`) === wanted) return heading;
  }
  return null;
}

/** @param {string} text */
function slugOf(text) {
  const words = text.normalize().trim().toLowerCase();
  return words.replace(/[^\p{L}\p{M}\p{N}\s_-]/gu, "").replace(/\s/gu, "-");
}

/** @param {Element} root @returns {HTMLElement[]} */
function headingsIn(root) {
  return [.../** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("h3, h4, h5, h6"))];
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
 * @returns {Shown}
 */
function plainNodes(text, span) {
  const [from, to] = span ?? [0, 0];
  const first = Math.max(0, from - WINDOW_CHARS);
  const last = Math.min(text.length, to + WINDOW_CHARS);
  const passage = el("span", {}, text.slice(from, to));
  const body = el("p", { class: "plain" }, text.slice(first, from), passage, text.slice(to, last));
  const gap = () => el("p", { class: "hint" }, t("goesOn"));
  const nodes = [...(first > 0 ? [gap()] : []), body, ...(last < text.length ? [gap()] : [])];
  return { nodes, passage: span === null ? [] : [passage] };
}

/** @param {string} text @param {Span|null} span @param {LinkTo} linkTo @returns {Shown} */
function markdownNodes(text, span, linkTo) {
  const blocks = parse(text);
  setAside(blocks);
  orderHeadings(blocks);
  const nodes = render(blocks);
  const whole = el("div", {}, nodes);
  putLinks(whole, linkTo);
  if (span === null) return { nodes, passage: [] };
  const [from, to] = span;
  const firstLine = lineOf(text, from);
  const lastLine = lineOf(text, from + text.slice(from, to).trimEnd().length);
  const words = wordsOf(text.slice(from, to));
  const passage = nodes.filter((_, at) => {
    const end = blocks[at + 1]?.line ?? Number.POSITIVE_INFINITY;
    return blocks[at].line <= lastLine && end > firstLine;
  });
  return { nodes, passage: passage.flatMap((node) => partsOf(node, words)) };
}

/**
 * All tokens of blocks, those within others too.
 * @param {{tokens: Token[]}[]} blocks
 * @returns {Generator<Token>}
 */
function* tokensIn(blocks) {
  for (const token of blocks.flatMap(({ tokens }) => tokens)) {
    yield token;
    if (token.children !== null) yield* tokensIn([{ tokens: token.children }]);
  }
}

/**
 * Keeps relative addresses from being read as addresses of this page: they mean files beside the document.
 * @param {Block[]} blocks
 */
function setAside(blocks) {
  for (const token of tokensIn(blocks)) {
    const kind = token.type === "image" ? "image" : "link";
    const name = kind === "image" ? "src" : "href";
    const address = token.type === "image" || token.type === "link_open" ? token.attrGet(name) : null;
    if (address === null || !isRelative(address)) continue;
    token.attrSet(name, `${SET_ASIDE}${kind}?${encodeURIComponent(decoded(address).replace(/\p{Surrogate}/gu, ""))}`);
  }
}

/** @param {string} address */
function isRelative(address) {
  return !/^(?:[a-z][a-z0-9+.-]*:|\/\/|\\)/i.test(address.trim());
}

/** @param {Element} whole @param {LinkTo} linkTo */
function putLinks(whole, linkTo) {
  for (const image of whole.querySelectorAll("img")) image.replaceWith(deadLink([image.alt], t("noImages")));
  for (const link of whole.querySelectorAll("a")) {
    if (!link.href.startsWith(SET_ASIDE)) continue;
    const { pathname, search } = new URL(link.href);
    const label = [...link.childNodes];
    link.replaceWith(pathname === "/image" ? deadLink(label, t("noImages")) : linkTo(decoded(search.slice(1)), label));
  }
}

/**
 * What a link says, where it leads nowhere, with the reason.
 * @param {(Node|string)[]} label
 * @param {string} reason
 */
export function deadLink(label, reason) {
  return el("span", { class: "dead-link", title: reason }, label, el("span", { class: "visually-hidden" }, ` (${reason})`));
}

/**
 * A document may leave out levels of headings, which those who find their way by them would miss.
 * @param {Block[]} blocks
 */
function orderHeadings(blocks) {
  /** @type {number[]} levels of the headings that the next one stands under */
  const above = [];
  for (const token of tokensIn(blocks)) {
    if (token.type === "heading_open") {
      const level = Number(token.tag.slice(1));
      while ((above.at(-1) ?? 0) >= level) above.pop();
      above.push(level);
      token.tag = `h${above.length}`;
    } else if (token.type === "heading_close") {
      token.tag = `h${above.length}`;
    }
  }
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
  const own = parts.filter((part) => shareOf(wordsOf(part.textContent), words) >= CONTAINED);
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
function shareOf(some, others) {
  let common = 0;
  for (const word of some) common += Number(others.has(word));
  return some.size === 0 ? 0 : common / some.size;
}
