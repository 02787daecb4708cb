/** The service's REST interface as the page uses it, and the one place that holds the credentials. */

const DEADLINE_MS = 15_000;
/** A file is read and indexed before the answer comes. */
const UPLOAD_DEADLINE_MS = 150_000;
const MIB = 1024 * 1024;

/** Who the page speaks as. With authentication off any token passes; a login sets the real one here. */
export class Credentials {
  #token = "local";
  /** Called where the service refused the token: whether there is a newer one now. A login sets it. */
  renew = async () => false;

  get token() {
    return this.#token;
  }

  set token(token) {
    this.#token = token;
  }
}

/** A REST call that did not succeed: `code` of the closed list, or "unreachable" where no answer came. */
export class ApiError extends Error {
  constructor(code, { status = 0, message = null, retryAfterMs = 0 } = {}) {
    super(message ?? code);
    this.name = "ApiError";
    this.code = code;
    this.status = status;
    this.serverMessage = message;
    this.retryAfterMs = retryAfterMs;
    this.retryable = status === 0 || status === 429 || status >= 500;
  }
}

/** Calls under `/agentic/v1`. Each one resolves to the decoded body or rejects with ApiError within 15 s, unless it says more. */
export class Api {
  #base;
  #credentials;
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

  /** What anybody may know of the service: how to sign in, and its limits. */
  async settings() {
    const options = { cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) };
    const response = await reached(() => fetch(new URL("config/frontend_settings", this.#base), options));
    const settings = decode(await reached(() => response.text()));
    if (!response.ok || settings === undefined) throw failureOf(response, settings);
    return settings;
  }

  /** The agents that may be asked. */
  async agents() {
    const agents = await this.#call("GET", "agents");
    return agents.filter((agent) => agent.enabled !== false);
  }

  /** The person's sessions, latest change first; with words, those that hold them all. */
  sessions(words = "") {
    return this.#call("GET", words === "" ? "chatbot/sessions" : `chatbot/sessions?${new URLSearchParams({ q: words })}`);
  }

  /** A session as a file: {name, blob}. Format "md" or "json". */
  async exported(id, format) {
    const response = await this.#send("GET", `chatbot/session/${encodeURIComponent(id)}/export?format=${format}`);
    if (!response.ok) throw failureOf(response, decode(await reached(() => response.text())));
    const name = /filename\*=UTF-8''([^;]+)/.exec(response.headers.get("Content-Disposition") ?? "");
    return { name: name === null ? `conversation.${format}` : decodeURIComponent(name[1]), blob: await reached(() => response.blob()) };
  }

  /** What the person said of a session's answers: [{id, rating, messageId, …}]. */
  feedback(sessionId) {
    return this.#call("GET", `chatbot/feedback?${new URLSearchParams({ session_id: sessionId })}`);
  }

  /** Rates an answer from 1 to 5; it has one rating. */
  giveFeedback({ sessionId, messageId, agentName, rating }) {
    return this.#call("POST", "chatbot/feedback", { sessionId, messageId, agentName, rating });
  }

  takeFeedbackBack(id) {
    return this.#call("DELETE", `chatbot/feedback/${encodeURIComponent(id)}`);
  }

  /** A new session with one agent. */
  createSession(agentId) {
    return this.#call("POST", "chatbot/session", { agent_id: agentId });
  }

  /** Keeps what the person prefers in a session, in the place of what was kept there. */
  setPreferences(id, preferences) {
    return this.#call("PUT", `chatbot/session/${encodeURIComponent(id)}/preferences`, { preferences });
  }

  /** Deletes a session and all that hangs on it. */
  deleteSession(id) {
    return this.#call("DELETE", `chatbot/session/${encodeURIComponent(id)}`);
  }

  /** Attaches a file to a session: {attachment_id, filename, …}. One above the limit is not sent. Within 150 s. */
  async upload(sessionId, file) {
    this.#limits ??= (await this.settings()).limits;
    const most = this.#limits.max_attached_file_size_mb;
    if (file.size > most * MIB) {
      throw new ApiError("attachment_too_large", { status: 400, message: `At most ${most} MB can be attached.` });
    }
    const form = new FormData();
    form.append("session_id", sessionId);
    form.append("file", file);
    return this.#call("POST", "chatbot/upload", form, UPLOAD_DEADLINE_MS);
  }

  /** Takes an attachment away; one that is gone already is no failure. */
  async removeAttachment(sessionId, id) {
    const of = new URLSearchParams({ session_id: sessionId });
    try {
      await this.#call("DELETE", `chatbot/upload/${encodeURIComponent(id)}?${of}`);
    } catch (error) {
      if (error.code !== "attachment_not_found") throw error;
    }
  }

  /** Up to `limit` messages in ascending rank, counted from the newest after skipping `offset` of those. */
  history(id, { limit, offset = 0 }) {
    const window = new URLSearchParams({ limit: String(limit), offset: String(offset) });
    return this.#call("GET", `chatbot/session/${encodeURIComponent(id)}/history?${window}`);
  }

  /** A passage of a document: {text, start, end, section, page, document}. Offsets count code points. */
  passage(documentUid, chunkUid) {
    return this.#call("GET", `documents/${encodeURIComponent(documentUid)}/chunks/${encodeURIComponent(chunkUid)}`);
  }

  /** The text of a document in markdown. */
  async documentText(documentUid) {
    const { content } = await this.#call("GET", `documents/${encodeURIComponent(documentUid)}/markdown`);
    return String(content);
  }

  /** Once more with a newer token where the service refused this one. */
  async #send(method, path, body, deadlineMs = DEADLINE_MS) {
    const { token } = this.#credentials;
    const response = await this.#sendOnce(method, path, body, deadlineMs);
    if (response.status !== 401) return response;
    const newer = token !== this.#credentials.token || (await this.#credentials.renew());
    return newer ? this.#sendOnce(method, path, body, deadlineMs) : response;
  }

  async #sendOnce(method, path, body, deadlineMs) {
    const headers = { Authorization: `Bearer ${this.#credentials.token}` };
    const request = { method, headers, cache: "no-store", signal: AbortSignal.timeout(deadlineMs) };
    if (body instanceof FormData) {
      request.body = body; // the browser writes its type, with the boundary
    } else if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      request.body = JSON.stringify(body);
    }
    return reached(() => fetch(new URL(path, this.#base), request));
  }

  async #call(method, path, body, deadlineMs = DEADLINE_MS) {
    const response = await this.#send(method, path, body, deadlineMs);
    const text = await reached(() => response.text());
    if (response.status === 204) return null;
    const value = decode(text);
    if (!response.ok) throw failureOf(response, value);
    if (value === undefined) throw new ApiError("unreadable", { status: response.status });
    return value;
  }
}

/** What a step of a request gives; fetch rejects with TypeError where nothing answers, DOMException at the deadline. */
async function reached(step) {
  try {
    return await step();
  } catch (error) {
    if (error instanceof TypeError || error instanceof DOMException) throw new ApiError("unreachable");
    throw error;
  }
}

function decode(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function failureOf(response, body) {
  const detail = body?.detail;
  const retryAfterMs = 1000 * (Number.parseFloat(response.headers.get("Retry-After") ?? "0") || 0);
  const message = typeof detail === "string" ? detail : (detail?.message ?? null);
  return new ApiError(detail?.code ?? `http_${response.status}`, { status: response.status, message, retryAfterMs });
}
