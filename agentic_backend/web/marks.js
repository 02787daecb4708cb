/** Marks in the nodes of a passage what a claim rests on. */

import { el } from "./dom.js";
import { sentencesIn, supporting, wordsIn } from "./sentences.js";

/**
 * @typedef {{nodes: Text[], from: number, to: number, text: string}} Sentence characters of the joined text of its nodes
 */

/** A row is one statement, however many cells it has. */
const LEAVES = "tr, p, li, h3, h4, h5, h6, pre, .plain";
/** Letters of a claim from which on its words in a row are no coincidence. */
const QUOTED_CHARS = 16;

/**
 * Marks what the claim repeats word by word or, where it was put into other words, the sentences that support it best.
 * @param {Element[]} passage
 * @param {string} claim
 * @returns {HTMLElement[]} the marks in order of the text; none where no sentence is alike enough
 */
export function markSentences(passage, claim) {
  const leaves = leavesOf(passage);
  for (const [leaf, nodes] of leaves) {
    const found = leaf.matches("tr") ? null : quoteIn(nodes, claim);
    if (found !== null) return wrap(nodes, found.from, found.to);
  }
  const sentences = [...leaves].flatMap(([leaf, nodes]) => sentencesOf(leaf, nodes));
  const chosen = supporting(sentences.map(({ text }) => text), claim).map((at) => sentences[at]);
  // From the last to the first: a mark splits the text nodes that those behind it are counted in.
  return chosen.reverse().map(({ nodes, from, to }) => wrap(nodes, from, to)).reverse().flat();
}

/**
 * Where the words of the claim stand in a row, with the punctuation behind them: {from, to} or null.
 * @param {Text[]} nodes
 * @param {string} claim
 * @returns {{from: number, to: number}|null}
 */
function quoteIn(nodes, claim) {
  const wanted = wordsIn(claim);
  if (wanted.reduce((chars, { word }) => chars + word.length, 0) < QUOTED_CHARS) return null;
  const text = joined(nodes);
  const words = wordsIn(text);
  const at = words.findIndex((_, start) => wanted.every(({ word }, next) => words[start + next]?.word === word));
  if (at === -1) return null;
  const { to } = words[at + wanted.length - 1];
  return { from: words[at].from, to: to + (/^[^\p{L}\p{N}\s]*/u.exec(text.slice(to))?.[0].length ?? 0) };
}

/** @param {Text[]} nodes */
function joined(nodes) {
  return nodes.map(({ data }) => data).join("");
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

/** @param {Element} leaf @param {Text[]} nodes @returns {Sentence[]} */
function sentencesOf(leaf, nodes) {
  const text = joined(nodes);
  if (leaf.matches("tr")) return [{ nodes, from: 0, to: text.length, text: nodes.map(({ data }) => data).join(" ") }];
  // A line that is wrapped in the file does not end its sentence; in code it does.
  const running = leaf.closest("pre, .plain") === null ? text.replaceAll("\n", " ") : text;
  return sentencesIn(running).map(({ from, to }) => ({ nodes, from, to, text: running.slice(from, to) }));
}

/**
 * Puts the characters [from, to) of the joined text nodes into marks.
 * @param {Text[]} nodes
 * @param {number} from
 * @param {number} to
 * @returns {HTMLElement[]} in order of the text
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
  return marks;
}
