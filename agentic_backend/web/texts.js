/** What the page says about failures and warnings, by the codes of the wire; unknown codes still read well. */

import { catalogue } from "./i18n.js";

/** @typedef {{title: string, message: string}} Words a heading and what it is about, "" for no more */

const TITLES = {
  message_too_long: "That message is too long",
  session_not_found: "This conversation no longer exists",
  agent_not_found: "This agent is not available",
  session_busy: "This conversation is still answering",
  rate_limited: "Too many questions in a short time",
  too_many_turns: "Too many questions at once",
  overloaded: "The service is busy",
  draining: "The service is restarting",
  llm_unavailable: "The model is not reachable",
  llm_rate_limited: "The model is busy",
  llm_timeout: "The model took too long",
  llm_protocol: "The model's answer broke off",
  turn_deadline: "The answer took too long",
  kf_unavailable: "The documents are not reachable",
  history_unavailable: "The conversation could not be read",
  storage_full: "The service cannot store more answers right now",
  unauthenticated: "You need to sign in",
  forbidden: "You are not allowed to do this",
  not_awaiting: "The agent does not wait for this any more",
  conflict: "This question was already asked with another text",
  attachments_disabled: "Files cannot be attached here",
  attachment_limit_reached: "You have attached as many files as you may",
  attachment_too_large: "This file is too large",
  attachment_duplicate: "A file of this name is attached already",
  missing_filename: "This file has no usable name",
  attachment_not_found: "This file is not attached any more",
  upload_processing_failed: "This file could not be read",
  model_without_vision: "This model does not see images",
  http_404: "This document is not there",
  lost: "The connection was lost during this answer",
  unreachable: "The service does not answer",
};

const MESSAGES = {
  lost: "It may have finished all the same: reload the page in a moment to see.",
  unreachable: "Check that it is running and that you are online, then try again.",
};

const WARNINGS = {
  answered_without_documents: "Answered without your documents: they could not be searched.",
  documents_being_prepared:
    "The search in documents is being set up: a first start fetches its model. Ask again in a minute.",
  answered_without_tools: "Answered without some of the agent's tools: they could not be reached.",
  stopped_at_recursion_limit: "Stopped early: the question needs more steps than the agent may take.",
};

const title = catalogue({
  en: TITLES,
  fr: {
    message_too_long: "Ce message est trop long",
    session_not_found: "Cette conversation n'existe plus",
    agent_not_found: "Cet agent n'est pas disponible",
    session_busy: "Cette conversation est encore en train de répondre",
    rate_limited: "Trop de questions en peu de temps",
    too_many_turns: "Trop de questions à la fois",
    overloaded: "Le service est occupé",
    draining: "Le service redémarre",
    llm_unavailable: "Le modèle n'est pas joignable",
    llm_rate_limited: "Le modèle est occupé",
    llm_timeout: "Le modèle a mis trop de temps",
    llm_protocol: "La réponse du modèle s'est interrompue",
    turn_deadline: "La réponse a pris trop de temps",
    kf_unavailable: "Les documents ne sont pas joignables",
    history_unavailable: "La conversation n'a pas pu être lue",
    storage_full: "Le service ne peut plus enregistrer de réponses pour le moment",
    unauthenticated: "Vous devez vous connecter",
    forbidden: "Vous n'avez pas le droit de faire cela",
    not_awaiting: "L'agent n'attend plus cette réponse",
    conflict: "Cette question a déjà été posée avec un autre texte",
    attachments_disabled: "Les fichiers ne peuvent pas être joints ici",
    attachment_limit_reached: "Vous avez joint autant de fichiers que permis",
    attachment_too_large: "Ce fichier est trop volumineux",
    attachment_duplicate: "Un fichier de ce nom est déjà joint",
    missing_filename: "Ce fichier n'a pas de nom utilisable",
    attachment_not_found: "Ce fichier n'est plus joint",
    model_without_vision: "Ce modèle ne voit pas les images",
    upload_processing_failed: "Ce fichier n'a pas pu être lu",
    http_404: "Ce document n'est pas là",
    lost: "La connexion a été perdue pendant cette réponse",
    unreachable: "Le service ne répond pas",
  },
});

const message = catalogue({
  en: MESSAGES,
  fr: {
    lost: "Elle a peut-être abouti malgré tout : rechargez la page dans un instant pour le voir.",
    unreachable: "Vérifiez qu'il fonctionne et que vous êtes en ligne, puis réessayez.",
  },
});

const warning = catalogue({
  en: WARNINGS,
  fr: {
    answered_without_documents: "Répondu sans vos documents : la recherche n'a pas été possible.",
    documents_being_prepared:
      "La recherche dans les documents se prépare : un premier démarrage télécharge son modèle. Reposez la question dans une minute.",
    answered_without_tools: "Répondu sans certains outils de l'agent : ils n'étaient pas joignables.",
    stopped_at_recursion_limit: "Arrêté avant la fin : la question demande plus d'étapes que l'agent n'en a le droit.",
  },
});

