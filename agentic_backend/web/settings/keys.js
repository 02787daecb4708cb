/** The person's API keys: listed, made and revoked (docs/keys.md). A secret is shown once and kept nowhere. */

/**
 * @import { Agent } from "../api.js"
 * @import { Page } from "../places.js"
 *
 * A key as its owner sees it; times are ISO 8601.
 * @typedef {object} Key
 * @property {string} id
 * @property {string} name
 * @property {string[]} scopes
 * @property {string[]|null} agents
 * @property {number} rate_per_min
 * @property {string} created_at
 * @property {string|null} expires_at
 * @property {string|null} revoked_at
 * @property {string|null} last_used_at
 */
import { ApiError } from "../api.js";
import { copyButton, el, icon } from "../dom.js";
import { fullMoment } from "../format.js";
import { catalogue } from "../i18n.js";
import { errorText } from "../texts.js";
import { confirmed } from "../confirm.js";

const t = catalogue({
  en: {
    heading: "API keys",
    about: "A key lets a script or another program in as you, within what you allow it.",
    off: "Keys cannot be made here.",
    unread: "Your keys could not be read.",
    again: "Try again",
    none: "You have no keys yet.",
    make: "New key",
    name: "Name",
    nameHint: "What it is for",
    scopes: "What it may do",
    ask: "Ask agents, hold conversations",
    read: "Read your conversations and documents",
    search: "Search documents",
    ingest: "Attach files, change documents",
    admin: "Make keys, use your roles",
    act_as: "Speak for other people, whom it names",
    agents: "Agents it may ask",
    allAgents: "All of yours",
    someAgents: "These only",
    days: "Valid for",
    forDays: { one: "{count} day", other: "{count} days" },
    forever: "No end",
    rate: "Requests a minute, 0 for no limit",
    submit: "Make the key",
    cancel: "Cancel",
    noScope: "Choose at least one thing that it may do.",
    noAgent: "Choose at least one agent.",
    noName: "Give it a name.",
    made: "The key “{name}” is made",
    once: "Copy it now: it is shown this once and never again.",
    secret: "The key",
    copy: "Copy the key",
    done: "Done",
    revoke: "Revoke",
    revokeOf: "Revoke {name}",
    revokeTitle: "Revoke this key?",
    revokeText: "Whatever uses “{name}” is refused from now on. This cannot be undone.",
    keep: "Keep it",
    revoked: "The key “{name}” is revoked.",
    stateRevoked: "Revoked {when}",
    stateExpired: "Expired {when}",
    stateUntil: "Valid until {when}",
    stateValid: "Valid without end",
    used: "Last used {when}",
    unused: "Never used",
    ofAgents: "Agents: {names}",
  },
  fr: {
    heading: "Clés d'API",
    about: "Une clé permet à un script ou à un autre programme d'agir en votre nom, dans les limites que vous fixez.",
    off: "Les clés ne peuvent pas être créées ici.",
    unread: "Vos clés n'ont pas pu être lues.",
    again: "Réessayer",
    none: "Vous n'avez pas encore de clé.",
    make: "Nouvelle clé",
    name: "Nom",
    nameHint: "À quoi elle sert",
    scopes: "Ce qu'elle permet",
    ask: "Interroger des agents, mener des conversations",
    read: "Lire vos conversations et vos documents",
    search: "Rechercher dans les documents",
    ingest: "Joindre des fichiers, modifier des documents",
    admin: "Créer des clés, utiliser vos rôles",
    act_as: "Parler pour d'autres personnes, qu'elle nomme",
    agents: "Agents qu'elle peut interroger",
    allAgents: "Tous les vôtres",
    someAgents: "Ceux-ci seulement",
    days: "Valable",
    forDays: { one: "{count} jour", other: "{count} jours" },
    forever: "Sans fin",
    rate: "Requêtes par minute, 0 pour aucune limite",
    submit: "Créer la clé",
    cancel: "Annuler",
    noScope: "Choisissez au moins une permission.",
    noAgent: "Choisissez au moins un agent.",
    noName: "Donnez-lui un nom.",
    made: "La clé « {name} » est créée",
    once: "Copiez-la maintenant : elle ne sera plus jamais affichée.",
    secret: "La clé",
    copy: "Copier la clé",
    done: "Terminé",
    revoke: "Révoquer",
    revokeOf: "Révoquer {name}",
    revokeTitle: "Révoquer cette clé ?",
    revokeText: "Tout ce qui utilise « {name} » sera refusé dès maintenant. C'est définitif.",
    keep: "La garder",
    revoked: "La clé « {name} » est révoquée.",
    stateRevoked: "Révoquée : {when}",
    stateExpired: "Expirée : {when}",
    stateUntil: "Valable jusqu'au {when}",
    stateValid: "Valable sans fin",
    used: "Dernière utilisation : {when}",
    unused: "Jamais utilisée",
    ofAgents: "Agents : {names}",
  },
});

