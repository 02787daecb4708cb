/** The question of a turn: its words, the form to edit them, and the way to its other versions. */

/**
 * @import { Fetch } from "./pictures.js"
 * @import { Turn } from "./protocol.js"
 */
import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";
import { pictureButton } from "./pictures.js";

const t = catalogue({
  en: {
    files: "Files that came with this question",
    edit: "Edit question",
    edited: "Your question, edited",
    save: "Ask",
    keep: "Cancel",
    versions: "Versions of this question",
    version: "{at} of {of}",
    earlier: "Earlier version",
    later: "Later version",
  },
  fr: {
    files: "Fichiers joints à cette question",
    edit: "Modifier la question",
    edited: "Votre question, modifiée",
    save: "Demander",
    keep: "Annuler",
    versions: "Versions de cette question",
    version: "{at} sur {of}",
    earlier: "Version précédente",
    later: "Version suivante",
  },
});

/**
 * @typedef {object} QuestionActions
 * @property {(turn: Turn, text: string) => void} askEdited asks an edited question in the place of the turn's own
 * @property {(turn: Turn, step: -1|1) => void} showVersion the version of the turn before, or after, this one
 * @property {Fetch} picture
 */

/** Shows a turn's question; `update` after each change. */
export class QuestionView {
  #turn;
  #actions;
  #text;
  #pictures = el("div", { class: "question-pictures", hidden: true });
  #picturesKey = "";
  #files = el("ul", { class: "question-files", "aria-label": t("files"), hidden: true });
  #filesKey = "";
  #tools = el("div", { class: "question-tools" });
  #toolsKey = "";

  /** @param {Turn} turn @param {QuestionActions} actions */
  constructor(turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#text = el("div", { class: "question", dir: "auto" }, turn.question ?? "");
    this.node = el("div", { class: "asked" }, this.#pictures, this.#text, this.#files, this.#tools);
  }

  update() {
    const turn = this.#turn;
    this.#updateFiles();
    this.#updatePictures();
    const editable = turn.ended && turn.rank !== null && turn.status !== "refused";
    const key = `${editable}:${turn.version.at}:${turn.version.of}`;
    if (key === this.#toolsKey) return;
    this.#toolsKey = key;
    const focused = this.#tools.contains(document.activeElement) ? document.activeElement?.className : undefined;
    this.#tools.replaceChildren(...this.#switcher(), ...(editable ? [this.#editButton()] : []));
    if (focused !== undefined) this.#focus(focused);
  }

  #updateFiles() {
    const { files } = this.#turn;
    if (files.join("/") === this.#filesKey) return;
    this.#filesKey = files.join("/");
    this.#files.hidden = files.length === 0;
    this.#files.replaceChildren(...files.map((name) => el("li", { dir: "auto" }, icon("clip"), name)));
  }

  #updatePictures() {
    const { images } = this.#turn;
    const key = images.map(({ id }) => id).join("/");
    if (key === this.#picturesKey) return;
    this.#picturesKey = key;
    this.#pictures.hidden = images.length === 0;
    this.#pictures.replaceChildren(...images.map((image) => pictureButton(image, this.#actions.picture)));
  }

  /**
   * Puts the keyboard where it was before another version came onto the screen.
   * @param {-1|1} step
   */
  focusVersions(step) {
    this.#focus(stepClass(step));
  }

  /** Its button may be at the end of the versions: then the one beside it. @param {string} name */
  #focus(name) {
    const buttons = [...this.#tools.querySelectorAll("button")].filter((button) => !button.disabled);
    (buttons.find(({ className }) => className === name) ?? buttons[0])?.focus();
  }

  /** @returns {HTMLElement[]} */
  #switcher() {
    const { at, of } = this.#turn.version;
    if (of < 2) return [];
    const count = el("span", { class: "version" }, t("version", { at, of }));
    const [back, on] = [this.#step(-1, at > 1), this.#step(1, at < of)];
    return [el("div", { class: "versions", role: "group", "aria-label": t("versions") }, back, count, on)];
  }

  /** @param {-1|1} step @param {boolean} possible */
  #step(step, possible) {
    const label = t(step === -1 ? "earlier" : "later");
    const onclick = () => this.#actions.showVersion(this.#turn, step);
    const attributes = { type: "button", class: stepClass(step), "aria-label": label, title: label, onclick };
    return el("button", { ...attributes, disabled: !possible }, icon(step === -1 ? "left" : "right"));
  }

  #editButton() {
    const label = t("edit");
    const onclick = () => this.#startEditing();
    const attributes = { type: "button", class: "quiet icon-button small edit", "aria-label": label, title: label };
    return el("button", { ...attributes, onclick }, icon("pencil"));
  }

  #startEditing() {
    const field = el("textarea", { "aria-label": t("edited"), dir: "auto", rows: 1 });
    field.value = this.#turn.question ?? "";
    const cancel = el("button", { type: "button", onclick: () => this.#endEditing() }, t("keep"));
    const save = el("button", { type: "submit", class: "primary" }, t("save"));
    const form = el("form", { class: "edit-question" }, field, el("div", { class: "buttons" }, cancel, save));
    const grow = () => {
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight}px`;
      save.disabled = field.value.trim() === "";
    };
    field.addEventListener("input", grow);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault(); // a document that is open stays so
        this.#endEditing();
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text === "") return;
      this.#endEditing();
      this.#actions.askEdited(this.#turn, text);
    });
    this.node.replaceChildren(form);
    grow();
    field.focus();
  }

  #endEditing() {
    this.node.replaceChildren(this.#pictures, this.#text, this.#files, this.#tools);
    this.#focus("quiet icon-button small edit");
  }
}

/** @param {-1|1} step */
function stepClass(step) {
  return `quiet icon-button small step ${step === -1 ? "back" : "on"}`;
}
