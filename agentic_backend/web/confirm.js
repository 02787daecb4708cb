/** A question before something that cannot be undone. */

import { el } from "./dom.js";

/**
 * Whether the person said so. With `word` they must type it first.
 * @param {HTMLElement} host
 * @param {{title: string, text: string, keep: string, act: string, word?: {value: string, label: string}}} texts
 * @returns {Promise<boolean>}
 */
export function confirmed(host, { title, text, keep, act, word }) {
  const go = el("button", { value: "go", class: "danger" }, act);
  /** @type {HTMLElement[]} */
  const rows = [el("h2", { id: "confirm-heading" }, title), el("p", { dir: "auto" }, text)];
  if (word !== undefined) {
    const typed = el("input", { autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    const matches = () => typed.value.trim().toLowerCase() === word.value;
    typed.addEventListener("input", () => {
      go.disabled = !matches();
    });
    go.disabled = true;
    rows.push(el("label", { class: "typed" }, el("span", {}, word.label), typed));
  }
  // Enter in the field presses the first button, which keeps.
  const buttons = el("div", { class: "buttons" }, el("button", { value: "keep", autofocus: word === undefined }, keep), go);
  const form = el("form", { method: "dialog" }, ...rows, buttons);
  const dialog = el("dialog", { "aria-labelledby": "confirm-heading" }, form);
  host.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "go");
    });
    dialog.showModal();
  });
}
