/** Where a conversation searches: what is chosen stands as chips above the message box, and goes with each question. */

/**
 * @import { Agent } from "./api.js"
 * @import { App } from "./app.js"
 */
import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";

/**
 * @typedef {{id: string, name: string}} Chosen a library, or a document
 * @typedef {"hybrid"|"semantic"|"strict"} Policy
 * @typedef {"hybrid"|"corpus_only"|"general_only"} RagScope
 * @typedef {object} Scope
 * @property {Chosen[]} libraries none for all
 * @property {Chosen[]} documents none for all
 * @property {Policy|null} policy null for the agent's own
 * @property {RagScope|null} rag null for the agent's own
 * @property {boolean} corpus whether libraries are searched, beside what is attached
 * @typedef {NonNullable<Agent["chat_options"]>} ChatOptions
 */

/** As many of either as are kept: preferences are small. */
export const MAX_CHOSEN = 20;
/** @type {Scope} */
const EVERYWHERE = { libraries: [], documents: [], policy: null, rag: null, corpus: true };
const POLICIES = ["hybrid", "semantic", "strict"];
const RAG_SCOPES = ["hybrid", "corpus_only", "general_only"];

const t = catalogue({
  en: {
    library: "Library: {name}",
    document: "Document: {name}",
    semantic: "By meaning",
    strict: "Exact words",
    hybrid: "By words and meaning",
    corpus_only: "Only from documents",
    general_only: "Without documents",
    ragHybrid: "Documents and general knowledge",
    withoutLibraries: "Without libraries",
    remove: "Remove: {what}",
  },
  fr: {
    library: "Bibliothèque : {name}",
    document: "Document : {name}",
    semantic: "Par le sens",
    strict: "Mots exacts",
    hybrid: "Par les mots et le sens",
    corpus_only: "Seulement d'après les documents",
    general_only: "Sans documents",
    ragHybrid: "Documents et connaissances générales",
    withoutLibraries: "Sans les bibliothèques",
    remove: "Retirer : {what}",
  },
});

/** The names of the choices. */
export const POLICY_NAMES = { hybrid: t("hybrid"), semantic: t("semantic"), strict: t("strict") };
export const RAG_NAMES = { hybrid: t("ragHybrid"), corpus_only: t("corpus_only"), general_only: t("general_only") };

/** Shows and changes the scope of the conversation on the screen. */
export class ScopeBar {
  #app;
  #chips;
  #button;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
    const { chips, button } = app.view.scopeNodes;
    this.#chips = chips;
    this.#button = button;
    this.#button.addEventListener("click", () => this.#openDialog());
  }

  /** @returns {ChatOptions} what the agent of the conversation offers */
  get #options() {
    const { agents, chosenAgentId } = this.#app.agents;
    return agents.find(({ id }) => id === chosenAgentId)?.chat_options ?? {};
  }

  /** @returns {Scope} as far as the agent offers it */
  get #scope() {
    return scopeIn(this.#app.preferences.of(this.#app.state.currentId).scope, this.#options);
  }

  show() {
    this.#button.hidden = !offersScope(this.#options);
    const scope = this.#scope;
    const chips = chipsOf(scope).map(({ what, without }) => this.#chip(what, without));
    this.#chips.hidden = chips.length === 0;
    this.#chips.replaceChildren(...chips);
  }

  /** What a question of the conversation says of it. @returns {Partial<Frames.RuntimeContext>} */
  context() {
    return contextOf(this.#scope);
  }

  /** @param {Scope} scope */
  #choose(scope) {
    this.#app.preferences.prefer({ scope });
    this.show();
  }

  /** @param {string} what @param {Scope} without */
  #chip(what, without) {
    const label = t("remove", { what });
    const onclick = () => {
      this.#choose(without);
      // The button is gone, and with it the place of the keyboard.
      this.#app.view.focusComposer();
    };
    const attributes = { type: "button", class: "quiet icon-button", "aria-label": label, title: label, onclick };
    return el("li", {}, el("span", { dir: "auto" }, what), el("button", attributes, icon("close")));
  }

  async #openDialog() {
    await this.#app.guarded(async () => {
      const { openScopeDialog } = await import("./scope_dialog.js");
      const choose = (/** @type {Scope} */ scope) => this.#choose(scope);
      openScopeDialog(this.#app.api, { options: this.#options, scope: this.#scope, choose });
    });
  }
}

