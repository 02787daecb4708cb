/** Adding files to a library, by button and by drop, and what becomes of each. */

/** @import { Library } from "./api.js" */
/** @import { Shown } from "./place.js" */
/** @import { Named, Upload } from "./uploading.js" */
import { el, icon } from "../dom.js";
import { fileSize } from "../format.js";
import { reasonText, t } from "./texts.js";
import { chosenFiles, droppedFiles, isHidden, MOST_FILES } from "./uploading.js";

/**
 * @param {Shown} shown
 * @param {Library} found
 * @param {() => void} changed is called when a file has come to its end
 */
export function uploadSection(shown, found, changed) {
  const { uploading } = shown;
  const view = new UploadList(shown, found);
  const note = el("p", { class: "hint", role: "status" });

  /** @param {Named[]} files */
  const take = (files) => {
    const seen = files.filter((file) => !isHidden(file));
    const some = seen.slice(0, MOST_FILES);
    const notes = [
      files.length === 0 ? t("nothing") : "",
      seen.length < files.length ? t("hidden", { count: files.length - seen.length }) : "",
      some.length < seen.length ? t("tooManyFiles", { most: MOST_FILES }) : "",
    ];
    note.textContent = notes.filter(Boolean).join(" ");
    uploading.add(some, [found.id]);
  };

  uploading.changed = (upload) => {
    view.show(upload);
    if (upload.ended && upload.libraryIds.includes(found.id)) changed();
  };
  uploading.into(found.id).forEach((upload) => view.show(upload));
  const heading = el("h3", { id: "library-add" }, t("add"));
  return el("section", { "aria-labelledby": "library-add" }, heading, dropZone(take), note, view.section);
}

/** @param {(files: Named[]) => void} take */
function dropZone(take) {
  const files = el("input", { type: "file", multiple: true, hidden: true, "data-kind": "files" });
  const folder = el("input", { type: "file", webkitdirectory: true, hidden: true, "data-kind": "folder" });
  for (const input of [files, folder]) {
    input.addEventListener("change", () => {
      take(chosenFiles(/** @type {FileList} */ (input.files)));
      input.value = "";
    });
  }
  const addFiles = el("button", { type: "button", class: "primary" }, icon("upload"), t("addFiles"));
  const addFolder = el("button", { type: "button" }, icon("folder"), t("addFolder"));
  addFiles.addEventListener("click", () => files.click());
  addFolder.addEventListener("click", () => folder.click());
  const buttons = el("div", { class: "buttons" }, addFiles, addFolder, el("span", { class: "hint" }, t("dropHere")));
  const zone = el("div", { class: "drop-zone" }, buttons, el("p", { class: "hint" }, t("accepted")), files, folder);
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer !== null) take(await droppedFiles(event.dataTransfer));
  });
  return zone;
}

/** @param {Upload} upload */
function stateText({ state, share, done, of, failure, cut }) {
  const note = cut === "" ? "" : ` ${t("cutNote", { cut })}`;
  if (state === "sending") return t("sending", { percent: Math.floor(100 * (share ?? 0)) });
  if (state === "embed" && of > 0) return t("embedOf", { done, of });
  if (state === "refused") return t("refused", { reason: failure === null ? "" : reasonText(failure) });
  return t(state) + note;
}

/** The rows of a library's uploads. */
class UploadList {
  #shown;
  #found;
  /** @type {Map<Upload, UploadRow>} */
  #rows = new Map();
  #list = el("ul", { class: "uploads", tabindex: 0, "aria-label": t("uploads") });
  #sum = el("p", { class: "hint", role: "status" });
  #clear = el("button", { type: "button", class: "quiet small" }, t("clear"));

  /** @param {Shown} shown @param {Library} found */
  constructor(shown, found) {
    this.#shown = shown;
    this.#found = found;
    this.#clear.addEventListener("click", () => this.#forget());
    const head = el("div", { class: "uploads-head" }, el("h4", { tabindex: -1 }, t("uploads")), this.#sum, this.#clear);
    this.section = el("div", { class: "uploads-box", hidden: true }, head, this.#list);
  }

  /** @param {Upload} upload */
  show(upload) {
    if (!upload.libraryIds.includes(this.#found.id)) return;
    let row = this.#rows.get(upload);
    if (row === undefined) {
      row = new UploadRow(upload, this.#shown);
      this.#rows.set(upload, row);
      this.#list.append(row.node);
    }
    row.show();
    if (upload.state === "refused") this.#list.prepend(row.node); // not to be looked for among hundreds that are well
    this.#count();
  }

  #count() {
    const all = [...this.#rows.keys()];
    this.section.hidden = all.length === 0;
    const refused = all.filter(({ state }) => state === "refused").length;
    const done = all.filter(({ ended }) => ended).length;
    const text = t("uploadsSum", { done, all: all.length, refused });
    if (this.#sum.textContent !== text) this.#sum.textContent = text;
    this.#clear.hidden = done === 0;
  }

  #forget() {
    this.#shown.uploading.clear(this.#found.id);
    for (const [upload, { node }] of this.#rows) {
      if (!upload.ended) continue;
      node.remove();
      this.#rows.delete(upload);
    }
    this.#count();
    this.#shown.host.querySelector("h2")?.focus();
  }
}

/** One file on its way. */
class UploadRow {
  #upload;
  #state = el("span", { class: "upload-state" });
  #bar = el("progress", { max: 1 });
  #button = el("button", { type: "button", class: "quiet icon-button" });
  #shown = "";

  /** @param {Upload} upload @param {Shown} shown */
  constructor(upload, { uploading }) {
    this.#upload = upload;
    this.#bar.setAttribute("aria-label", upload.name);
    const name = el("bdi", { class: "upload-name" }, upload.name);
    const size = el("span", { class: "hint" }, fileSize(upload.size));
    const facts = el("div", { class: "upload-facts" }, name, size);
    this.node = el("li", {}, facts, this.#state, this.#bar, this.#button);
    this.#button.addEventListener("click", () => {
      if (upload.stoppable) uploading.stop(upload);
      else uploading.retry(upload);
    });
  }

  show() {
    const upload = this.#upload;
    this.#state.textContent = stateText(upload);
    this.node.dataset.state = upload.state;
    this.#bar.hidden = upload.ended || upload.state === "waiting";
    if (upload.share === null) this.#bar.removeAttribute("value");
    else this.#bar.value = upload.share;
    const does = upload.stoppable ? "cancelUpload" : upload.repeatable && upload.ended ? "retryUpload" : "";
    // The keyboard goes to the heading of the list rather than to nowhere.
    const focused = document.activeElement === this.#button;
    this.#button.hidden = does === "";
    if (focused && does === "") this.node.closest(".uploads-box")?.querySelector("h4")?.focus();
    if (does === "" || does === this.#shown) return;
    this.#shown = does;
    const label = t(does, { name: upload.name });
    this.#button.setAttribute("aria-label", label);
    this.#button.title = label;
    this.#button.replaceChildren(icon(does === "cancelUpload" ? "close" : "again"));
  }
}
