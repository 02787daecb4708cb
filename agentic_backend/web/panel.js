/**
 * A panel beside the conversation, whose width the person sets. Where there is no room beside it, the panel covers the
 * conversation like a dialog, and the focus stays in it.
 */

import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { width: "Width of the document" },
  fr: { width: "Largeur du document" },
});

const COVERS = matchMedia("(max-width: 1099px)");
/** Where the conversations are a drawer, which cannot be reached while it is shut (view.js). */
const DRAWER = matchMedia("(max-width: 800px)");
const WIDTH_KEY = "turnwise.reader.width";
const STEP_PX = 32;
const LEAST_PX = 320;
/** What the list of conversations and the conversation itself need beside it. */
const BESIDE_PX = 700;

export class Panel {
  #node;
  #handle;
  /** @type {Element|null} */
  #opener = null;
  /** @type {Set<HTMLElement>} what cannot be reached because the panel covers it */
  #covered = new Set();
  #closed;

  /** @param {HTMLElement} node @param {HTMLElement} handle @param {() => void} closed */
  constructor(node, handle, closed) {
    this.#node = node;
    this.#handle = handle;
    this.#closed = closed;
    handle.setAttribute("aria-label", t("width"));
    this.#wireHandle();
    COVERS.addEventListener("change", () => this.#settle());
    document.querySelector("#scrim")?.addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || !this.isOpen) return;
      // What lies above the panel closes first.
      if (document.querySelector("dialog[open]") === null && !document.body.classList.contains("drawer-open")) this.close();
    });
  }

  get isOpen() {
    return !this.#node.hidden;
  }

  /** Remembers where the focus is to go back to. */
  open() {
    const { activeElement } = document;
    if (!this.#node.contains(activeElement)) this.#opener = activeElement;
    if (this.isOpen) return;
    this.#node.hidden = false;
    document.body.classList.add("reading");
    this.#setWidth(Number.parseFloat(localStorage.getItem(WIDTH_KEY) ?? ""));
    this.#settle();
    // The conversation is narrower now, and its text has moved.
    if (!COVERS.matches) this.#opener?.scrollIntoView({ block: "nearest" });
  }

  close() {
    if (!this.isOpen) return;
    const { activeElement } = document;
    const leaves = activeElement === null || activeElement === document.body || this.#node.contains(activeElement);
    this.#node.hidden = true;
    document.body.classList.remove("reading");
    this.#settle();
    if (leaves) this.#giveBack();
    this.#opener = null;
    this.#closed();
  }

  /** To what opened the panel or, where that is gone, to the conversation. */
  #giveBack() {
    const opener = this.#opener;
    const there = opener instanceof HTMLElement && opener !== document.body && opener.checkVisibility();
    const to = there ? opener : document.querySelector("#log");
    if (to instanceof HTMLElement) to.focus();
  }

  /** A dialog where it covers the page, a part of the page where it stands beside the rest. */
  #settle() {
    const covers = this.isOpen && COVERS.matches;
    this.#node.setAttribute("role", covers ? "dialog" : "complementary");
    if (covers) this.#node.setAttribute("aria-modal", "true");
    else this.#node.removeAttribute("aria-modal");
    for (const node of this.#covered) node.inert = node.id === "sidebar" && DRAWER.matches;
    this.#covered.clear();
    if (!covers) return;
    for (const node of document.body.children) {
      const stays = node === this.#node || node.matches("#scrim, [role=status], dialog, script");
      if (!(node instanceof HTMLElement) || stays) continue;
      node.inert = true;
      this.#covered.add(node);
    }
    if (!this.#node.contains(document.activeElement)) this.#node.querySelector("button")?.focus();
  }

  #wireHandle() {
    const handle = this.#handle;
    handle.addEventListener("keydown", (event) => {
      const wanted = this.#widthAfter(event.key);
      if (wanted === null) return;
      event.preventDefault();
      this.#keepWidth(wanted);
    });
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
    });
    handle.addEventListener("pointermove", ({ pointerId, clientX }) => {
      if (handle.hasPointerCapture(pointerId)) this.#keepWidth(innerWidth - clientX);
    });
  }

  /** @param {string} key */
  #widthAfter(key) {
    const width = this.#node.offsetWidth;
    switch (key) {
      case "ArrowLeft":
        return width + STEP_PX;
      case "ArrowRight":
        return width - STEP_PX;
      case "Home":
        return LEAST_PX;
      case "End":
        return innerWidth;
      default:
        return null;
    }
  }

  /** @param {number} wanted */
  #keepWidth(wanted) {
    const width = Math.round(Math.min(Math.max(wanted, LEAST_PX), innerWidth - BESIDE_PX));
    localStorage.setItem(WIDTH_KEY, String(width));
    this.#setWidth(width);
  }

  /** @param {number} width in pixels; NaN for what the style sheet says */
  #setWidth(width) {
    if (!Number.isNaN(width)) document.body.style.setProperty("--reader", `${width}px`);
    const [least, most] = [LEAST_PX, Math.max(LEAST_PX, innerWidth - BESIDE_PX)];
    const share = Math.round((100 * (this.#node.offsetWidth - least)) / (most - least || 1));
    this.#handle.setAttribute("aria-valuenow", String(Math.min(100, Math.max(0, share))));
  }
}
