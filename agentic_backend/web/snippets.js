/** Where the words of a search stand, marked in the text that shows them. */

import { el } from "./dom.js";

/**
 * The text with each of the words marked, whichever case either has. Both are plain text.
 * @param {string} text
 * @param {string} words as they were typed
 * @returns {(Node|string)[]}
 */
export function marked(text, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const lower = text.toLowerCase();
  // A letter whose small form is longer moves what follows it: then nothing is marked rather than the wrong letters.
  if (lower.length !== text.length) return [text];
  const pieces = [];
  let from = 0;
  while (from < text.length) {
    const found = wanted.map((word) => ({ at: lower.indexOf(word, from), size: word.length })).filter(({ at }) => at >= 0);
    if (found.length === 0) break;
    const { at, size } = found.reduce((best, one) => (one.at < best.at || (one.at === best.at && one.size > best.size) ? one : best));
    if (at > from) pieces.push(text.slice(from, at));
    pieces.push(el("mark", {}, text.slice(at, at + size)));
    from = at + size;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}