/** @typedef {"ask"|"read"|"search"|"ingest"|"admin"|"act_as"} Scope */
/** @type {Scope[]} */
const SCOPES = ["ask", "read", "search", "ingest", "admin", "act_as"];
/** What a key is given where nothing else is chosen. @type {ReadonlySet<string>} */
const USUAL = new Set(["ask", "read", "search"]);
const DAYS = [7, 30, 90, 365];
const USUAL_DAYS = 90;
const MAX_NAME_CHARS = 80;

/**
 * @param {Page} page
 * @param {AbortSignal} ended
 */
export function keysSection(page, ended) {
  return new Keys(page, ended).node;
}

/** The section: its list, and in its place the form or the new key. */
class Keys {
  #page;
  #ended;
  #list = el("ul", { class: "keys" });
  #state = el("p", { class: "hint", role: "status" });
  #make = el("button", { type: "button" }, icon("plus"), t("make"));
  #panel = el("div", {});
  /** @type {Agent[]} */
  #agents = [];

  /** @param {Page} page @param {AbortSignal} ended */
  constructor(page, ended) {
    this.#page = page;
    this.#ended = ended;
    this.#make.hidden = true;
    this.#make.addEventListener("click", () => this.#showForm());
    this.node = el(
      "section",
      { "aria-labelledby": "settings-keys" },
      el("h2", { id: "settings-keys" }, t("heading")),
      el("p", { class: "hint" }, t("about")),
      this.#state,
      this.#list,
      this.#make,
      this.#panel,
    );
    this.#load();
  }

  async #load() {
    try {
      const [keys, agents] = await Promise.all([this.#page.api.call("GET", "chatbot/keys"), this.#page.api.agents()]);
      if (this.#ended.aborted) return;
      this.#agents = agents;
      this.#show(keys);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.#ended.aborted) return;
      if (error.status === 403) this.#state.replaceChildren(t("off"));
      else this.#state.replaceChildren(t("unread"), " ", this.#again());
    }
  }

  #again() {
    return el("button", { type: "button", class: "small", onclick: () => this.#load() }, t("again"));
  }

  /** @param {Key[]} keys */
  #show(keys) {
    this.#make.hidden = !this.#panel.matches(":empty");
    if (this.#state.contains(document.activeElement)) this.#make.focus();
    this.#state.textContent = keys.length === 0 ? t("none") : "";
    this.#list.replaceChildren(...keys.map((key) => this.#row(key)));
  }

  /** @param {Key} key */
  #row(key) {
    const { words, valid } = stateOf(key);
    const begin = `tw_${key.id}_…`;
    const row = el(
      "li",
      { class: valid ? "key" : "key ended" },
      el("div", {}, el("strong", { dir: "auto" }, key.name), el("code", {}, begin)),
      el("p", { class: "hint" }, words, " · ", key.last_used_at === null ? t("unused") : t("used", { when: fullMoment(key.last_used_at) })),
      el("p", { class: "hint" }, this.#allowed(key)),
    );
    if (valid) {
      const revoke = el("button", { type: "button", class: "small", "aria-label": t("revokeOf", { name: key.name }) }, t("revoke"));
      revoke.addEventListener("click", () => this.#revoke(key));
      row.append(revoke);
    }
    return row;
  }

  /** @param {Key} key */
  #allowed({ scopes, agents }) {
    const known = scopes.map((scope) => (isScope(scope) ? t(scope) : scope)).join(" · ");
    if (agents === null) return known;
    const names = agents.map((id) => this.#agents.find((agent) => agent.id === id)?.name ?? id).join(", ");
    return `${known} · ${t("ofAgents", { names })}`;
  }

  /** @param {Key} key */
  async #revoke(key) {
    const texts = { title: t("revokeTitle"), text: t("revokeText", { name: key.name }), keep: t("keep"), act: t("revoke") };
    if (!(await confirmed(this.node, texts))) return;
    await this.#guarded(async () => {
      await this.#page.api.call("DELETE", `chatbot/keys/${encodeURIComponent(key.id)}`);
      await this.#load();
      this.#state.textContent = t("revoked", { name: key.name });
      this.#make.focus();
    });
  }

  #showForm() {
    const close = () => this.#closePanel();
    const form = keyForm(this.#agents, this.#scopes(), (wanted) => this.#create(wanted), close);
    this.#panel.replaceChildren(form);
    this.#make.hidden = true;
    form.querySelector("input")?.focus();
  }

  /** What the person may hand on, as far as the page knows; the service decides. */
  #scopes() {
    const operates = this.#page.permissions.has("kpi:read");
    const administers = operates || this.#page.permissions.has("agents:create");
    return SCOPES.filter((scope) => (scope === "act_as" ? operates : scope !== "admin" || administers));
  }

