/** Dialogs of libraries: each resolves once it is closed, and gives the focus back to what opened it. */

/** @import { Access, Library } from "./api.js" */
/** @import { Child } from "../dom.js" */
import { confirmed } from "../confirm.js";
import { el } from "../dom.js";
import { t } from "./texts.js";

const MOST_READERS = 500;
let count = 0;

/**
 * Shows a dialog; whether its action was chosen.
 * @param {{title: string, action: string}} kind
 * @param {...Child} content
 * @returns {Promise<boolean>}
 */
function asked({ title, action }, ...content) {
  count += 1;
  const id = `library-dialog-${count}`;
  const keep = el("button", { value: "", formnovalidate: true }, t("cancel"));
  const go = el("button", { value: "go", class: "primary" }, action);
  const form = el("form", { method: "dialog" }, el("h2", { id }, title), content);
  form.append(el("div", { class: "buttons" }, keep, go));
  const dialog = el("dialog", { class: "library-dialog", "aria-labelledby": id }, form);
  document.body.append(dialog);
  dialog.showModal();
  // Enter in a field chooses the first button of a form, which takes everything back.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.target instanceof HTMLInputElement)) return;
    event.preventDefault();
    go.click();
  });
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "go");
      dialog.remove();
    });
  });
}

/**
 * Asks before something is gone for good.
 * @param {string} title
 * @param {string} text
 */
export function confirmedRemoval(title, text) {
  return confirmed(document.body, { title, text, keep: t("keep"), act: t("remove") });
}

/**
 * Another name; null where the person keeps the old one.
 * @param {string} old
 */
export async function askedName(old) {
  const input = el("input", { type: "text", required: true, maxlength: 200, dir: "auto", autofocus: true });
  input.value = old;
  const label = el("label", { class: "field" }, el("span", {}, t("name")), input);
  const said = await asked({ title: t("renameTitle"), action: t("save") }, label);
  const name = input.value.trim();
  return said && name !== "" && name !== old ? name : null;
}

/**
 * A library to move a document to; null for none.
 * @param {string} name of the document
 * @param {Library[]} libraries
 */
export async function askedLibrary(name, libraries) {
  const select = el("select", { required: true, "aria-label": t("moveTitle") });
  for (const { id, full_path: path } of libraries) select.append(el("option", { value: id }, path));
  const text = el("p", { dir: "auto" }, t("moveText", { name }));
  const said = await asked({ title: t("moveTitle"), action: t("moveAction") }, text, select);
  return said ? (libraries.find(({ id }) => id === select.value) ?? null) : null;
}

/**
 * Who is to read a library; null where nothing changes.
 * @param {Access} now
 * @returns {Promise<Access|null>}
 */
export async function askedAccess(now) {
  const everyone = el("input", { type: "checkbox" });
  everyone.checked = now.everyone;
  const users = el("textarea", { rows: 4, spellcheck: "false", autocapitalize: "off" });
  const groups = el("textarea", { rows: 3, spellcheck: "false", autocapitalize: "off" });
  users.value = now.users.join("\n");
  groups.value = now.groups.join("\n");
  const said = await asked(
    { title: t("shareTitle"), action: t("save") },
    el("p", {}, t("readersOnly")),
    el("label", { class: "choice" }, everyone, el("span", {}, t("everyone"))),
    el("label", { class: "field" }, el("span", {}, t("users")), users),
    el("label", { class: "field" }, el("span", {}, t("groups")), groups),
  );
  if (!said) return null;
  return { everyone: everyone.checked, users: linesOf(users.value), groups: linesOf(groups.value) };
}

/** Whether an access names no more than the service takes. @param {Access} access */
export function fits({ users, groups }) {
  return users.length <= MOST_READERS && groups.length <= MOST_READERS;
}

/** @param {string} text */
function linesOf(text) {
  return [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];
}
