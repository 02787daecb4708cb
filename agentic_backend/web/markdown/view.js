/**
 * The Markdown of an answer in a container of its own. What understands Markdown is fetched with the first of them, since
 * it is half of what the page needs and a page that was only just opened shows none: until then the text stands there
 * as it is.
 */

/** @import { Cite, MarkdownStream } from "../markdown.js" */

/** @type {typeof import("../markdown.js")|null} */
let markdown = null;
/** @type {Promise<typeof import("../markdown.js")|null>|null} */
let loading = null;

/** Fetches what understands Markdown; null where that fails: texts stay as they are, and the next one tries again. */
export function loadMarkdown() {
  loading ??= import("../markdown.js").then(
    (module) => {
      markdown = module;
      return module;
    },
    () => {
      loading = null;
      return null;
    },
  );
  return loading;
}

/** Shows a text that grows. Dispatches `grown` when it becomes larger without a new text. */
export class MarkdownView {
  #container;
  #cite;
  #text = "";
  /** @type {MarkdownStream|null} */
  #stream = null;

  /**
   * @param {HTMLElement} container emptied and filled by `update`
   * @param {Cite} [cite] the marker of a source; call `reset` when its answers change
   */
  constructor(container, cite) {
    this.#container = container;
    this.#cite = cite;
    if (markdown === null) loadMarkdown().then(() => this.#arrived());
    this.#begin();
  }

  /** Forgets what is shown: the next `update` renders all of its text. */
  reset() {
    this.#stream?.reset();
  }

  /**
   * Shows `text`; cheap where it is the text of the last call with something appended.
   * @param {string} text
   */
  update(text) {
    this.#text = text;
    if (this.#stream === null) this.#container.replaceChildren(text);
    else this.#stream.update(text);
  }

  #begin() {
    this.#container.classList.toggle("plain", markdown === null);
    if (markdown !== null) this.#stream = new markdown.MarkdownStream(this.#container, this.#cite);
  }

  #arrived() {
    if (this.#stream !== null || markdown === null) return;
    this.#begin();
    this.update(this.#text);
    this.#container.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
  }
}