/** @param {ChatOptions} options */
function offersScope(options) {
  const { search_policy_selection: policy, libraries_selection: libraries, documents_selection: documents } = options;
  return [policy, libraries, documents, options.search_rag_scoping, options.include_corpus_in_search].includes(true);
}

/**
 * A scope as it is kept, which any client may have written, without what the agent does not offer.
 * @param {unknown} kept
 * @param {ChatOptions} options
 * @returns {Scope}
 */
function scopeIn(kept, options) {
  const { libraries, documents, policy, rag, corpus } = fieldsOf(kept);
  return {
    libraries: options.libraries_selection ? chosenIn(libraries) : [],
    documents: options.documents_selection ? chosenIn(documents) : [],
    policy: options.search_policy_selection ? oneOf(/** @type {Policy[]} */ (POLICIES), policy) : null,
    rag: options.search_rag_scoping ? oneOf(/** @type {RagScope[]} */ (RAG_SCOPES), rag) : null,
    corpus: !(options.include_corpus_in_search && corpus === false),
  };
}

/** @param {unknown} kept @returns {Chosen[]} */
function chosenIn(kept) {
  if (!Array.isArray(kept)) return [];
  const named = kept.map(fieldsOf).flatMap(({ id, name }) => {
    return typeof id === "string" && typeof name === "string" ? [{ id, name }] : [];
  });
  return named.slice(0, MAX_CHOSEN);
}

/** @template {string} T @param {T[]} all @param {unknown} value @returns {T|null} */
function oneOf(all, value) {
  return all.find((one) => one === value) ?? null;
}

/** @param {unknown} value @returns {Record<string, unknown>} */
function fieldsOf(value) {
  return typeof value === "object" && value !== null ? /** @type {Record<string, unknown>} */ (value) : {};
}

/**
 * What is chosen, in words, each with the scope that is left without it.
 * @param {Scope} scope
 * @returns {{what: string, without: Scope}[]}
 */
function chipsOf(scope) {
  const { libraries, documents, policy, rag, corpus } = scope;
  /** @param {Chosen[]} all @param {Chosen} one */
  const less = (all, one) => all.filter(({ id }) => id !== one.id);
  return [
    ...libraries.map((one) => {
      return { what: t("library", { name: one.name }), without: { ...scope, libraries: less(libraries, one) } };
    }),
    ...documents.map((one) => {
      return { what: t("document", { name: one.name }), without: { ...scope, documents: less(documents, one) } };
    }),
    ...(policy === null ? [] : [{ what: POLICY_NAMES[policy], without: { ...scope, policy: EVERYWHERE.policy } }]),
    ...(rag === null ? [] : [{ what: RAG_NAMES[rag], without: { ...scope, rag: EVERYWHERE.rag } }]),
    ...(corpus ? [] : [{ what: t("withoutLibraries"), without: { ...scope, corpus: true } }]),
  ];
}

/** @param {Scope} scope @returns {Partial<Frames.RuntimeContext>} */
function contextOf({ libraries, documents, policy, rag, corpus }) {
  return {
    ...(libraries.length === 0 ? {} : { selected_document_libraries_ids: libraries.map(({ id }) => id) }),
    ...(documents.length === 0 ? {} : { selected_document_uids: documents.map(({ id }) => id) }),
    ...(policy === null ? {} : { search_policy: policy }),
    ...(rag === null ? {} : { search_rag_scope: rag }),
    ...(corpus ? {} : { include_corpus_scope: false }),
  };
}
