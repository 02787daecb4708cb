/** One library: its name and readers, what is being uploaded to it, its documents, and a search in it. */

/** @import { Access, Library } from "./api.js" */
/** @import { Shown } from "./place.js" */
import { ApiError } from "../api.js";
import { el, icon } from "../dom.js";
import { askedAccess, askedName, confirmedRemoval, fits } from "./dialogs.js";
import { Documents } from "./documents.js";
import { searchSection } from "./search.js";
import { t } from "./texts.js";
import { uploadSection } from "./upload_view.js";

/**
 * @param {Shown} shown
 * @param {string} escapedId
 */
export function showLibrary(shown, escapedId) {
  const { host, library, left, guarded } = shown;
  const state = el("p", { class: "hint", role: "status" }, t("loading"));
  const back = el("a", { class: "back", href: "#/libraries" }, `← ${t("back")}`);
  host.append(back, state);
  const load = () =>
    guarded(async () => {
      state.textContent = t("loading");
      try {
        const [all, people] = await Promise.all([library.libraries(), library.tellsPeopleApart()]);
        const found = all.find(({ id }) => encodeURIComponent(id) === escapedId);
        const access = found === undefined ? null : await accessOf(shown, found.id);
        if (left.aborted) return;
        state.textContent = found === undefined ? t("gone") : "";
        if (found !== undefined) open(shown, found, access, people);
      } catch (error) {
        state.textContent = t("failed");
        throw error;
      }
    }, load);
  load();
}

/** Its readers; null where the library is another's, who alone may know. @param {Shown} shown @param {string} id */
async function accessOf({ library }, id) {
  try {
    return await library.access(id);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 403 || error.status === 404)) return null;
    throw error;
  }
}

/** @param {Shown} shown @param {Library} found @param {Access|null} access @param {boolean} people */
function open(shown, found, access, people) {
  const { host } = shown;
  const name = el("bdi", {}, found.name);
  host.append(el("h2", { class: "library-name", tabindex: -1 }, name));
  if (access === null) host.append(el("p", { class: "hint" }, t("readOnly")));
  else host.append(...ownerParts(shown, found, access, people, name));
  const documents = new Documents(shown, found, access !== null);
  if (access !== null) host.append(uploadSection(shown, found, () => documents.reload()));
  host.append(documents.section, searchSection(shown, found));
  documents.reload();
}

/**
 * What its owner may do with it.
 * @param {Shown} shown
 * @param {Library} found
 * @param {Access} access
 * @param {boolean} people whether there is anybody to share with
 * @param {HTMLElement} name
 */
function ownerParts(shown, found, access, people, name) {
  const rename = el("button", { type: "button", class: "small" }, icon("pencil"), t("rename"));
  const share = el("button", { type: "button", class: "small" }, icon("share"), t("share"));
  const remove = el("button", { type: "button", class: "small" }, icon("trash"), t("remove"));
  rename.addEventListener("click", () => renameLibrary(shown, found, name));
  share.addEventListener("click", () => shareLibrary(shown, found, access));
  remove.addEventListener("click", () => removeLibrary(shown, found));
  const bar = el("div", { class: "buttons" }, rename, people ? share : [], remove);
  return people ? [bar] : [bar, el("p", { class: "hint" }, t("noPeople"))];
}

/** @param {Shown} shown @param {Library} found @param {HTMLElement} shownName */
async function renameLibrary({ library, page, guarded }, found, shownName) {
  const name = await askedName(found.name);
  if (name === null) return;
  await guarded(async () => {
    try {
      Object.assign(found, await library.rename(found.id, name));
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
      page.notify({ title: t("taken"), message: name });
      return;
    }
    shownName.textContent = found.name;
    page.announce(t("renamed", { name: found.name }));
  });
}

/** @param {Shown} shown @param {Library} found @param {Access} access */
async function shareLibrary({ library, page, guarded }, found, access) {
  const wanted = await askedAccess(access);
  if (wanted === null) return;
  if (!fits(wanted)) {
    page.notify({ title: t("tooMany"), message: "" });
    return;
  }
  await guarded(async () => {
    Object.assign(access, await library.share(found.id, wanted));
    page.announce(t("shared"));
  });
}

/** @param {Shown} shown @param {Library} found */
async function removeLibrary({ library, page, guarded }, found) {
  await guarded(async () => {
    const { total } = await library.documents({ libraryId: found.id, limit: 1 });
    const text = t("removeLibraryText", { name: found.name, documents: t("documents", { count: total }) });
    if (!(await confirmedRemoval(t("removeLibrary"), text))) return;
    await library.remove(found.id);
    page.announce(t("removed", { name: found.name }));
    page.goTo("#/libraries");
  });
}
