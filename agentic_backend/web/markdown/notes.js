/** Footnotes: a text stands where it was written, and its markers lead there and back. */

import { el } from "../dom.js";
import { catalogue } from "../i18n.js";

const t = catalogue({
  en: { note: "Footnote {label}", back: "Back to the text" },
  fr: { note: "Note {label}", back: "Retour au texte" },
});

/**
 * The box of a note's text, and the part of it that takes the text.
 * @param {string} label
 * @returns {[HTMLElement, HTMLElement]}
 */
export function noteBox(label) {
  const text = el("div", { class: "note-text" });
  const onclick = () => firstMarker(box, label)?.focus();
  const back = el("button", { type: "button", class: "quiet small", "aria-label": t("back"), title: t("back"), onclick }, "↩");
  const name = el("span", { class: "note-label" }, label);
  const attributes = { class: "footnote", role: "note", tabindex: "-1", "aria-label": t("note", { label }), "data-note": label };
  const box = el("div", attributes, name, text, back);
  return [box, text];
}

/**
 * The marker of a note: its text, until the note itself is there too.
 * @param {string} label
 */
export function noteMarker(label) {
  return el("span", { class: "note-marker", "data-marker": label }, `[^${label}]`);
}

/**
 * Which notes and markers are shown. A marker is a button while its note is there, and else the text that it was: `[^0-9]`
 * may be no marker at all, and a note may come long after its marker.
 */
export class Notes {
  /** @type {Map<string, Set<HTMLElement>>} by label */
  #markers = new Map();
  /** @type {Map<string, number>} how many texts a label has */
  #texts = new Map();

  /** @param {HTMLElement} block */
  add(block) {
    for (const box of boxesOf(block)) this.#count(box, 1);
    for (const marker of markersOf(block)) {
      const label = String(marker.dataset.marker);
      const known = this.#markers.get(label);
      if (known === undefined) this.#markers.set(label, new Set([marker]));
      else known.add(marker);
      showMarker(marker, this.#texts.has(label));
    }
  }

  /** @param {HTMLElement} block */
  remove(block) {
    for (const box of boxesOf(block)) this.#count(box, -1);
    for (const marker of markersOf(block)) this.#markers.get(String(marker.dataset.marker))?.delete(marker);
  }

  /** @param {HTMLElement} box @param {number} change */
  #count(box, change) {
    const label = String(box.dataset.note);
    const before = this.#texts.get(label) ?? 0;
    if (before + change > 0) this.#texts.set(label, before + change);
    else this.#texts.delete(label);
    if (before > 0 && before + change > 0) return;
    for (const marker of this.#markers.get(label) ?? []) showMarker(marker, before === 0);
  }
}

/** @param {HTMLElement} block */
function boxesOf(block) {
  return block.dataset.note === undefined ? [] : [block]; // only at the top level
}

/** @param {HTMLElement} block @returns {NodeListOf<HTMLElement>} */
function markersOf(block) {
  return block.querySelectorAll("[data-marker]");
}

/** @param {HTMLElement} marker @param {boolean} bound */
function showMarker(marker, bound) {
  const label = String(marker.dataset.marker);
  if (!bound) return marker.replaceChildren(`[^${label}]`);
  const onclick = () => all(marker, "[data-note]").find((box) => box.dataset.note === label)?.focus();
  const name = t("note", { label });
  return marker.replaceChildren(el("sup", {}, el("button", { type: "button", "aria-label": name, title: name, onclick }, label)));
}

/** @param {HTMLElement} box @param {string} label */
function firstMarker(box, label) {
  return all(box, "[data-marker]").find((node) => node.dataset.marker === label)?.querySelector("button");
}

/** @param {HTMLElement} node @param {string} selector */
function all(node, selector) {
  const text = node.closest(".markdown") ?? node;
  return [.../** @type {NodeListOf<HTMLElement>} */ (text.querySelectorAll(selector))];
}
