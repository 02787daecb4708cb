/** The service's REST interface as the page uses it, and the one place that holds the credentials. */

/**
 * What the REST interface answers with (docs/protocol.md, docs/agents.md), as far as the page reads it.
 *
 * @typedef {{id: string, name: string, size_bytes?: number, attached_at?: string}} Attachment
 * @typedef {Frames.Session & {attachments?: Attachment[]}} Session
 * @typedef {Frames.Session["preferences"]} Preferences
 * @typedef {object} Agent
 * @property {string} id
 * @property {string} name
 * @property {boolean} [enabled]
 * @property {{role?: string, description?: string}} [tuning]
 * @property {string[]} [starters]
 * @property {{attach_files?: boolean, search_policy_selection?: boolean, libraries_selection?: boolean,
 *   documents_selection?: boolean, search_rag_scoping?: boolean, include_corpus_in_search?: boolean}} [chat_options]
 * @property {{id: string, title: string, description?: string|null}[]} [model_choices]
 * @typedef {{id: string, messageId: string, rating: number}} Feedback
 * @typedef {object} Passage
 * @property {string} text
 * @property {number} start in code points
 * @property {number} end in code points
 * @property {string|null} section
 * @property {number|null} page
 * @property {{title?: string, mime_type?: string|null}} [document]
 * @typedef {{max_attached_file_size_mb: number}} Limits
 * @typedef {{onProgress: (sent: number) => void, signal: AbortSignal}} Watched hears the share of a form that was sent,
 *   from 0 to 1; `signal` gives it up
 * @typedef {{limits: Limits, user_auth: {enabled: boolean, realm_url?: string|null, client_id?: string|null}}} Settings
 */

import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { largest: "At most {size} MB can be attached." },
  fr: { largest: "Un fichier joint peut avoir {size} Mo au plus." },
});

const DEADLINE_MS = 15_000;
/** A file is read and indexed before the answer comes. */
const UPLOAD_DEADLINE_MS = 150_000;
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
  /** @param {string} code @param {{status?: number, message?: string|null, retryAfterMs?: number}} given */
  constructor(code, { status = 0, message = null, retryAfterMs = 0 } = {}) {
    super(message ?? code);
    this.name = "ApiError";
    this.code = code;
    this.status = status;
    this.serverMessage = message;
    this.retryAfterMs = retryAfterMs;
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
   * The person's sessions, latest change first; with words, those that hold them all.
   * @param {string} words
   * @returns {Promise<Session[]>}
   */
  sessions(words = "") {
    return this.call("GET", words === "" ? "chatbot/sessions" : `chatbot/sessions?${new URLSearchParams({ q: words })}`);
  }

  /**
   * A session as a file: {name, blob}. Format "md" or "json".
   * @param {string} id
   * @param {"md"|"json"} format
   * @returns {Promise<{name: string, blob: Blob}>}
   */
  exported(id, format) {
    return this.download(`chatbot/session/${encodeURIComponent(id)}/export?format=${format}`, DEADLINE_MS);
  }

  /**
   * What is below an address as a file, under the name that the service gives it.
   * @param {string} path
   * @param {number} deadlineMs
   * @returns {Promise<{name: string, blob: Blob}>}
   */
  async download(path, deadlineMs) {
    const response = await this.send("GET", path, undefined, deadlineMs);
    if (!response.ok) throw failureOf(response, decode(await reached(() => response.text())));
    const given = response.headers.get("Content-Disposition") ?? "";
    const name = /filename\*=UTF-8''([^;]+)/.exec(given);
    const plain = /filename="([^"]+)"/.exec(given);
    const shown = name === null ? (plain?.[1] ?? "file") : decodeURIComponent(name[1]);
    return { name: shown, blob: await reached(() => response.blob()) };
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
   * @param {{sessionId: string, messageId: string, agentName: string, rating: number}} feedback
   */
  giveFeedback({ sessionId, messageId, agentName, rating }) {
    return this.call("POST", "chatbot/feedback", { sessionId, messageId, agentName, rating });
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
   * Attaches a file to a session: {attachment_id, filename, …}. One above the limit is not sent. Within 150 s of the
   * last piece that was sent.
   * @param {string} sessionId
   * @param {File} file
   * @param {Watched} watched
   * @returns {Promise<{attachment_id: string, filename: string, size_bytes: number, attached_at: string}>}
   */
  async upload(sessionId, file, watched) {
    const { max_attached_file_size_mb: most } = await this.limits();
    if (file.size > most * MIB) {
      throw new ApiError("attachment_too_large", { status: 400, message: t("largest", { size: most }) });
    }
    const form = new FormData();
    form.append("session_id", sessionId);
    form.append("file", file);
    return this.sendForm("chatbot/upload", form, watched);
  }

  /**
   * Posts a form, and tells how much of it was sent, which fetch cannot. Rejects as `call` does, and with the reason of
   * the signal where that ends it.
   * @param {string} path
   * @param {FormData} form
   * @param {Watched} watched
   * @returns {Promise<any>}
   */
  async sendForm(path, form, watched) {
    const { token } = this.#credentials;
    const post = () => posted(new URL(path, this.#base), this.#credentials.token, form, watched);
    try {
      return await post();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      if (token === this.#credentials.token && !(await this.#credentials.renew())) throw error;
      return post();
    }
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
 * @param {URL} url
 * @param {string} token
 * @param {FormData} form
 * @param {Watched} watched
 * @returns {Promise<any>}
 */
function posted(url, token, form, { onProgress, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    /** @type {number|undefined} */
    let timer;
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(() => request.abort(), UPLOAD_DEADLINE_MS);
    };
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      wait();
      onProgress(total === 0 ? 1 : loaded / total);
    });
    request.addEventListener("loadend", () => {
      clearTimeout(timer);
      if (signal.aborted) return reject(signal.reason);
      if (request.status === 0) return reject(new ApiError("unreachable"));
      const value = decode(request.responseText);
      if (request.status < 300 && value !== undefined) return resolve(value);
      return reject(failureFrom(request.status, request.getResponseHeader("Retry-After"), value));
    });
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", url);
    request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.send(form);
    wait();
  });
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

/** @param {Response} response @param {any} body */
function failureOf(response, body) {
  return failureFrom(response.status, response.headers.get("Retry-After"), body);
}

/** @param {number} status @param {string|null} retryAfter @param {any} body */
function failureFrom(status, retryAfter, body) {
  const detail = body?.detail;
  const retryAfterMs = 1000 * (Number.parseFloat(retryAfter ?? "0") || 0);
  const message = typeof detail === "string" ? detail : (detail?.message ?? null);
  return new ApiError(detail?.code ?? `http_${status}`, { status, message, retryAfterMs });
}
