/** All that is the person's: taken along as a file, and deleted. */

/** @import { Page } from "../places.js" */
import { ApiError } from "../api.js";
import { el, icon } from "../dom.js";
import { catalogue } from "../i18n.js";
import { saveFile } from "../saving.js";
import { errorText } from "../texts.js";
import { confirmed } from "../confirm.js";

const t = catalogue({
  en: {
    heading: "My data",
    about: "Your conversations with their attachments, links and preferences, what you said about answers, and your keys.",
    export: "Save a copy",
    exporting: "Collecting your data…",
    saved: "Your data is saved as a file.",
    delete: "Delete everything",
    title: "Delete all your data?",
    text: "All your conversations, attachments, ratings and API keys will be gone for good. Documents in libraries stay.",
    word: "delete",
    type: "Type “{word}” to go on",
    keep: "Keep it",
    act: "Delete everything",
    deleting: { one: "{count} conversation deleted so far…", other: "{count} conversations deleted so far…" },
    sessions: { one: "{count} conversation", other: "{count} conversations" },
    keys: { one: "{count} key", other: "{count} keys" },
    deleted: "Deleted: {sessions}, {keys}.",
  },
  fr: {
    heading: "Mes données",
    about: "Vos conversations avec leurs pièces jointes, liens et préférences, vos avis sur les réponses, et vos clés.",
    export: "Enregistrer une copie",
    exporting: "Vos données sont rassemblées…",
    saved: "Vos données sont enregistrées dans un fichier.",
    delete: "Tout supprimer",
    title: "Supprimer toutes vos données ?",
    text: "Toutes vos conversations, pièces jointes, évaluations et clés d'API disparaîtront définitivement. Les documents des bibliothèques restent.",
    word: "supprimer",
    type: "Tapez « {word} » pour continuer",
    keep: "Les garder",
    act: "Tout supprimer",
    deleting: { one: "{count} conversation supprimée…", other: "{count} conversations supprimées…" },
    sessions: { one: "{count} conversation", other: "{count} conversations" },
    keys: { one: "{count} clé", other: "{count} clés" },
    deleted: "Supprimé : {sessions}, {keys}.",
  },
});

/** A large export, or 500 conversations that are deleted, take their time. */
const DEADLINE_MS = 600_000;
/** What was deleted, over the reload that follows. */
const DELETED_KEY = "turnwise.deleted.all";

/**
 * @param {Page} page
 * @param {AbortSignal} ended
 */
export function dataSection(page, ended) {
  const state = el("p", { role: "status" }, deletedBefore());
  const save = el("button", { type: "button" }, icon("save"), t("export"));
  const remove = el("button", { type: "button", class: "danger" }, icon("trash"), t("delete"));
  const section = el(
    "section",
    { "aria-labelledby": "settings-data" },
    el("h2", { id: "settings-data" }, t("heading")),
    el("p", { class: "hint" }, t("about")),
    el("div", { class: "buttons" }, save, remove),
    state,
  );
  /** @param {boolean} locked */
  const lock = (locked) => {
    for (const button of [save, remove]) button.disabled = locked;
  };
  /** @param {(say: (text: string) => void) => Promise<void>} act */
  const run = async (act) => {
    const focused = document.activeElement;
    lock(true);
    try {
      await act((text) => {
        state.textContent = text;
      });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.textContent = "";
      if (!ended.aborted) page.notify(errorText(error.failure));
    } finally {
      lock(false);
      if (focused instanceof HTMLElement && document.activeElement === document.body) focused.focus();
    }
  };
  save.addEventListener("click", () => run((say) => exportAll(page, say)));
  remove.addEventListener("click", async () => {
    const word = { value: t("word"), label: t("type", { word: t("word") }) };
    const sure = await confirmed(section, { title: t("title"), text: t("text"), keep: t("keep"), act: t("act"), word });
    if (sure) await run((say) => deleteAll(page, say));
  });
  return section;
}

/** @param {Page} page @param {(text: string) => void} say */
async function exportAll({ api }, say) {
  say(t("exporting"));
  const { name, blob } = await api.download("chatbot/me/export", DEADLINE_MS);
  saveFile(name, blob);
  say(t("saved"));
}

/** @param {Page} page @param {(text: string) => void} say */
async function deleteAll({ api }, say) {
  let sessions = 0;
  let keys = 0;
  for (;;) {
    say(t("deleting", { count: sessions }));
    const told = await api.call("DELETE", "chatbot/me", undefined, DEADLINE_MS);
    sessions += told.sessions;
    keys += told.keys;
    if (told.complete) break;
  }
  sessionStorage.setItem(DELETED_KEY, JSON.stringify({ sessions, keys }));
  // The page knows conversations in many places: a new one knows none.
  location.reload();
}

/** What was deleted just before this page was loaded, in words. */
function deletedBefore() {
  const kept = sessionStorage.getItem(DELETED_KEY);
  sessionStorage.removeItem(DELETED_KEY);
  if (kept === null) return "";
  const { sessions, keys } = JSON.parse(kept);
  return t("deleted", { sessions: t("sessions", { count: sessions }), keys: t("keys", { count: keys }) });
}
