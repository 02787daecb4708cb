/** The menu of a row: one for the whole list, opened beside the button that asks for it. */

/** @import { IconName } from "./dom.js" */
import { el, icon } from "./dom.js";

const GAP_PX = 4;

/** @typedef {{icon: IconName, label: string, act: () => void}} Choice */

/** A menu of choices, moved through by arrow keys; it closes by Escape, Tab, a choice, or a press beside it. */
export class RowMenu {
  #node = el("div", { class: "row-menu", role: "menu", popover: "auto" });
  /** @type {HTMLElement|null} */
  #button = null;

  /** @param {HTMLElement} host which the menu belongs to */
  constructor(host) {
    host.append(this.#node);
    this.#node.addEventListener("keydown", (event) => this.#onKey(event));
    this.#node.addEventListener("toggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState === "closed") this.#button?.setAttribute("aria-expanded", "false");
    });
    // It belongs beside its button, which scrolling moves away.
    host.addEventListener("scroll", () => this.#close(), { capture: true, passive: true });
  }

  /**
   * @param {HTMLElement} button the menu's button, which gets the focus back
   * @param {string} label
   * @param {Choice[]} choices
   */
  open(button, label, choices) {
    this.#close();
    this.#button = button;
    this.#node.setAttribute("aria-label", label);
    this.#node.replaceChildren(...choices.map((choice) => this.#item(choice)));
    this.#node.showPopover();
    button.setAttribute("aria-expanded", "true");
    this.#place(button);
    this.#items[0]?.focus();
  }

  /** @param {HTMLElement} button */
  #place(button) {
    const { right, bottom, top } = button.getBoundingClientRect();
    const { width, height } = this.#node.getBoundingClientRect();
    const below = bottom + GAP_PX + height <= innerHeight;
    this.#node.style.left = `${Math.max(GAP_PX, Math.min(right - width, innerWidth - width - GAP_PX))}px`;
    this.#node.style.top = `${below ? bottom + GAP_PX : Math.max(GAP_PX, top - GAP_PX - height)}px`;
  }

  #close() {
    if (this.#node.matches(":popover-open")) this.#node.hidePopover();
  }

  get #items() {
    return [.../** @type {NodeListOf<HTMLElement>} */ (this.#node.querySelectorAll("[role=menuitem]"))];
  }

  /** @param {Choice} choice */
  #item({ icon: name, label, act }) {
    const item = el("button", { type: "button", role: "menuitem", tabindex: "-1", class: "quiet" }, icon(name), label);
    item.addEventListener("click", () => {
      const button = this.#button;
      this.#close();
      button?.focus();
      act();
    });
    return item;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const items = this.#items;
    const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    /** @type {Record<string, number>} */
    const next = { ArrowDown: (at + 1) % items.length, ArrowUp: (at - 1 + items.length) % items.length, Home: 0, End: -1 };
    if (event.key === "Escape" || event.key === "Tab") {
      this.#close();
      this.#button?.focus();
    } else if (Object.hasOwn(next, event.key)) {
      items.at(next[event.key])?.focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
