/** The documents of a library: their state, size and dates, and what can be done with each. */

/** @import { Library, LibraryDocument } from "./api.js" */
/** @import { Shown } from "./place.js" */
import { ApiError } from "../api.js";
import { el, icon } from "../dom.js";
import { fileSize } from "../format.js";
import { saveFile } from "../saving.js";
import { PAGE } from "./api.js";
import { askedLibrary, confirmedRemoval } from "./dialogs.js";
import { dateText, reasonText, t } from "./texts.js";

const LOOK_AGAIN_MS = 3000;
const TYPING_MS = 250;
/** @type {Record<LibraryDocument["status"], "ready"|"processing"|"failedState">} */
const STATES = { ready: "ready", processing: "processing", failed: "failedState" };
/** @type {Record<LibraryDocument["status"], import("../dom.js").IconName>} */
const STATE_ICONS = { ready: "check", processing: "again", failed: "alert" };

/** Their list, with a filter. */
export class Documents {
  #shown;
  #library;
  #own;
  #list = el("ul", { class: "documents" });
  #status = el("p", { class: "hint", role: "status" });
  #more = el("button", { type: "button", class: "small", hidden: true }, t("more"));
  #name = el("input", { type: "search", maxlength: 200, autocomplete: "off", dir: "auto" });
  #state = el("select", {});
  #wanted = PAGE;
  #reads = 0;
  /** @type {ReturnType<typeof setTimeout>|undefined} */
  #timer;

  /** @param {Shown} shown @param {Library} library @param {boolean} own whether the person may change them */
  constructor(shown, library, own) {
    this.#shown = shown;
    this.#library = library;
    this.#own = own;
    for (const [value, text] of [["", t("anyState")], ...Object.entries(STATES).map(([key, name]) => [key, t(name)])]) {
      this.#state.append(el("option", { value }, text));
    }
    this.section = el(
      "section",
      { "aria-labelledby": "library-documents" },
      el("h3", { id: "library-documents", tabindex: -1 }, t("contents")),
      el(
        "div",
        { class: "filters" },
        el("label", {}, el("span", {}, t("filter")), this.#name),
        el("label", {}, el("span", {}, t("state")), this.#state),
      ),
      this.#status,
      this.#list,
      this.#more,
    );
    this.#name.addEventListener("input", () => this.#soon(TYPING_MS));
    this.#state.addEventListener("change", () => this.#again());
    this.#more.addEventListener("click", () => {
      this.#wanted += PAGE;
      this.reload();
    });
    shown.left.addEventListener("abort", () => clearTimeout(this.#timer));
  }

  #again() {
    this.#wanted = PAGE;
    this.reload();
  }

  /** @param {number} ms */
  #soon(ms) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#again(), ms);
  }

