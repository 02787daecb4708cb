/** Ctrl-K: a dialog that leads to any conversation, a new one, or another place of the page, by the keyboard alone. */

/**
 * @import { Session } from "./api.js"
 * @import { App } from "./app.js"
 * @import { IconName } from "./dom.js"
 */
import { ApiError } from "./api.js";
import { el, icon } from "./dom.js";
import { moment } from "./format.js";
import { catalogue } from "./i18n.js";
import { markAgentOf, titleOf } from "./sidebar.js";
import { marked } from "./snippets.js";
import { errorText } from "./texts.js";

const t = catalogue({
  en: {
    title: "Go to",
    hint: "Search conversations",
    list: "Where to go",
    fresh: "New conversation",
    nothing: "No conversation has all these words.",
    count: { one: "{count} entry", other: "{count} entries" },
  },
  fr: {
    title: "Aller à",
    hint: "Chercher dans les conversations",
    list: "Où aller",
    fresh: "Nouvelle conversation",
    nothing: "Aucune conversation ne contient tous ces mots.",
    count: { one: "{count} entrée", other: "{count} entrées" },
  },
});

const MOST = 20;
const PAUSE_MS = 150;

/** @typedef {{node: HTMLElement, go: () => void}} Entry */

/** The quick switcher. It is made when it is first asked for. */
export class Switcher {
  #app;
  /** @type {HTMLDialogElement|null} */
  #dialog = null;
  #field = el("input", { type: "text", role: "combobox", "aria-autocomplete": "list", "aria-expanded": "true", maxlength: "200" });
  #list = el("div", { role: "listbox", id: "switcher-list" });
  #state = el("p", { class: "hint", role: "status" });
  /** @type {Entry[]} */
  #entries = [];
  #chosen = 0;
  #timer = 0;
  #words = "";

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
    addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
      // Over another dialog it would open behind what that one asks.
      if (this.#dialog?.open !== true && document.querySelector("dialog[open]") !== null) return;
      event.preventDefault();
      this.toggle();
    });
  }

  toggle() {
    this.#dialog ??= this.#made();
    const dialog = this.#dialog;
    if (dialog.open) {
      dialog.close();
      return;
    }
    this.#field.value = "";
    this.#words = "";
    this.#show(this.#recent());
    dialog.showModal();
    this.#field.focus();
  }

  #made() {
    this.#field.setAttribute("aria-label", t("hint"));
    this.#field.placeholder = t("hint");
    this.#field.setAttribute("aria-controls", this.#list.id);
    this.#list.setAttribute("aria-label", t("list"));
    const heading = el("h2", { class: "visually-hidden", id: "switcher-title" }, t("title"));
    const box = el("div", { class: "switcher-field" }, icon("search"), this.#field);
    const dialog = el("dialog", { id: "switcher", "aria-labelledby": "switcher-title" }, heading, box, this.#list, this.#state);
    this.#field.addEventListener("input", () => this.#searchSoon());
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    document.body.append(dialog);
    return dialog;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.isComposing) return;
    const count = this.#entries.length;
    if (event.key === "Enter") this.#entries[this.#chosen]?.go();
    else if (event.key === "ArrowDown") this.#choose((this.#chosen + 1) % Math.max(count, 1));
    else if (event.key === "ArrowUp") this.#choose((this.#chosen - 1 + count) % Math.max(count, 1));
    else return;
    event.preventDefault();
  }

  /** @param {number} at */
  #choose(at) {
    this.#entries[this.#chosen]?.node.setAttribute("aria-selected", "false");
    this.#chosen = at;
    const node = this.#entries[at]?.node;
    node?.setAttribute("aria-selected", "true");
    node?.scrollIntoView({ block: "nearest" });
    if (node === undefined) this.#field.removeAttribute("aria-activedescendant");
    else this.#field.setAttribute("aria-activedescendant", node.id);
  }

  #searchSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#search(this.#field.value.trim()), PAUSE_MS);
  }

  /** Of two searches the later one counts. @param {string} words */
  async #search(words) {
    this.#words = words;
    if (words === "") {
      this.#show(this.#recent());
      return;
    }
    try {
      const sessions = await this.#app.api.sessions({ words, limit: MOST });
      if (this.#words !== words) return;
      for (const session of sessions) this.#app.state.sessions.set(session.id, session);
      this.#show(sessions);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const { title, message } = errorText(error.failure);
      this.#state.textContent = [title, message].filter(Boolean).join(" ");
    }
  }

  #recent() {
    return this.#app.list.listed.slice(0, MOST);
  }

  /** @param {Session[]} sessions */
  #show(sessions) {
    const like = this.#words.toLowerCase();
    const fixed = [
      { name: t("fresh"), hash: "#/", sign: /** @type {IconName} */ ("plus") },
      ...this.#app.navigation.places.map(({ name, title }) => ({ name: title(), hash: `#/${name}`, sign: /** @type {IconName} */ ("book") })),
    ].filter(({ name }) => name.toLowerCase().includes(like));
    // Without words one begins something; with words one looks for what is there.
    const ways = fixed.map(({ name, hash, sign }) => this.#entry(hash, icon(sign), el("span", { class: "session-title" }, name)));
    const found = sessions.map((session) => this.#ofSession(session));
    this.#entries = this.#words === "" ? [...ways, ...found] : [...found, ...ways];
    this.#entries.forEach(({ node }, at) => {
      node.id = `switcher-${at}`;
    });
    this.#list.replaceChildren(...this.#entries.map(({ node }) => node));
    this.#choose(0);
    this.#state.textContent = found.length === 0 && this.#words !== "" ? t("nothing") : t("count", { count: this.#entries.length });
  }

  /** @param {Session} session */
  #ofSession(session) {
    const mark = el("span", { class: "agent-mark", "aria-hidden": "true" });
    markAgentOf(mark, session);
    const { found } = session;
    const place = found === undefined ? "" : `/${found.rank}`;
    return this.#entry(
      `#/c/${session.id}${place}`,
      mark,
      el("span", { class: "session-title", dir: "auto" }, titleOf(session)),
      el("time", { datetime: session.updated_at }, moment(session.updated_at)),
      found === undefined ? "" : el("span", { class: "snippet", dir: "auto" }, marked(found.text, this.#words)),
    );
  }

  /** @param {string} hash @param {...(Node|string)} children @returns {Entry} */
  #entry(hash, ...children) {
    const node = el("div", { role: "option", class: "switcher-entry", "aria-selected": "false" }, ...children);
    const go = () => {
      this.#dialog?.close();
      this.#app.navigation.leaveTo(hash);
    };
    node.addEventListener("click", go);
    return { node, go };
  }
}
