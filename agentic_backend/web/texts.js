/** What the page says about failures and warnings, by the codes of the wire; unknown codes still read well. */

/** @typedef {{title: string, message: string}} Words a heading and what it is about, "" for no more */

/** @type {Record<string, string>} */
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
  upload_processing_failed: "This file could not be read",
  http_404: "This document is not there",
  lost: "The connection was lost during this answer",
  unreachable: "The service does not answer",
};

/** @type {Record<string, string>} */
const MESSAGES = {
  lost: "It may have finished all the same: reload the page in a moment to see.",
  unreachable: "Check that it is running and that you are online, then try again.",
};

/** @type {Record<string, string>} */
const WARNINGS = {
  answered_without_documents: "Answered without your documents: they could not be searched.",
  documents_being_prepared:
    "The search in documents is being set up: a first start fetches its model. Ask again in a minute.",
  answered_without_tools: "Answered without some of the agent's tools: they could not be reached.",
  stopped_at_recursion_limit: "Stopped early: the question needs more steps than the agent may take.",
};

/**
 * {title, message} of an error {code, message?}. With a `field`, it is of an answer to the agent.
 * @param {{code: string, message?: string|null, field?: string}} error
 */
export function errorText(error) {
  if (error.field !== undefined) return { title: "The agent cannot take this answer", message: `(${error.field})` };
  const title = TITLES[error.code] ?? "Something went wrong";
  return { title, message: error.message ?? MESSAGES[error.code] ?? "" };
}

/**
 * The sentence for a warning's code.
 * @param {string} code
 */
export function warningText(code) {
  return WARNINGS[code] ?? `Note: ${String(code).replaceAll("_", " ")}.`;
}

/** What a form of the agent's questions misses. */
export const MISSING = { choice: "Choose one of these.", words: "Write an answer." };

/**
 * What is wrong with arguments that a person has edited.
 * @param {string|null} reason why they cannot be read; null where they can, and are no object
 */
export function argumentsProblem(reason) {
  return reason === null ? "The arguments must be a JSON object: { … }." : `This is not JSON: ${reason}`;
}

/**
 * What the person told the agent, in a line.
 * @param {unknown} answer as it was sent: {choice_id}, {text}, {decisions} or {answers}
 * @param {string} said the same in words, "" where there are none
 * @param {string[]} names of the calls that waited for it
 */
export function decisionText(answer, said, names) {
  const { decisions, answers, choice_id: choice, text } = fieldsOf(answer);
  if (Array.isArray(decisions)) return decisionsText(decisions, names);
  const verb = VERBS[String(choice)];
  if (verb !== undefined) return `You ${verb}${names.length === 0 ? "" : `: ${names.join(", ")}`}`;
  if (typeof answers === "object" && answers !== null) {
    const count = Object.keys(answers).length;
    return `You answered ${count === 1 ? "a question" : `${count} questions`}`;
  }
  const words = [said, text, choice, answer].find((value) => typeof value === "string" && value !== "");
  return typeof words === "string" ? `You answered: ${words}` : "You answered";
}

/** @param {unknown[]} decisions @param {string[]} names */
function decisionsText(decisions, names) {
  /** @type {Map<string, string[]>} names by what was decided */
  const groups = new Map();
  decisions.map(fieldsOf).forEach(({ type, edited_action: edited }, at) => {
    const verb = VERBS[String(type)] ?? "answered";
    const own = names.length === decisions.length ? names[at] : fieldsOf(edited).name;
    groups.set(verb, [...(groups.get(verb) ?? []), typeof own === "string" ? own : ""]);
  });
  const parts = [...groups].map(([verb, called]) => {
    if (!called.includes("")) return `${verb}: ${called.join(", ")}`;
    return called.length === decisions.length && called.length === 1 ? verb : `${verb} ${called.length} of them`;
  });
  const { message } = fieldsOf(decisions[0]);
  const reason = decisions.length === 1 && typeof message === "string" && message !== "" ? ` (“${message}”)` : "";
  return `You ${parts.join("; ")}${reason}`;
}

/** @type {Record<string, string|undefined>} by a decision's type, or by the choice that means the same */
const VERBS = {
  approve: "approved",
  allow: "approved",
  edit: "approved with changes",
  reject: "rejected",
  deny: "rejected",
  respond: "answered in place of",
};

/** @param {unknown} value @returns {Record<string, unknown>} */
function fieldsOf(value) {
  return typeof value === "object" && value !== null ? /** @type {Record<string, unknown>} */ (value) : {};
}
