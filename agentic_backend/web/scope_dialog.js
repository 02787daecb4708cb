/** Choosing where a conversation searches: libraries, documents, and how. Fetched when it is first opened. */

/**
 * @import { Api } from "./api.js"
 * @import { ChatOptions, Chosen, Scope } from "./scope.js"
 */
import { ApiError } from "./api.js";
import { el } from "./dom.js";
import { catalogue } from "./i18n.js";
import { LibraryApi } from "./libraries/api.js";
import { MAX_CHOSEN, POLICY_NAMES, RAG_NAMES } from "./scope.js";
import { errorText } from "./texts.js";

const SEARCH_PAUSE_MS = 250;
const MOST_SHOWN = 20;

const t = catalogue({
  en: {
    heading: "Where to search",
    done: "Done",
    rag: "Answer",
    own: "As the agent does",
    policy: "Find passages",
    corpus: "Search libraries, beside what is attached",
    libraries: "Libraries",
    documents: "Documents",
    all: "None chosen: all that you may read.",
    none: "There is no library yet.",
    find: "Find a document",
    nothing: "No document has this name.",
    most: "At most {most} can be chosen.",
  },
  fr: {
    heading: "Où chercher",
    done: "Terminé",
    rag: "Répondre",
    own: "Comme l'agent le fait",
    policy: "Trouver les passages",
    corpus: "Chercher dans les bibliothèques, en plus des fichiers joints",
    libraries: "Bibliothèques",
    documents: "Documents",
    all: "Aucun choix : tout ce que vous pouvez lire.",
    none: "Il n'y a pas encore de bibliothèque.",
    find: "Trouver un document",
    nothing: "Aucun document ne porte ce nom.",
    most: "On peut en choisir {most} au plus.",
  },
});

/**
 * Opens the dialog; each change is chosen at once.
 * @param {Api} api
 * @param {{options: ChatOptions, scope: Scope, choose: (scope: Scope) => void}} given
 */
