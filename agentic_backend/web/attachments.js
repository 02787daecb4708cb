/** The files of the conversation on the screen, above the message box: attach, see them come, try again, remove. */

/**
 * @import { Attachment } from "./api.js"
 * @import { Fetch } from "./pictures.js"
 * @import { Words } from "./texts.js"
 */
import { el, icon } from "./dom.js";
import { fileSize } from "./format.js";
import { catalogue } from "./i18n.js";
import { pictureButton } from "./pictures.js";

const t = catalogue({
  en: {
    remove: "Remove {name}",
    again: "Try again: {name}",
    tryAgain: "Try again",
    waiting: "waiting",
    sending: "{share} %",
    reading: "reading…",
    progress: "Sending {name}",
    files: "Attach files: PDF, Word, PowerPoint, Excel, Markdown, text, HTML, CSV or JSON lines",
    images: "Attach images: PNG, JPEG or WebP",
    upTo: "{what}, up to {most} MB each",
    drop: "Drop files to attach them",
    noFiles: "This agent takes no files",
  },
  fr: {
    remove: "Retirer {name}",
    again: "Réessayer : {name}",
    tryAgain: "Réessayer",
    waiting: "en attente",
    sending: "{share} %",
    reading: "lecture…",
    progress: "Envoi de {name}",
    files: "Joindre des fichiers : PDF, Word, PowerPoint, Excel, Markdown, texte, HTML, CSV ou JSON lines",
    images: "Joindre des images : PNG, JPEG ou WebP",
    upTo: "{what}, {most} Mo au plus",
    drop: "Déposez des fichiers pour les joindre",
    noFiles: "Cet agent n'accepte pas de fichiers",
  },
});

/** @typedef {{files: boolean, images: boolean}} Taken what the agent on the screen takes: what it searches, and what it sees */

/** The endings that the other service reads (docs/search.md): a file chooser shows these first. */
export const ENDINGS = [
  ...["md", "markdown", "mkd", "txt", "text", "rst", "log", "html", "htm", "xhtml", "pdf"],
  ...["csv", "tsv", "jsonl", "ndjson", "docx", "pptx", "xlsx"],
];
const IMAGE_ENDINGS = ["png", "jpg", "jpeg", "webp"];
const MOST_IMAGE_MB = 10;

/**
 * A file on its way: sent, then read and indexed before the service answers.
 * @typedef {object} Upload
 * @property {File} file
 * @property {"waiting"|"sending"|"reading"|"failed"} state
 * @property {number} sent the share of it, 0 to 1
 * @property {(Words & {retryable: boolean})|null} failure
 * @property {AbortController} ending
 */

/**
 * @typedef {object} AttachmentActions
 * @property {(files: File[]) => void} attach
 * @property {(attachment: Attachment) => void} remove
 * @property {(upload: Upload) => void} retry one that failed
 * @property {(upload: Upload) => void} drop one that failed, or is on its way
 * @property {Fetch} picture
 */

/** @typedef {{list: HTMLElement, button: HTMLElement, input: HTMLInputElement, field: HTMLElement, area: HTMLElement}} Nodes */

/** Fills its nodes, and takes files from a chooser, from the clipboard and dropped on the page. */
export class AttachmentBar {
  #nodes;
  #actions;
  #offered = false;
  #hint = el("div", { id: "drop-hint", "aria-hidden": "true", hidden: true });
  /** @type {WeakMap<Upload, UploadRow>} */
  #rows = new WeakMap();
  /** @type {Map<string, HTMLElement>} by attachment, of the conversation on the screen */
  #pictures = new Map();

