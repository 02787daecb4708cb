/** A notice of something that was done and can still be undone. */

/** @typedef {{text: string, undo: () => void, done: () => void, leave: () => void}} Undoable */
import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { undo: "Undo", close: "Close", label: "What was just done" },
  fr: { undo: "Annuler", close: "Fermer", label: "Ce qui vient d'être fait" },
});

const OPEN_MS = 8_000;

/** Shows one at a time; what it shows takes effect after 8 s, when another one comes, or when the page is left. */
export class UndoNotice {
  #node = el("div", { id: "undo", role: "region", "aria-label": t("label"), hidden: true });
  /** @type {Undoable|null} */
  #open = null;
  #timer = 0;

  constructor() {
    document.body.append(this.#node);
    addEventListener("pagehide", () => {
      const open = this.#take();
      open?.leave();
    });
  }

  /**
   * `done` is called where nothing undoes it, `leave` instead where the page goes before.
   * @param {Undoable} undoable
   */
  offer(undoable) {
    this.settle();
    this.#open = undoable;
    const text = el("span", { id: "undo-text", dir: "auto" }, undoable.text);
    const again = el("button", { type: "button", class: "small", "aria-describedby": "undo-text" }, t("undo"));
    again.addEventListener("click", () => this.#take()?.undo());
    const close = el("button", { type: "button", class: "quiet icon-button", "aria-label": t("close") }, icon("close"));
    close.addEventListener("click", () => this.settle());
    this.#node.replaceChildren(text, again, close);
    this.#node.hidden = false;
    this.#timer = setTimeout(() => this.settle(), OPEN_MS);
    this.focus();
  }

  /** The keyboard is at what undoes. */
  focus() {
    this.#node.querySelector("button")?.focus();
  }

  /** What is shown takes effect now. */
  settle() {
    this.#take()?.done();
  }

  #take() {
    const open = this.#open;
    const focused = this.#node.contains(document.activeElement);
    clearTimeout(this.#timer);
    this.#open = null;
    this.#node.hidden = true;
    // What was deleted is gone, and its row with it: the keyboard goes to what is read.
    if (focused) document.querySelector(/** @type {"main"} */ ("#place:not([hidden]), main:not(.at-place) #log"))?.focus();
    return open;
  }
}
