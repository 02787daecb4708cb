/**
 * OpenID Connect as a public client: authorization code with PKCE (S256), renewal by refresh token, end of the session.
 *
 * Pure of the page: it knows addresses, requests and answers, and neither storage nor DOM. The tokens that it gives are
 * the caller's to keep.
 */

/**
 * @typedef {"unreachable"|"insecure"|"ended"|"refused"|"mixed_up"} OidcProblem
 * @typedef {object} Endpoints what an issuer publishes of itself
 * @property {string} issuer
 * @property {string} authorization_endpoint
 * @property {string} token_endpoint
 * @property {string} [end_session_endpoint]
 * @typedef {object} Claims
 * @property {string} [iss]
 * @property {string|string[]} [aud]
 * @property {string} [nonce]
 * @property {string} [sub]
 * @property {string} [name]
 * @property {string} [preferred_username]
 * @property {string} [email]
 * @typedef {object} Tokens
 * @property {string} access
 * @property {string|null} refresh
 * @property {string|null} id
 * @property {Claims|null} person
 * @property {number} lifetimeMs by the issuer's clock, so that ours may be wrong
 * @typedef {{state: string, nonce: string, verifier: string, redirectUri: string}} Attempt
 */

const DEADLINE_MS = 10_000;

/** What went wrong: "unreachable" (no answer, or none that makes sense), "insecure" (no cryptography here), "ended" (the
 * person has to sign in again), "refused" (the sign-in service said no), "mixed_up" (an answer to another question). */
export class OidcError extends Error {
  /** @param {OidcProblem} code */
  constructor(code) {
    super(code);
    this.name = "OidcError";
    this.code = code;
  }
}

/** The provider of one realm and the client that the page is to it. */
export class Provider {
  #endpoints;
  #issuer;
  #clientId;

  /**
   * Reads what the issuer publishes. Rejects with OidcError "unreachable".
   * @param {string} issuer
   * @param {string} clientId
   */
  static async discover(issuer, clientId) {
    const endpoints = await answerOf(await request(`${issuer}/.well-known/openid-configuration`));
    if (endpoints.issuer !== issuer) throw new OidcError("unreachable");
    return new Provider(issuer, clientId, endpoints);
  }

  /** @param {string} issuer @param {string} clientId @param {Endpoints} endpoints */
  constructor(issuer, clientId, endpoints) {
    this.#issuer = issuer;
    this.#clientId = clientId;
    this.#endpoints = endpoints;
  }

