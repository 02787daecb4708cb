/** The files of the conversation on the screen, above the message box: attach, see them being read, remove. */

/** @import { Attachment } from "./api.js" */
import { el, icon } from "./dom.js";

/** Fills its nodes; `attach` is called with chosen files, `remove` with the attachment {id, name} to take away. */
export class AttachmentBar {
  #list;
  #button;
  #remove;

  /**
   * @param {{list: HTMLElement, button: HTMLElement, input: HTMLInputElement}} nodes
   * @param {{attach: (files: File[]) => void, remove: (attachment: Attachment) => void}} actions
   */
  constructor({ list, button, input }, { attach, remove }) {
    this.#list = list;
    this.#button = button;
    this.#remove = remove;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      const files = [...(input.files ?? [])];
      input.value = ""; // or the same file could not be chosen again
      if (files.length > 0) attach(files);
    });
  }

  /**
   * @param {{offered: boolean, attached: Attachment[], reading: string[]}} state whether files may be
   *   added, those that are there, and the names of those that are on their way
   */
  show({ offered, attached, reading }) {
    this.#button.hidden = !offered;
    this.#list.hidden = attached.length + reading.length === 0;
    this.#list.replaceChildren(
      ...attached.map((attachment) => this.#row(attachment)),
      ...reading.map((name) => el("li", { "aria-busy": "true" }, nameOf(name), el("span", { class: "hint" }, "reading…"))),
    );
  }

  /** @param {Attachment} attachment */
  #row(attachment) {
    const label = `Remove ${attachment.name}`;
    const button = el("button", { type: "button", class: "quiet icon-button", "aria-label": label, title: label });
    button.append(icon("close"));
    button.addEventListener("click", () => this.#remove(attachment));
    return el("li", {}, nameOf(attachment.name), button);
  }
}

/** @param {string} name */
function nameOf(name) {
  return el("span", { class: "attachment-name", title: name }, name);
}
