/** The service's REST interface as the page uses it, and the one place that holds the credentials. */

/** @import { Reason } from "./opinion.js" */

/**
 * What the REST interface answers with (docs/protocol.md, docs/agents.md), as far as the page reads it.
 *
 * @typedef {{id: string, name: string, mime?: string, size_bytes?: number, attached_at?: string}} Attachment
 * @typedef {{text: string, rank: number, exchange_id: string}} Found where the words of a search stand in a session
 * @typedef {Frames.Session & {attachments?: Attachment[], agents?: {id: string, name: string}[], found?: Found}} Session
 * @typedef {Pick<Session, "id"|"updated_at"|"pinned">} ListPlace a place in the list: behind such a session
 * @typedef {Frames.Session["preferences"]} Preferences
 * @typedef {object} Agent
 * @property {string} id
 * @property {string} name
 * @property {boolean} [enabled]
 * @property {{role?: string, description?: string, fields?: {key: string}[]}} [tuning]
 * @property {string[]} [starters]
 * @property {{attach_files?: boolean, search_policy_selection?: boolean, libraries_selection?: boolean,
 *   documents_selection?: boolean, search_rag_scoping?: boolean, include_corpus_in_search?: boolean}} [chat_options]
 * @property {{id: string, title: string, description?: string|null, vision?: boolean}[]} [model_choices]
 * @typedef {{id: string, messageId: string, rating: number, reason?: Reason|null, comment?: string|null}} Feedback
 * @typedef {object} Passage
 * @property {string} text
 * @property {number} start in code points
 * @property {number} end in code points
 * @property {string|null} section
 * @property {number|null} page
 * @property {{title?: string, mime_type?: string|null}} [document]
 * @typedef {{document_uid: string, title: string, file_name: string, mime_type: string}} LinkedDocument
 * @typedef {{max_attached_file_size_mb: number} & import("./service_facts.js").Limits} Limits
 * @typedef {object} Transfer
 * @property {(bytes: number, of: number) => void} sent
 * @property {(line: string) => void} [line] each line of an answer that comes in lines
 * @property {AbortSignal} signal
 * @typedef {object} Settings
 * @property {Limits} limits
 * @property {string|null} [currency]
 * @property {{public_links?: boolean}} [feature_flags]
 * @property {{enabled: boolean, realm_url?: string|null, client_id?: string|null}} user_auth
 */

import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { largest: "At most {size} MB can be attached." },
  fr: { largest: "Un fichier joint peut avoir {size} Mo au plus." },
});

const DEADLINE_MS = 15_000;
/** Of a file that is sent and worked on: an hour, as the service gives it. */
const TRANSFER_DEADLINE_MS = 3_600_000;
const MIB = 1024 * 1024;

/** Who the page speaks as. With authentication off any token passes; a login sets the real one here. */
export class Credentials {
  #token = "local";
  /** Called where the service refused the token: whether there is a newer one now. A login sets it. */
  renew = () => Promise.resolve(false);

  get token() {
    return this.#token;
  }

  /** @param {string} token */
  set token(token) {
    this.#token = token;
  }
}

/** A REST call that did not succeed: `code` of the closed list, or "unreachable" where no answer came. */
export class ApiError extends Error {
  /** @param {string} code @param {{status?: number, message?: string|null, retryAfterMs?: number, field?: string|null}} given */
  constructor(code, { status = 0, message = null, retryAfterMs = 0, field = null } = {}) {
    super(message ?? code);
    this.name = "ApiError";
    this.code = code;
    this.status = status;
    this.serverMessage = message;
    this.retryAfterMs = retryAfterMs;
    this.field = field; // of what was sent, the one that was refused
    this.retryable = status === 0 || status === 429 || status >= 500;
  }

  /** The same as an error frame says it. */
  get failure() {
    const { code, serverMessage: message, retryable, retryAfterMs: retry_after_ms } = this;
    return { code, message, retryable, retry_after_ms };
  }
}

/** Calls under `/agentic/v1`. Each one resolves to the decoded body or rejects with ApiError within 15 s, unless it says more. */
export class Api {
  #base;
  #credentials;
  /** @type {Limits|null} */
  #limits = null;

  /**
   * @param {URL} base address of the service's root path, ending in a slash
   * @param {Credentials} credentials
   */
  constructor(base, credentials) {
    this.#base = base;
    this.#credentials = credentials;
  }