  /**
   * Where to send the person: {url, attempt}. `attempt` is what `finish` needs when they come back; nobody else may
   * have it. Rejects with OidcError "insecure" where the browser has no cryptography for this address.
   * @param {string} redirectUri
   */
  async begin(redirectUri) {
    if (globalThis.crypto?.subtle === undefined) throw new OidcError("insecure");
    const attempt = { state: random(), nonce: random(), verifier: random(), redirectUri };
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(attempt.verifier));
    const url = new URL(this.#endpoints.authorization_endpoint);
    const asked = {
      client_id: this.#clientId,
      redirect_uri: redirectUri,
      response_type: "code",
      // Not in the query: what stands behind the # is never sent to a server, and so is in no log.
      response_mode: "fragment",
      scope: "openid",
      state: attempt.state,
      nonce: attempt.nonce,
      code_challenge: base64url(new Uint8Array(digest)),
      code_challenge_method: "S256",
    };
    for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value);
    return { url: url.href, attempt };
  }

  /**
   * Turns the answer (from `answerIn`) to an attempt into tokens. Rejects with OidcError.
   * @param {URLSearchParams} answer
   * @param {Attempt|null} attempt
   */
  async finish(answer, attempt) {
    const ours = attempt !== null && answer.get("state") === attempt.state;
    if (!ours || (answer.get("iss") ?? this.#issuer) !== this.#issuer) throw new OidcError("mixed_up");
    const code = answer.get("code");
    if (code === null) throw new OidcError("refused");
    const tokens = await this.#tokens({
      grant_type: "authorization_code",
      code,
      redirect_uri: attempt.redirectUri,
      code_verifier: attempt.verifier,
    });
    const { iss, aud, nonce } = tokens.person ?? {};
    const forUs = Array.isArray(aud) ? aud.includes(this.#clientId) : aud === this.#clientId;
    // The token came from the issuer itself, so its signature adds nothing (OpenID Connect Core 3.1.3.7).
    if (iss !== this.#issuer || !forUs || nonce !== attempt.nonce) throw new OidcError("mixed_up");
    return tokens;
  }

  /**
   * Newer tokens for older ones. Rejects with OidcError: "ended" where the refresh token does not count any more.
   * @param {Tokens|null} tokens
   * @returns {Promise<Tokens>}
   */
  async renew(tokens) {
    if (tokens === null || tokens.refresh === null) throw new OidcError("ended");
    const newer = await this.#tokens({ grant_type: "refresh_token", refresh_token: tokens.refresh });
    return { ...newer, refresh: newer.refresh ?? tokens.refresh, id: newer.id ?? tokens.id, person: newer.person ?? tokens.person };
  }

  /**
   * What ends the person's session at the provider: {url, fields} of a form to send, or null where it has no such place.
   * A form: the ID token says who the person is, and an address would be kept in logs and in the browser's history.
   * @param {Tokens} tokens
   * @param {string} returnTo
   */
  endForm(tokens, returnTo) {
    if (this.#endpoints.end_session_endpoint === undefined) return null;
    /** @type {Record<string, string>} */
    const fields = { client_id: this.#clientId, post_logout_redirect_uri: returnTo };
    if (tokens.id !== null) fields.id_token_hint = tokens.id;
    return { url: this.#endpoints.end_session_endpoint, fields };
  }

  /**
   * What the provider gives for a grant.
   * @param {Record<string, string>} form
   * @returns {Promise<Tokens>}
   */
  async #tokens(form) {
    const body = new URLSearchParams({ client_id: this.#clientId, ...form });
    const response = await request(this.#endpoints.token_endpoint, { method: "POST", body });
    if (response.status === 400 || response.status === 401) throw new OidcError("ended");
    const answer = await answerOf(response);
    if (typeof answer.access_token !== "string") throw new OidcError("unreachable");
    const id = answer.id_token ?? null;
    return {
      access: answer.access_token,
      refresh: answer.refresh_token ?? null,
      id,
      person: id === null ? null : claimsOf(id),
      lifetimeMs: 1000 * (answer.expires_in ?? 60),
    };
  }
}

/**
 * The provider's answer in the address of the page, or null where there is none.
 * @param {{hash: string, search: string}} address
 */
export function answerIn({ hash, search }) {
  const found = [hash.slice(1), search.slice(1)].map((text) => new URLSearchParams(text));
  return found.find((answer) => answer.has("state") && (answer.has("code") || answer.has("error"))) ?? null;
}

/**
 * How long to wait before a token of this lifetime is renewed: a minute before its end, of a short one at 70 %.
 * @param {number} lifetimeMs
 */
export function renewAfterMs(lifetimeMs) {
  return Math.max(lifetimeMs - 60_000, lifetimeMs * 0.7);
}

/**
 * What a token says of itself, {} where it is none that can be read.
 * @param {string} token
 * @returns {Claims}
 */
function claimsOf(token) {
  try {
    const text = atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  } catch (error) {
    if (error instanceof DOMException || error instanceof SyntaxError || error instanceof TypeError) return {};
    throw error;
  }
}

/** @returns {string} */
function random() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** @param {Uint8Array} bytes */
function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} url @param {RequestInit} options */
async function request(url, options = {}) {
  try {
    return await fetch(url, { ...options, credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) });
  } catch (error) {
    if (error instanceof TypeError || error instanceof DOMException) throw new OidcError("unreachable");
    throw error;
  }
}

/** @param {Response} response @returns {Promise<any>} */
async function answerOf(response) {
  if (!response.ok) throw new OidcError("unreachable");
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof TypeError || error instanceof DOMException) throw new OidcError("unreachable");
    throw error;
  }
}
