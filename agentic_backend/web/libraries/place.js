/** The place of libraries: all of them at `#/libraries`, one of them at `#/libraries/{id}`. */

/** @import { Page } from "../places.js" */
import { ApiError } from "../api.js";
import { el, icon } from "../dom.js";
import { errorText } from "../texts.js";
import { LibraryApi } from "./api.js";
import { showLibrary } from "./library.js";
import { t } from "./texts.js";
import { Uploading } from "./uploading.js";

/** @import { Library } from "./api.js" */

/**
 * What the views of this place share.
 * @typedef {object} Shown
 * @property {HTMLElement} host
 * @property {Page} page
 * @property {LibraryApi} library
 * @property {Uploading} uploading
 * @property {AbortSignal} left when the person goes elsewhere
 * @property {(call: () => Promise<void>, retry?: (() => void)|null) => Promise<void>} guarded says what fails
 */

/** They outlive a visit. @type {{library: LibraryApi, uploading: Uploading}|null} */
let kept = null;

/**
 * @param {HTMLElement} host
 * @param {Page} page
 * @param {string} rest the id of a library, "" for all
 */
export function show(host, page, rest) {
  if (kept === null) {
    const library = new LibraryApi(page.api);
    kept = { library, uploading: new Uploading(library) };
  }
  const leaving = new AbortController();
  const root = el("div", { class: "libraries" });
  host.append(root);
  /** @type {Shown} */
  const shown = {
    ...kept,
    host: root,
    page,
    left: leaving.signal,
    guarded: async (call, retry = null) => {
      try {
        await call();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (!leaving.signal.aborted) page.notify(errorText(error.failure), error.retryable ? retry : null);
      }
    },
  };
  const { uploading } = kept;
  leaving.signal.addEventListener("abort", () => (uploading.changed = () => {}));
  if (rest === "") showAll(shown);
  else showLibrary(shown, rest);
  return () => leaving.abort();
}

/** @param {Shown} shown */
function showAll(shown) {
  const { host, library, page, left, guarded } = shown;
  const list = el("ul", { class: "library-list" });
  const state = el("p", { class: "hint", role: "status" }, t("loading"));
  const input = el("input", { type: "text", required: true, maxlength: 200, autocomplete: "off", dir: "auto" });
  const button = el("button", { type: "submit", class: "primary" }, icon("plus"), t("create"));
  const form = el("form", { class: "create" }, el("label", {}, el("span", {}, t("newName")), input), button);
  host.append(el("h2", {}, t("yours")), el("p", { class: "hint" }, t("about")), form, state, list);

  const load = () =>
    guarded(async () => {
      state.textContent = t("loading");
      try {
        const all = await library.libraries();
        if (left.aborted) return;
        list.replaceChildren(...all.map(libraryRow));
        state.textContent = all.length === 0 ? t("none") : "";
      } catch (error) {
        state.textContent = t("failed");
        throw error;
      }
    }, load);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (name === "") return;
    guarded(async () => {
      button.disabled = true;
      try {
        const made = await library.create(name);
        page.goTo(`#/libraries/${encodeURIComponent(made.id)}`);
      } catch (error) {
        button.disabled = false;
        if (document.activeElement === document.body) button.focus();
        if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
        page.notify({ title: t("taken"), message: name });
      }
    });
  });
  load();
}

/** @param {Library} library */
function libraryRow({ id, full_path: path, document_count: count, everyone }) {
  const facts = [t("documents", { count }), everyone ? t("forAll") : ""].filter(Boolean).join(" · ");
  const link = el("a", { href: `#/libraries/${encodeURIComponent(id)}` }, el("bdi", {}, path));
  return el("li", {}, icon("folder"), el("div", {}, link, el("p", { class: "hint" }, facts)));
}