  /** Address of the chat socket. */
  get socketUrl() {
    const url = new URL("chatbot/query/ws", this.#base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    return url.href;
  }

  /**
   * What anybody may know of the service: how to sign in, and its limits.
   * @returns {Promise<Settings>}
   */
  async settings() {
    /** @type {RequestInit} */
    const options = { cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) };
    const response = await reached(() => fetch(new URL("config/frontend_settings", this.#base), options));
    const settings = decode(await reached(() => response.text()));
    if (!response.ok || settings === undefined) throw failureOf(response, settings);
    return settings;
  }

  /**
   * What the person may do, as `resource:action`.
   * @returns {Promise<string[]>}
   */
  permissions() {
    return this.call("GET", "config/permissions");
  }

  /**
   * The agents that may be asked.
   * @returns {Promise<Agent[]>}
   */
  async agents() {
    /** @type {Agent[]} */
    const agents = await this.call("GET", "agents");
    return agents.filter((agent) => agent.enabled !== false);
  }

  /**
   * A page of the person's sessions: pinned ones first, then latest change first; with words, those that hold them all,
   * each with the place where they stand. Those in which nothing was begun are left out.
   * @param {{words?: string, limit: number, behind?: ListPlace|null}} wanted
   * @returns {Promise<Session[]>}
   */
  sessions({ words = "", limit, behind = null }) {
    const asked = new URLSearchParams({ begun: "true", limit: String(limit) });
    if (words !== "") {
      asked.set("q", words);
      asked.set("snippets", "true");
    }
    if (behind !== null) {
      asked.set("before", behind.updated_at);
      asked.set("before_pinned", String(behind.pinned === true));
      asked.set("before_id", behind.id);
    }
    return this.call("GET", `chatbot/sessions?${asked}`);
  }

  /**
   * One session as the list has it.
   * @param {string} id
   * @returns {Promise<Session>}
   */
  session(id) {
    return this.call("GET", `chatbot/session/${encodeURIComponent(id)}`);
  }

  /**
   * Renames a session, pins it, or no longer.
   * @param {string} id
   * @param {{title?: string, pinned?: boolean}} change
   * @returns {Promise<Session>}
   */
  changeSession(id, change) {
    return this.call("PATCH", `chatbot/session/${encodeURIComponent(id)}`, change);
  }

  /**
   * A session as a file: {name, blob}. Format "md" or "json".
   * @param {string} id
   * @param {"md"|"json"} format
   * @returns {Promise<{name: string, blob: Blob}>}
   */
  async exported(id, format) {
    const { name, blob } = await this.download(`chatbot/session/${encodeURIComponent(id)}/export?format=${format}`);
    return { name: name ?? `conversation.${format}`, blob };
  }

  /**
   * A file, and the name that the service gives it.
   * @param {string} path
   * @param {number} deadlineMs
   * @returns {Promise<{name: string|null, blob: Blob}>}
   */
  async download(path, deadlineMs = DEADLINE_MS) {
    const response = await this.send("GET", path, undefined, deadlineMs);
    if (!response.ok) throw failureOf(response, decode(await reached(() => response.text())));
    const given = response.headers.get("Content-Disposition") ?? "";
    const encoded = /filename\*=UTF-8''([^;]+)/.exec(given);
    const plain = /filename="([^"]+)"/.exec(given)?.[1] ?? null;
    const name = encoded === null ? plain : decodeURIComponent(encoded[1]);
    return { name, blob: await reached(() => response.blob()) };
  }

  /**
   * What the person said of a session's answers: [{id, rating, messageId, …}].
   * @param {string} sessionId
   * @returns {Promise<Feedback[]>}
   */
  feedback(sessionId) {
    return this.call("GET", `chatbot/feedback?${new URLSearchParams({ session_id: sessionId })}`);
  }

  /**
   * Rates an answer from 1 to 5; it has one rating.
   * @param {Omit<Feedback, "id"> & {sessionId: string, agentName: string}} feedback
   */
  giveFeedback({ sessionId, messageId, agentName, rating, reason = null, comment = null }) {
    return this.call("POST", "chatbot/feedback", { sessionId, messageId, agentName, rating, reason, comment });
  }

  /** @param {string} id */
  takeFeedbackBack(id) {
    return this.call("DELETE", `chatbot/feedback/${encodeURIComponent(id)}`);
  }

  /**
   * A new session with one agent.
   * @param {string} agentId
   * @returns {Promise<Session>}
   */
  createSession(agentId) {
    return this.call("POST", "chatbot/session", { agent_id: agentId });
  }

  /**
   * Keeps what the person prefers in a session, in the place of what was kept there.
   * @param {string} id
   * @param {Preferences} preferences
   */
  setPreferences(id, preferences) {
    return this.call("PUT", `chatbot/session/${encodeURIComponent(id)}/preferences`, { preferences });
  }

  /**
   * Deletes a session and all that hangs on it.
   * @param {string} id
   */
  deleteSession(id) {
    return this.call("DELETE", `chatbot/session/${encodeURIComponent(id)}`);
  }

  /** What the service takes at most. */
  async limits() {
    this.#limits ??= (await this.settings()).limits;
    return this.#limits;
  }

  /**
   * The same of a page that is being left, which hears no answer any more.
   * @param {string} id
   */
  deleteSessionAtLeave(id) {
    const headers = { Authorization: `Bearer ${this.#credentials.token}` };
    const url = new URL(`chatbot/session/${encodeURIComponent(id)}`, this.#base);
    void reached(() => fetch(url, { method: "DELETE", headers, keepalive: true })).catch(() => {});
  }

  /**
   * Attaches a file to a session: {attachment_id, filename, …}. One above the limit is not sent.
   * @param {string} sessionId
   * @param {File} file
   * @param {Transfer} transfer
   * @returns {Promise<{attachment_id: string, filename: string, mime: string, size_bytes: number, attached_at: string}>}
   */
  async upload(sessionId, file, transfer) {
    const { max_attached_file_size_mb: most } = await this.limits();
    if (file.size > most * MIB) {
      throw new ApiError("attachment_too_large", { status: 400, message: t("largest", { size: most }) });
    }
    const form = new FormData();
    form.append("session_id", sessionId);
    form.append("file", file);
    return decode(await this.transfer("chatbot/upload", form, transfer));
  }

  /**
   * An image that is attached.
   * @param {string} id
   */
  async picture(id) {
    return (await this.download(`chatbot/upload/${encodeURIComponent(id)}/image`)).blob;
  }

  /**
   * Takes an attachment away; one that is gone already is no failure.
   * @param {string} sessionId
   * @param {string} id
   */
  async removeAttachment(sessionId, id) {
    const of = new URLSearchParams({ session_id: sessionId });
    try {
      await this.call("DELETE", `chatbot/upload/${encodeURIComponent(id)}?${of}`);
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "attachment_not_found") throw error;
    }
  }

  /**
   * Up to `limit` messages of all versions in ascending rank, counted from the newest after skipping `offset` of those.
   * @param {string} id
   * @param {{limit: number, offset?: number}} window
   * @returns {Promise<Frames.ChatMessage[]>}
   */
  history(id, { limit, offset = 0 }) {
    const window = new URLSearchParams({ limit: String(limit), offset: String(offset), branches: "1" });
    return this.call("GET", `chatbot/session/${encodeURIComponent(id)}/history?${window}`);
  }

  /**
   * A passage of a document: {text, start, end, section, page, document}. Offsets count code points.
   * @param {string} documentUid
   * @param {string} chunkUid
   * @returns {Promise<Passage>}
   */
  passage(documentUid, chunkUid) {
    return this.call("GET", `documents/${encodeURIComponent(documentUid)}/chunks/${encodeURIComponent(chunkUid)}`);
  }

  /**
   * The text of a document in markdown.
   * @param {string} documentUid
   */
  async documentText(documentUid) {
    const { content } = await this.call("GET", `documents/${encodeURIComponent(documentUid)}/markdown`);
    return String(content);
  }

  /**
   * The document that a relative link in another one leads to; 404 where there is none that the person may read.
   * @param {string} documentUid
   * @param {string} path
   * @returns {Promise<LinkedDocument>}
   */
  linkedDocument(documentUid, path) {
    return this.call("GET", `documents/${encodeURIComponent(documentUid)}/linked?${new URLSearchParams({ path })}`);
  }

  /**
   * Sends a request below `/agentic/v1`; once more with a newer token where the service refused this one.
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {number} deadlineMs
   */
  async send(method, path, body, deadlineMs = DEADLINE_MS) {
    const { token } = this.#credentials;
    const response = await this.#sendOnce(method, path, body, deadlineMs);
    if (response.status !== 401) return response;
    const newer = token !== this.#credentials.token || (await this.#credentials.renew());
    return newer ? this.#sendOnce(method, path, body, deadlineMs) : response;
  }

  /** @param {string} method @param {string} path @param {unknown} body @param {number} deadlineMs */
  #sendOnce(method, path, body, deadlineMs) {
    /** @type {Record<string, string>} */
    const headers = { Authorization: `Bearer ${this.#credentials.token}` };
    /** @type {RequestInit} */
    const request = { method, headers, cache: "no-store", signal: AbortSignal.timeout(deadlineMs) };
    if (body instanceof FormData) {
      request.body = body; // the browser writes its type, with the boundary
    } else if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      request.body = JSON.stringify(body);
    }
    return reached(() => fetch(new URL(path, this.#base), request));
  }

  /**
   * Sends a form, or nothing, and tells how it goes: how much of it has been sent, then the lines of the answer while they come.
   * The whole answer; rejects with ApiError for any failure, with the code `aborted` where `signal` says so.
   * @param {string} path
   * @param {FormData|null} form
   * @param {Transfer} transfer
   * @returns {Promise<string>}
   */
  async transfer(path, form, transfer) {
    const { token } = this.#credentials;
    try {
      return await this.#transferOnce(path, form, transfer);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      if (token === this.#credentials.token && !(await this.#credentials.renew())) throw error;
      return this.#transferOnce(path, form, transfer);
    }
  }

  /**
   * By XMLHttpRequest: fetch tells nothing of what it has sent.
   * @param {string} path
   * @param {FormData|null} form
   * @param {Transfer} transfer
   * @returns {Promise<string>}
   */
  #transferOnce(path, form, { sent, line = () => {}, signal }) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      let read = 0;
      const readLines = () => {
        if (request.status !== 200) return;
        const end = request.responseText.lastIndexOf("\n") + 1;
        if (end > read) request.responseText.slice(read, end - 1).split("\n").forEach(line);
        read = Math.max(read, end);
      };
      const done = () => {
        readLines();
        const headers = { get: (/** @type {string} */ name) => request.getResponseHeader(name) };
        if (request.status === 200) resolve(request.responseText);
        else reject(failureOf({ status: request.status, headers }, decode(request.responseText)));
      };
      const fail = (/** @type {string} */ code) => reject(new ApiError(code));
      request.open("POST", new URL(path, this.#base));
      request.setRequestHeader("Authorization", `Bearer ${this.#credentials.token}`);
      request.timeout = TRANSFER_DEADLINE_MS;
      request.upload.addEventListener("progress", (event) => sent(event.loaded, event.total));
      request.addEventListener("progress", readLines);
      request.addEventListener("load", done);
      request.addEventListener("error", () => fail("unreachable"));
      request.addEventListener("timeout", () => fail("unreachable"));
      request.addEventListener("abort", () => fail("aborted"));
      signal.addEventListener("abort", () => request.abort(), { once: true });
      if (signal.aborted) fail("aborted");
      else request.send(form);
    });
  }

  /**
   * The decoded body of a request's answer; null where it has none. Rejects with ApiError for any failure.
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {number} deadlineMs
   * @returns {Promise<any>}
   */
  async call(method, path, body, deadlineMs = DEADLINE_MS) {
    const response = await this.send(method, path, body, deadlineMs);
    const text = await reached(() => response.text());
    if (response.status === 204) return null;
    const value = decode(text);
    if (!response.ok) throw failureOf(response, value);
    if (value === undefined) throw new ApiError("unreadable", { status: response.status });
    return value;
  }
}

/**
 * What a step of a request gives; fetch rejects with TypeError where nothing answers, DOMException at the deadline.
 * @template T
 * @param {() => Promise<T>} step
 * @returns {Promise<T>}
 */
async function reached(step) {
  try {
    return await step();
  } catch (error) {
    if (error instanceof TypeError || error instanceof DOMException) throw new ApiError("unreachable");
    throw error;
  }
}

/** @param {string} text @returns {any} */
function decode(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** @param {{status: number, headers: {get(name: string): string|null}}} response @param {any} body */
function failureOf(response, body) {
  const detail = body?.detail;
  const retryAfterMs = 1000 * (Number.parseFloat(response.headers.get("Retry-After") ?? "0") || 0);
  const message = typeof detail === "string" ? detail : (detail?.message ?? null);
  const { status } = response;
  return new ApiError(detail?.code ?? `http_${status}`, { status, message, retryAfterMs, field: detail?.field ?? null });
}
