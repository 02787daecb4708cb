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
 * {title, message} of an error {code, message?}.
 * @param {{code: string, message?: string|null}} error
 */
export function errorText(error) {
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