const t = catalogue({
  en: {
    wrong: "Something went wrong",
    answerRefused: "The agent cannot take this answer",
    note: "Note: {code}.",
    noChoice: "Choose one of these.",
    noWords: "Write an answer.",
    noObject: "The arguments must be a JSON object: { … }.",
    noJson: "This is not JSON: {reason}",
    you: "You {deeds}",
    approved: "approved",
    edited: "approved with changes",
    rejected: "rejected",
    responded: "answered in place of",
    answered: "answered",
    answeredSome: { one: "answered a question", other: "answered {count} questions" },
    named: "{deed}: {names}",
    some: "{deed} {count} of them",
    reason: "{deed} (“{words}”)",
  },
  fr: {
    wrong: "Quelque chose n'a pas marché",
    answerRefused: "L'agent ne peut pas accepter cette réponse",
    note: "Remarque : {code}.",
    noChoice: "Choisissez l'une des réponses.",
    noWords: "Écrivez une réponse.",
    noObject: "Les arguments doivent être un objet JSON : { … }.",
    noJson: "Ce n'est pas du JSON : {reason}",
    you: "Vous avez {deeds}",
    approved: "approuvé",
    edited: "approuvé avec des modifications",
    rejected: "refusé",
    responded: "répondu à la place de",
    answered: "répondu",
    answeredSome: { one: "répondu à une question", other: "répondu à {count} questions" },
    named: "{deed} : {names}",
    some: "{deed} ({count} d'entre eux)",
    reason: "{deed} (« {words} »)",
  },
});

/**
 * {title, message} of an error {code, message?}. With a `field`, it is of an answer to the agent.
 * @param {{code: string, message?: string|null, field?: string}} error
 * @returns {Words}
 */
export function errorText({ code, message: told, field }) {
  if (field !== undefined) return { title: t("answerRefused"), message: `(${field})` };
  const words = isIn(MESSAGES, code) ? message(code) : "";
  return { title: isIn(TITLES, code) ? title(code) : t("wrong"), message: told ?? words };
}

/**
 * The sentence for a warning's code.
 * @param {string} code
 */
export function warningText(code) {
  return isIn(WARNINGS, code) ? warning(code) : t("note", { code: String(code).replaceAll("_", " ") });
}

/** What a form of the agent's questions misses. */
export const MISSING = { choice: t("noChoice"), words: t("noWords") };

/**
 * What is wrong with arguments that a person has edited.
 * @param {string|null} reason why they cannot be read; null where they can, and are no object
 */
export function argumentsProblem(reason) {
  return reason === null ? t("noObject") : t("noJson", { reason });
}

/**
 * What the person told the agent, in a line.
 * @param {unknown} answer as it was sent: {choice_id}, {text}, {decisions} or {answers}
 * @param {string} said the same in words, "" where there are none
 * @param {string[]} names of the calls that waited for it
 */
export function decisionText(answer, said, names) {
  return t("you", { deeds: deedsOf(answer, said, names) });
}

/** @param {unknown} answer @param {string} said @param {string[]} names */
function deedsOf(answer, said, names) {
  const { decisions, answers, choice_id: choice, text } = fieldsOf(answer);
  if (Array.isArray(decisions)) return decisionsText(decisions, names);
  const deed = DEEDS[String(choice)];
  if (deed !== undefined) return named(t(deed), names);
  if (typeof answers === "object" && answers !== null) return t("answeredSome", { count: Object.keys(answers).length });
  const words = [said, text, choice, answer].find((value) => typeof value === "string" && value !== "");
  return named(t("answered"), typeof words === "string" ? [words] : []);
}

/** @param {unknown[]} decisions @param {string[]} names */
function decisionsText(decisions, names) {
  /** @type {Map<Deed, string[]>} names by what was decided */
  const groups = new Map();
  decisions.map(fieldsOf).forEach(({ type, edited_action: edited }, at) => {
    const deed = DEEDS[String(type)] ?? "answered";
    const own = names.length === decisions.length ? names[at] : fieldsOf(edited).name;
    groups.set(deed, [...(groups.get(deed) ?? []), typeof own === "string" ? own : ""]);
  });
  const parts = [...groups].map(([deed, called]) => {
    if (!called.includes("")) return named(t(deed), called);
    const alone = called.length === decisions.length && called.length === 1;
    return alone ? t(deed) : t("some", { deed: t(deed), count: called.length });
  });
  const { message: why } = fieldsOf(decisions[0]);
  const told = parts.join("; ");
  return decisions.length === 1 && typeof why === "string" && why !== "" ? t("reason", { deed: told, words: why }) : told;
}

/** @param {string} deed @param {string[]} names */
function named(deed, names) {
  return names.length === 0 ? deed : t("named", { deed, names: names.join(", ") });
}

/** @typedef {"approved"|"edited"|"rejected"|"responded"|"answered"} Deed */
/** @type {Record<string, Deed|undefined>} by a decision's type, or by the choice that means the same */
const DEEDS = {
  approve: "approved",
  allow: "approved",
  edit: "edited",
  reject: "rejected",
  deny: "rejected",
  respond: "responded",
};

/**
 * @template {Record<string, string>} T
 * @param {T} texts
 * @param {string} name
 * @returns {name is keyof T & string}
 */
function isIn(texts, name) {
  return Object.hasOwn(texts, name);
}

/** @param {unknown} value @returns {Record<string, unknown>} */
function fieldsOf(value) {
  return typeof value === "object" && value !== null ? /** @type {Record<string, unknown>} */ (value) : {};
}
