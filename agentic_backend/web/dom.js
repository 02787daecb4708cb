/** Making DOM nodes without ever parsing HTML: elements, icons, what several views share: the copy button, a clock. */

/**
 * @typedef {keyof typeof ICON_PATHS} IconName
 * @typedef {Node|string|Child[]} Child
 */

import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { copy: "Copy", copied: "Copied", notCopied: "Not copied" },
  fr: { copy: "Copier", copied: "Copié", notCopied: "Échec de la copie" },
});

const SVG = "http://www.w3.org/2000/svg";

const ICON_PATHS = {
  plus: "M12 5v14M5 12h14",
  back: "M19 12H5M11 6l-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M4 7h16M9 7V4.5h6V7M6.5 7l1 12.5h9l1-12.5M10 11v5M14 11v5",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  clip: "M8.5 12.5l6-6a3 3 0 0 1 4.3 4.3l-8 8a5 5 0 0 1-7.1-7.1l7.6-7.6",
  alert: "M12 8v5M12 16.2v.2M12 3.5l9 16H3z",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  pencil: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  down: "M12 5v14M6 13l6 6 6-6",
  link: "M10 14a4 4 0 0 0 5.7 0l3-3A4 4 0 0 0 13 5.3l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.7l1-1",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  like: "M7 11v9H4v-9zM7 11l4-7c1.5 0 2.5 1 2.2 2.6L12.6 10H18c1.4 0 2.3 1.2 2 2.5l-1.4 6c-.2.9-1 1.5-2 1.5H7",
  dislike: "M7 13V4H4v9zM7 13l4 7c1.5 0 2.5-1 2.2-2.6L12.6 14H18c1.4 0 2.3-1.2 2-2.5l-1.4-6c-.2-.9-1-1.5-2-1.5H7",
  more: "M12 6v.2M12 12v.2M12 18v.2",
  pin: "M9 4h6l-1 6 3 3.5H7L10 10zM12 13.5V20",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.3 15.3L20 20",
  book: "M12 6.5C10 5 7 4.5 4 5v13c3-.5 6 0 8 1.5 2-1.5 5-2 8-1.5V5c-3-.5-6 0-8 1.5zM12 6.5v13",
  thought: "M9.5 18h5M10 21h4M12 3a6 6 0 0 0-3.8 10.6c.8.7 1.3 1.5 1.3 2.4h5c0-.9.5-1.7 1.3-2.4A6 6 0 0 0 12 3z",
  person: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4.5 20.5c.7-3.6 3.7-5.5 7.5-5.5s6.8 1.9 7.5 5.5",
  folder: "M3.5 18.5v-13h6l2 2.5h9v10.5z",
  upload: "M12 16V5M7 9.5l5-5 5 5M5 20h14",
  share: "M12 15V4M8 7.5L12 3.5l4 4M6 11v9h12v-9",
  find: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20.5 20.5",
  move: "M4 12h15M13.5 6.5L19 12l-5.5 5.5",
  tool: "M14.5 6.5a4 4 0 0 0-5.3 5.1L4 16.8 7.2 20l5.2-5.2a4 4 0 0 0 5.1-5.3l-2.6 2.6-2.4-.6-.6-2.4z",
};

/**
 * An element. Attributes whose value is null, undefined or false are left out; `onclick` and the like are listeners.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} attributes
 * @param {...Child} children strings become text nodes; pass a long list as an array, not spread
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return fill(node, children);
}

/**
 * Appends children, arrays of them included, one by one: engines limit the number of arguments.
 * @template {Element} T
 * @param {T} node
 * @param {Child[]} children
 */
export function fill(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) fill(node, child);
    else node.append(child);
  }
  return node;
}

/**
 * A decorative 24 × 24 icon in the colour of the text.
 * @param {IconName} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICON_PATHS[name]);
  svg.append(path);
  return svg;
}

const AGENT_HUES = 8;
const TICK_MS = 250;

/**
 * Makes an element the icon of an agent: the first letter of its name, on a colour that its id gives it.
 * @param {HTMLElement} node
 * @param {string} id
 * @param {string} name
 */
export function markAgent(node, id, name) {
  let sum = 0;
  for (const char of id) sum = (sum * 31 + (char.codePointAt(0) ?? 0)) % 65_521;
  node.style.setProperty("--own", `var(--hue-${sum % AGENT_HUES})`);
  node.textContent = [...name.trim()][0]?.toLocaleUpperCase() ?? "";
}

/**
 * A button that copies what `read` returns and says so for a moment.
 * @param {() => string} read
 * @param {string} label
 */
export function copyButton(read, label = t("copy")) {
  const button = el("button", { type: "button", class: "quiet small copy", "aria-label": label, title: label });
  /** @param {IconName} name @param {string} text */
  const show = (name, text) => button.replaceChildren(icon(name), el("span", {}, text));
  show("copy", t("copy"));
  button.addEventListener("click", async () => {
    const copied = await copyText(read());
    show(copied ? "check" : "alert", t(copied ? "copied" : "notCopied"));
    setTimeout(() => show("copy", t("copy")), 1600);
  });
  return button;
}

/** @param {string} text */
async function copyText(text) {
  if (navigator.clipboard !== undefined) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
    }
  }
  return copyBySelection(text);
}

/**
 * The way that also works on plain http addresses other than this machine's, where there is no clipboard object.
 * @param {string} text
 */
function copyBySelection(text) {
  const field = el("textarea", { class: "visually-hidden", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}

/** Calls `show` four times a second while `node` is on the page. */
export class Clock {
  #node;
  #show;
  /** @type {number|undefined} */
  #timer;

  /** @param {Node} node @param {() => void} show */
  constructor(node, show) {
    this.#node = node;
    this.#show = show;
  }

  start() {
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** What nobody sees needs no clock: the next `start` begins it again. */
  #tick() {
    if (this.#node.isConnected) this.#show();
    else this.stop();
  }
}