  /** @param {Wanted} wanted */
  async #create(wanted) {
    await this.#guarded(async () => {
      const made = await this.#page.api.call("POST", "chatbot/keys", wanted);
      this.#panel.replaceChildren(this.#shown(made));
      this.#panel.querySelector("input")?.select();
      await this.#load();
    });
  }

  /** @param {Key & {key: string}} made */
  #shown({ name, key }) {
    const secret = el("input", { readonly: true, value: key, "aria-label": t("secret"), spellcheck: "false" });
    secret.addEventListener("focus", () => secret.select());
    return el(
      "div",
      { class: "new-key", role: "group", "aria-label": t("made", { name }) },
      el("h3", {}, t("made", { name })),
      el("p", { role: "status" }, t("once")),
      el("div", { class: "secret" }, secret, copyButton(() => key, t("copy"))),
      el("button", { type: "button", onclick: () => this.#closePanel() }, t("done")),
    );
  }

  #closePanel() {
    this.#panel.replaceChildren();
    this.#make.hidden = false;
    this.#make.focus();
  }

  /** @param {() => Promise<void>} step */
  async #guarded(step) {
    try {
      await step();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#page.notify(errorText(error.failure));
    }
  }
}

/**
 * The body of a request for a key.
 * @typedef {{name: string, scopes: string[], agents: string[]|null, days: number, rate_per_min: number}} Wanted
 */

/**
 * @param {Agent[]} agents
 * @param {Scope[]} scopes
 * @param {(wanted: Wanted) => void} make
 * @param {() => void} cancel
 */
function keyForm(agents, scopes, make, cancel) {
  const name = el("input", { required: true, maxlength: MAX_NAME_CHARS, placeholder: t("nameHint"), autocomplete: "off" });
  const granted = checks(t("scopes"), scopes.map((id) => ({ id, words: t(id), checked: USUAL.has(id) })));
  const reach = el("select", {}, el("option", { value: "all" }, t("allAgents")), el("option", { value: "some" }, t("someAgents")));
  const chosen = checks(t("agents"), agents.map((agent) => ({ id: agent.id, words: agent.name, checked: false })));
  chosen.node.hidden = true;
  reach.addEventListener("change", () => {
    chosen.node.hidden = reach.value === "all";
  });
  const spans = DAYS.map((count) => el("option", { value: count }, t("forDays", { count })));
  const days = el("select", {}, spans, el("option", { value: 0 }, t("forever")));
  days.value = String(USUAL_DAYS);
  const rate = el("input", { type: "number", min: 0, max: 1_000_000, step: 1, value: 0 });
  const problem = el("p", { class: "problem", role: "alert" });
  const read = () => {
    const some = reach.value === "some" ? chosen.read() : null;
    if (name.value.trim() === "") return { problem: t("noName"), at: name };
    if (granted.read().length === 0) return { problem: t("noScope"), at: granted.first };
    if (some?.length === 0) return { problem: t("noAgent"), at: reach };
    const wanted = { name: name.value.trim(), scopes: granted.read(), agents: some };
    return { wanted: { ...wanted, days: Number(days.value), rate_per_min: Number(rate.value) } };
  };
  /** @param {SubmitEvent} event */
  const onsubmit = (event) => {
    event.preventDefault();
    const said = read();
    problem.textContent = said.problem ?? "";
    if (said.wanted !== undefined) make(said.wanted);
    else said.at?.focus();
  };
  return el(
    "form",
    { class: "key-form", novalidate: true, onsubmit, "aria-label": t("make") },
    labelled(t("name"), name),
    granted.node,
    labelled(t("agents"), reach),
    chosen.node,
    labelled(t("days"), days),
    labelled(t("rate"), rate),
    problem,
    el(
      "div",
      { class: "buttons" },
      el("button", { class: "primary" }, t("submit")),
      el("button", { type: "button", onclick: cancel }, t("cancel")),
    ),
  );
}

/** @param {string} words @param {HTMLElement} control */
function labelled(words, control) {
  return el("label", { class: "setting" }, el("span", {}, words), control);
}

/** @param {string} legend @param {{id: string, words: string, checked: boolean}[]} options */
function checks(legend, options) {
  const boxes = options.map(({ id, checked }) => el("input", { type: "checkbox", value: id, checked }));
  const rows = options.map(({ words }, at) => el("label", { class: "way" }, boxes[at], el("span", { dir: "auto" }, words)));
  const node = el("fieldset", { class: "ways" }, el("legend", {}, legend), ...rows);
  return { node, first: boxes[0], read: () => boxes.filter((box) => box.checked).map((box) => box.value) };
}

/** @param {Key} key */
function stateOf({ revoked_at: revoked, expires_at: expires }) {
  if (revoked !== null) return { words: t("stateRevoked", { when: fullMoment(revoked) }), valid: false };
  if (expires === null) return { words: t("stateValid"), valid: true };
  const when = fullMoment(expires);
  if (new Date(expires) <= new Date()) return { words: t("stateExpired", { when }), valid: false };
  return { words: t("stateUntil", { when }), valid: true };
}

/** @param {string} name @returns {name is Scope} */
function isScope(name) {
  return /** @type {string[]} */ (SCOPES).includes(name);
}