export function openScopeDialog(api, { options, scope, choose }) {
  const library = new LibraryApi(api);
  let now = scope;
  /** @param {Partial<Scope>} other */
  const change = (other) => {
    now = { ...now, ...other };
    choose(now);
  };
  const state = el("p", { class: "hint", role: "status" });
  /** @param {() => Promise<void>} call */
  const guarded = async (call) => {
    try {
      await call();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const { title, message } = errorText(error.failure);
      state.textContent = [title, message].filter(Boolean).join(": ");
    }
  };
  const done = el("button", { class: "primary", value: "done" }, t("done"));
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "scope-heading" }, t("heading")),
    options.search_rag_scoping ? choice(t("rag"), RAG_NAMES, now.rag, (rag) => change({ rag })) : [],
    options.search_policy_selection ? choice(t("policy"), POLICY_NAMES, now.policy, (policy) => change({ policy })) : [],
    options.include_corpus_in_search ? corpusBox(now.corpus, (corpus) => change({ corpus })) : [],
    options.libraries_selection ? librariesOf(library, now.libraries, (libraries) => change({ libraries }), guarded) : [],
    options.documents_selection ? documentsOf(library, now.documents, (documents) => change({ documents }), guarded) : [],
    state,
    el("div", { class: "buttons" }, done),
  );
  const dialog = el("dialog", { id: "scope-dialog", "aria-labelledby": "scope-heading" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * @template {string} T
 * @param {string} label
 * @param {Record<T, string>} names
 * @param {T|null} chosen
 * @param {(value: T|null) => void} onChoice
 */
function choice(label, names, chosen, onChoice) {
  const all = /** @type {[T, string][]} */ (Object.entries(names));
  const select = el("select", {}, el("option", { value: "" }, t("own")));
  select.append(...all.map(([value, name]) => el("option", { value }, name)));
  select.value = chosen ?? "";
  select.addEventListener("change", () => onChoice(all.find(([value]) => value === select.value)?.[0] ?? null));
  return el("label", { class: "scope-choice" }, el("span", {}, label), select);
}

/** @param {boolean} checked @param {(checked: boolean) => void} onChange */
function corpusBox(checked, onChange) {
  const box = el("input", { type: "checkbox", checked });
  box.addEventListener("change", () => onChange(box.checked));
  return el("label", { class: "scope-box" }, box, el("span", {}, t("corpus")));
}

/**
 * @typedef {(call: () => Promise<void>) => Promise<void>} Guarded
 * @param {LibraryApi} api
 * @param {Chosen[]} chosen
 * @param {(chosen: Chosen[]) => void} onChange
 * @param {Guarded} guarded
 */
function librariesOf(api, chosen, onChange, guarded) {
  const picks = new Picks(chosen, onChange);
  const group = el("fieldset", {}, el("legend", {}, t("libraries")), picks.hint, picks.node);
  guarded(async () => {
    const all = await api.libraries();
    picks.offer(all.map(({ id, full_path: name }) => ({ id, name })));
    if (all.length === 0 && chosen.length === 0) picks.hint.textContent = t("none");
  });
  return group;
}

/**
 * @param {LibraryApi} api
 * @param {Chosen[]} chosen
 * @param {(chosen: Chosen[]) => void} onChange
 * @param {Guarded} guarded
 */
function documentsOf(api, chosen, onChange, guarded) {
  const picks = new Picks(chosen, onChange);
  const search = el("input", { type: "search", placeholder: t("find"), "aria-label": t("find"), maxlength: 200 });
  let asked = 0;
  const find = () => guarded(async () => {
    asked += 1;
    const own = asked;
    const name = search.value.trim();
    const { documents } = await api.documents({ name, status: "ready", limit: MOST_SHOWN });
    if (own !== asked) return;
    picks.offer(documents.map(({ document_uid: id, title, file_name: file }) => ({ id, name: title || file })));
    if (documents.length === 0 && name !== "") picks.hint.textContent = t("nothing");
  });
  /** @type {number|undefined} */
  let timer;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, SEARCH_PAUSE_MS);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault(); // or the dialog would close
  });
  find();
  return el("fieldset", {}, el("legend", {}, t("documents")), search, picks.hint, picks.node);
}

/** Boxes for what may be chosen: first what is, then what else is offered. */
class Picks {
  #chosen;
  #onChange;
  node = el("ul", { class: "picks" });
  hint = el("p", { class: "hint", role: "status" });

  /** @param {Chosen[]} chosen @param {(chosen: Chosen[]) => void} onChange */
  constructor(chosen, onChange) {
    this.#chosen = chosen;
    this.#onChange = onChange;
    this.offer([]);
  }

  /** @param {Chosen[]} offered */
  offer(offered) {
    const ids = new Set(this.#chosen.map(({ id }) => id));
    const rows = [...this.#chosen, ...offered.filter(({ id }) => !ids.has(id))].map((one) => this.#row(one));
    this.node.replaceChildren(...rows);
    this.#describe();
  }

  #describe() {
    this.hint.textContent = this.#chosen.length === 0 ? t("all") : "";
  }

  /** @param {Chosen} one */
  #row(one) {
    const box = el("input", { type: "checkbox", checked: this.#chosen.some(({ id }) => id === one.id) });
    box.addEventListener("change", () => {
      const others = this.#chosen.filter(({ id }) => id !== one.id);
      if (box.checked && others.length >= MAX_CHOSEN) {
        box.checked = false;
        this.hint.textContent = t("most", { most: MAX_CHOSEN });
        return;
      }
      this.#chosen = box.checked ? [...others, one] : others;
      this.#describe();
      this.#onChange(this.#chosen);
    });
    return el("li", {}, el("label", { class: "scope-box" }, box, el("span", { dir: "auto" }, one.name)));
  }
}
