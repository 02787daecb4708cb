/** What a person can do about a failure, and which limit it was that they hit, by the codes of the wire. */

import { catalogue } from "./i18n.js";
import { serviceFacts } from "./service_facts.js";

const t = catalogue({
  en: {
    shorten: "Shorten it, or attach the long part as a file.",
    wait: "Wait a moment, then try again: your question is kept here.",
    waitForOther: "Wait until one of your other answers is there, then try again.",
    waitForThis: "Wait for that answer, then ask again.",
    restarting: "Try again in a few seconds: it will be back.",
    otherModel: "Try again. If it stays like this, choose another model, or tell who runs this service.",
    seeingModel: "Choose another model or agent, or remove the image above the message box, then ask again.",
    brokeOff: "Try again: the next attempt often gets through.",
    askLess: "Ask for less at once, or in several steps.",
    withoutDocuments: "Try again in a minute, or ask without your documents.",
    reload: "Reload the page to try again.",
    tellOperator: "Tell who runs this service; your question is kept here.",
    otherAgent: "Choose another agent, then ask again.",
    newConversation: "Begin a new conversation.",
    signIn: "Sign in, then ask again.",
    askAccess: "Ask who runs this service for access, or choose another agent.",
    internal: "Try again. If it happens again, tell who runs this service.",
    limitChars: "At most {most} characters are allowed; this message has {own}.",
    limitRate: "You may ask {most} questions a minute.",
    limitTurns: { one: "You may have one question answered at a time.", other: "You may have {count} questions answered at a time." },
    limitTurn: "An answer may take {most} s.",
  },
  fr: {
    shorten: "Raccourcissez-le, ou joignez la partie longue sous forme de fichier.",
    wait: "Attendez un instant, puis réessayez : votre question est conservée ici.",
    waitForOther: "Attendez la fin d'une de vos autres réponses, puis réessayez.",
    waitForThis: "Attendez cette réponse, puis reposez votre question.",
    restarting: "Réessayez dans quelques secondes : le service revient.",
    otherModel: "Réessayez. Si cela persiste, choisissez un autre modèle ou prévenez l'exploitant du service.",
    seeingModel: "Choisissez un autre modèle ou agent, ou retirez l'image au-dessus du message, puis reposez votre question.",
    brokeOff: "Réessayez : la tentative suivante aboutit souvent.",
    askLess: "Demandez moins à la fois, ou procédez en plusieurs étapes.",
    withoutDocuments: "Réessayez dans une minute, ou posez la question sans vos documents.",
    reload: "Rechargez la page pour réessayer.",
    tellOperator: "Prévenez l'exploitant du service ; votre question est conservée ici.",
    otherAgent: "Choisissez un autre agent, puis reposez votre question.",
    newConversation: "Commencez une nouvelle conversation.",
    signIn: "Connectez-vous, puis reposez votre question.",
    askAccess: "Demandez l'accès à l'exploitant du service, ou choisissez un autre agent.",
    internal: "Réessayez. Si cela se reproduit, prévenez l'exploitant du service.",
    limitChars: "{most} caractères au plus sont autorisés ; ce message en compte {own}.",
    limitRate: "Vous pouvez poser {most} questions par minute.",
    limitTurns: { one: "Une seule question peut recevoir une réponse à la fois.", other: "{count} questions peuvent recevoir une réponse à la fois." },
    limitTurn: "Une réponse peut prendre {most} s.",
  },
});

/** @type {Record<string, () => string>} */
const ADVICE = {
  message_too_long: () => t("shorten"),
  rate_limited: () => t("wait"),
  too_many_turns: () => t("waitForOther"),
  session_busy: () => t("waitForThis"),
  session_recovering: () => t("restarting"),
  overloaded: () => t("wait"),
  draining: () => t("restarting"),
  llm_unavailable: () => t("otherModel"),
  llm_rate_limited: () => t("wait"),
  llm_timeout: () => t("otherModel"),
  llm_protocol: () => t("brokeOff"),
  model_without_vision: () => t("seeingModel"),
  turn_deadline: () => t("askLess"),
  kf_unavailable: () => t("withoutDocuments"),
  history_unavailable: () => t("reload"),
  storage_full: () => t("tellOperator"),
  agent_not_found: () => t("otherAgent"),
  session_not_found: () => t("newConversation"),
  unauthenticated: () => t("signIn"),
  forbidden: () => t("askAccess"),
  internal: () => t("internal"),
};

/**
 * What to do about a failure; "" where nothing is known of its code.
 * @param {string} code
 */
export function adviceFor(code) {
  return Object.hasOwn(ADVICE, code) ? ADVICE[code]() : "";
}

/**
 * The limit behind a failure with its figure; "" where there is none, or the service did not tell it.
 * @param {string} code
 * @param {string|null} question that was asked
 */
export function limitHit(code, question) {
  const { max_message_chars: chars = 0, asks_per_min: rate = 0, turns_per_user: turns = 0, turn_s: seconds = 0 } = serviceFacts.limits;
  switch (code) {
    case "message_too_long":
      return chars > 0 && question !== null ? t("limitChars", { most: chars, own: [...question].length }) : "";
    case "rate_limited":
      return rate > 0 ? t("limitRate", { most: rate }) : "";
    case "too_many_turns":
      return turns > 0 ? t("limitTurns", { count: turns }) : "";
    case "turn_deadline":
      return seconds > 0 ? t("limitTurn", { most: seconds }) : "";
    default:
      return "";
  }
}
