/** The service's REST interface as the page uses it, and the one place that holds the credentials. */

const DEADLINE_MS = 15_000;

/** Who the page speaks as. With authentication off any token passes; a login sets the real one here. */
export class Credentials {
  #token = "local";

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

/** Calls under `/agentic/v1`. Each one resolves to the decoded body or rejects with ApiError within 15 s. */
export class Api {
  #base;
  #credentials;

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

  /** The agents that may be asked. */
  async agents() {
    const agents = await this.#call("GET", "agents");
    return agents.filter((agent) => agent.enabled !== false);
  }

  /** The person's sessions, latest change first. */
  sessions() {
    return this.#call("GET", "chatbot/sessions");
  }

  /** A new session with one agent. */
  createSession(agentId) {
    return this.#call("POST", "chatbot/session", { agent_id: agentId });
  }

  /** Deletes a session and all that hangs on it. */
  deleteSession(id) {
    return this.#call("DELETE", `chatbot/session/${encodeURIComponent(id)}`);
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

  async #call(method, path, body) {
    const headers = { Authorization: `Bearer ${this.#credentials.token}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const request = { method, headers, cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) };
    if (body !== undefined) request.body = JSON.stringify(body);
    let response;
    let text;
    try {
      response = await fetch(new URL(path, this.#base), request);
      text = await response.text();
    } catch (error) {
      // fetch rejects with TypeError where nothing answers and with a DOMException at the deadline.
      if (error instanceof TypeError || error instanceof DOMException) throw new ApiError("unreachable");
      throw error;
    }
    const value = decode(text);
    if (!response.ok) throw failureOf(response, value);
    if (value === undefined) throw new ApiError("unreadable", { status: response.status });
    return value;
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