  /** Reloads the list, and repeats that while one of them is being read. */
  reload() {
    clearTimeout(this.#timer);
    this.#reads += 1;
    const read = this.#reads;
    const { library, left, guarded } = this.#shown;
    return guarded(
      async () => {
        const { total, documents } = await library.documents({
          libraryId: this.#library.id,
          status: this.#state.value,
          name: this.#name.value.trim(),
          limit: this.#wanted,
        });
        if (left.aborted || read !== this.#reads) return;
        this.#fill(total, documents);
        if (documents.some(({ status }) => status === "processing")) {
          this.#timer = setTimeout(() => this.reload(), LOOK_AGAIN_MS);
        }
      },
      () => this.reload(),
    );
  }

  /** @param {number} total @param {LibraryDocument[]} documents */
  #fill(total, documents) {
    const filtered = this.#name.value.trim() !== "" || this.#state.value !== "";
    const listed = t("listed", { shown: documents.length, total });
    this.#status.textContent = total > 0 ? listed : t(filtered ? "noMatch" : "empty");
    if (document.activeElement === this.#more && documents.length >= total) this.section.querySelector("h3")?.focus();
    this.#more.hidden = documents.length >= total;
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.focus : undefined;
    const within = this.#list.contains(document.activeElement);
    this.#list.replaceChildren(...documents.map((one) => this.#row(one)));
    if (!within) return;
    const same = [.../** @type {NodeListOf<HTMLElement>} */ (this.#list.querySelectorAll("[data-focus]"))];
    const target = same.find((node) => node.dataset.focus === focused);
    (target ?? this.section.querySelector("h3"))?.focus();
  }

  /** @param {LibraryDocument} one */
  #row(one) {
    const href = `/documents/${encodeURIComponent(one.document_uid)}`;
    const title = one.title || one.file_name;
    const link = el("a", { href, "data-focus": `${one.document_uid} open` }, el("bdi", {}, title));
    const path = el("bdi", { class: "hint document-path" }, one.file_path);
    const state = el("span", { class: "state" }, icon(STATE_ICONS[one.status]), t(STATES[one.status]));
    const facts = [
      fileSize(one.size_bytes),
      t("passages", { count: one.chunk_count }),
      ...(one.version > 1 ? [t("version", { version: one.version })] : []),
      t("added", { date: dateText(one.ingested_at) }),
      ...(dateText(one.updated_at) === dateText(one.ingested_at) ? [] : [t("changed", { date: dateText(one.updated_at) })]),
      ...(one.retrievable ? [] : [t("outOfSearch")]),
    ];
    const row = el("li", { "data-state": one.status });
    row.append(el("div", { class: "document-name" }, one.status === "ready" ? link : el("bdi", {}, title), path));
    row.append(el("p", { class: "document-facts" }, state, facts.map((fact) => el("span", {}, fact))));
    if (one.error !== null) row.append(el("p", { class: "reason" }, t("refused", { reason: reasonText(one.error) })));
    const cut = one.stages?.parse?.cut;
    if (cut !== undefined) row.append(el("p", { class: "reason" }, t("cutNote", { cut })));
    row.append(this.#actions(one));
    return row;
  }

  /** @param {LibraryDocument} one */
  #actions(one) {
    const name = one.file_path;
    /** @param {import("../dom.js").IconName} picture @param {string} label @param {string} key @param {() => void} act */
    const button = (picture, label, key, act) => {
      const focus = `${one.document_uid} ${key}`;
      const attributes = { type: "button", class: "quiet icon-button", "aria-label": label, title: label };
      return el("button", { ...attributes, "data-focus": focus, onclick: act }, icon(picture));
    };
    const actions = el("div", { class: "document-actions" });
    const kept = one.version > 0; // of one that could not be read there is no file
    if (kept) actions.append(button("save", t("download", { name }), "save", () => this.#save(one)));
    if (!this.#own) return actions;
    if (kept) actions.append(button("again", t("reread", { name }), "reread", () => this.#reread(one)));
    actions.append(
      button("move", t("move", { name }), "move", () => this.#move(one)),
      button("trash", t("removeThis", { name }), "remove", () => this.#remove(one)),
    );
    return actions;
  }

  /** @param {LibraryDocument} one */
  #save(one) {
    const { library, page, guarded } = this.#shown;
    return guarded(async () => {
      try {
        saveFile(one.file_name, await library.file(one.document_uid));
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404) throw error;
        page.notify({ title: t("notKept"), message: one.file_path });
      }
    });
  }

  /** @param {LibraryDocument} one */
  #reread(one) {
    this.#shown.uploading.again(one);
    this.#shown.page.announce(t("rereading", { name: one.file_path }));
  }

  /** @param {LibraryDocument} one */
  #move(one) {
    const { library, page, guarded } = this.#shown;
    return guarded(async () => {
      const all = await library.libraries();
      const others = all.filter(({ id, owner_id: owner }) => owner === one.owner_id && !one.tag_ids.includes(id));
      if (others.length === 0) {
        page.notify({ title: t("noOther"), message: "" });
        return;
      }
      const to = await askedLibrary(one.file_path, others);
      if (to === null) return;
      const stays = one.tag_ids.filter((id) => id !== this.#library.id);
      try {
        await library.place(one.document_uid, [...stays, to.id]);
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "conflict") throw error;
        page.notify({ title: t("conflict"), message: one.file_path });
        return;
      }
      page.announce(t("moved", { name: one.file_path, library: to.name }));
      await this.reload();
    });
  }

  /** @param {LibraryDocument} one */
  #remove(one) {
    const { library, page, guarded } = this.#shown;
    return guarded(async () => {
      if (!(await confirmedRemoval(t("removeDocument"), t("removeDocumentText", { name: one.file_path })))) return;
      await library.removeDocument(one.document_uid);
      page.announce(t("removed", { name: one.file_path }));
      await this.reload();
    });
  }
}