  /** @param {Nodes} nodes @param {AttachmentActions} actions */
  constructor(nodes, actions) {
    this.#nodes = nodes;
    this.#actions = actions;
    const { button, input, field, area } = nodes;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      const files = [...(input.files ?? [])];
      input.value = ""; // or the same file could not be chosen again
      if (files.length > 0) actions.attach(files);
    });
    field.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0 || !this.#offered) return;
      event.preventDefault();
      actions.attach(files);
    });
    area.append(this.#hint);
    this.#wireDropping(area);
  }

  /**
   * @param {{taken: Taken, attached: Attachment[], uploads: Upload[], mostMb: number|null}} state what may be added, the
   *   files that are there, those on their way, and how large one may be, where that is known
   */
  show({ taken, attached, uploads, mostMb }) {
    const { button, list, input } = this.#nodes;
    this.#offered = taken.files || taken.images;
    button.hidden = !this.#offered;
    button.title = titleOf(taken, mostMb);
    const endings = [...(taken.files ? ENDINGS : []), ...(taken.images ? IMAGE_ENDINGS : [])];
    input.accept = endings.map((ending) => `.${ending}`).join(",");
    list.hidden = attached.length + uploads.length === 0;
    const ids = new Set(attached.map(({ id }) => id));
    for (const id of this.#pictures.keys()) if (!ids.has(id)) this.#pictures.delete(id);
    const rows = [...attached.map((one) => this.#attachedRow(one)), ...uploads.map((one) => this.#uploadRow(one))];
    list.replaceChildren(...rows);
  }

  /**
   * Shows how far a file has come; the rest of the list stays as it is.
   * @param {Upload} upload
   */
  update(upload) {
    this.#rows.get(upload)?.update();
  }

  /** @param {Attachment} attachment */
  #attachedRow(attachment) {
    const remove = removeButton(attachment.name, () => this.#actions.remove(attachment));
    const { size_bytes: size } = attachment;
    const hint = size === undefined ? [] : [el("span", { class: "hint" }, fileSize(size))];
    const picture = isImage(attachment) ? [this.#pictureOf(attachment)] : [];
    return el("li", {}, picture, nameOf(attachment.name), hint, remove);
  }

  /** The list is redrawn with each change, but an image is fetched once. @param {Attachment} attachment */
  #pictureOf(attachment) {
    const button = this.#pictures.get(attachment.id) ?? pictureButton(attachment, this.#actions.picture);
    this.#pictures.set(attachment.id, button);
    return button;
  }

  /** @param {Upload} upload */
  #uploadRow(upload) {
    const row = this.#rows.get(upload) ?? new UploadRow(upload, this.#actions);
    this.#rows.set(upload, row);
    row.update();
    return row.node;
  }

  /** A drag passes over many nodes of the area: each is entered before the one before it is left. @param {HTMLElement} area */
  #wireDropping(area) {
    let depth = 0;
    /** @param {DragEvent} event */
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;
    const end = () => {
      depth = 0;
      this.#hint.hidden = true;
    };
    area.addEventListener("dragenter", (event) => {
      if (!hasFiles(event)) return;
      depth += 1;
      this.#hint.textContent = t(this.#offered ? "drop" : "noFiles");
      this.#hint.hidden = false;
    });
    area.addEventListener("dragleave", (event) => {
      if (!hasFiles(event)) return;
      depth -= 1;
      if (depth <= 0) end();
    });
    area.addEventListener("dragover", (event) => {
      if (!hasFiles(event) || event.dataTransfer === null) return;
      event.preventDefault(); // or the browser would open the file in the place of the page
      event.dataTransfer.dropEffect = this.#offered ? "copy" : "none";
    });
    area.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      end();
      const files = [...(event.dataTransfer?.files ?? [])];
      if (this.#offered && files.length > 0) this.#actions.attach(files);
    });
  }
}

/** A file on its way, or one that could not be attached, with the reason. */
class UploadRow {
  #upload;
  #actions;
  #state = el("span", { class: "hint" });
  #bar;
  #retry;
  #reason = el("span", { class: "reason", role: "alert" });

  /** @param {Upload} upload @param {AttachmentActions} actions */
  constructor(upload, actions) {
    this.#upload = upload;
    this.#actions = actions;
    const { name, size } = upload.file;
    this.#bar = el("progress", { max: 1, value: 0, "aria-label": t("progress", { name }) });
    const onclick = () => this.#actions.retry(upload);
    const attributes = { type: "button", class: "quiet small", "aria-label": t("again", { name }), onclick };
    this.#retry = el("button", attributes, t("tryAgain"));
    const remove = removeButton(name, () => actions.drop(upload));
    const size_ = el("span", { class: "hint" }, fileSize(size));
    this.node = el("li", {}, nameOf(name), size_, this.#bar, this.#state, this.#reason, this.#retry, remove);
  }

  update() {
    const { state, sent, failure } = this.#upload;
    const failed = state === "failed";
    if (failed) this.node.removeAttribute("aria-busy");
    else this.node.setAttribute("aria-busy", "true");
    this.node.classList.toggle("failed", failed);
    this.#bar.hidden = state !== "sending";
    this.#bar.value = sent;
    this.#retry.hidden = failure?.retryable !== true;
    this.#state.textContent = failed ? "" : t(state, { share: Math.floor(100 * sent) });
    const reason = failure === null ? "" : [failure.title, failure.message].filter(Boolean).join(": ");
    if (this.#reason.textContent !== reason) this.#reason.textContent = reason;
  }
}

/** @param {Taken} taken @param {number|null} mostMb */
function titleOf({ files, images }, mostMb) {
  /** @param {"files"|"images"} what @param {number} most */
  const told = (what, most) => (mostMb === null ? t(what) : t("upTo", { what: t(what), most: Math.min(mostMb, most) }));
  return [...(files ? [told("files", Infinity)] : []), ...(images ? [told("images", MOST_IMAGE_MB)] : [])].join("\n");
}

/**
 * Whether a question shows it to the model, which searches in other files.
 * @param {Attachment} attachment
 */
export function isImage({ mime = "" }) {
  return mime.startsWith("image/");
}

/** @param {string} name @param {() => void} onclick */
function removeButton(name, onclick) {
  const label = t("remove", { name });
  const attributes = { type: "button", class: "quiet icon-button", "aria-label": label, title: label, onclick };
  return el("button", attributes, icon("close"));
}

/** @param {string} name */
function nameOf(name) {
  return el("span", { class: "attachment-name", title: name, dir: "auto" }, name);
}
