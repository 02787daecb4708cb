/**
 * Who the page speaks as: sends the person to the sign-in service where the configuration names one, and keeps their
 * token fresh for as long as the page is open.
 *
 * Tokens are in the memory of the page and nowhere else: a reload goes by the sign-in service, whose own session lets
 * the person through without a word. What is stored for the way there and back (per tab) is of use for one attempt.
 */

/**
 * @import { Credentials, Settings } from "./api.js"
 * @import { Claims, OidcProblem, Tokens } from "./oidc.js"
 * @import { Words } from "./texts.js"
 */
import { ApiError } from "./api.js";
import { catalogue } from "./i18n.js";
import { answerIn, OidcError, Provider, renewAfterMs } from "./oidc.js";

const ATTEMPT_KEY = "turnwise.sign-in";
const RETRY_MS = 5_000;
/** A token that is refused so soon after it was given is refused for what it is, not for its age. */
const TOO_SOON_MS = 5_000;

const t = catalogue({
  en: {
    cannot: "You cannot sign in right now",
    noAnswer: "The sign-in service does not answer.",
    cannotHere: "You cannot sign in here",
    insecure: "The browser allows it on https addresses and on this machine only.",
    signedOut: "You are signed out",
    stays: "Sign in again to go on; what is on this page stays.",
    failed: "The sign-in did not succeed",
    refused: "The sign-in service refused it.",
    mixedUp: "It was not begun in this tab, or too long ago.",
    notAllowed: "You may not use this service",
    notAccepted: "It does not accept your account's sign-in.",
    again: "Try again",
    signIn: "Sign in",
  },
  fr: {
    cannot: "La connexion est impossible pour le moment",
    noAnswer: "Le service d'authentification ne répond pas.",
    cannotHere: "La connexion est impossible ici",
    insecure: "Le navigateur ne l'autorise que sur les adresses https et sur cette machine.",
    signedOut: "Vous êtes déconnecté",
    stays: "Reconnectez-vous pour continuer ; le contenu de cette page reste.",
    failed: "La connexion n'a pas abouti",
    refused: "Le service d'authentification l'a refusée.",
    mixedUp: "Elle n'a pas été commencée dans cet onglet, ou il y a trop longtemps.",
    notAllowed: "Vous ne pouvez pas utiliser ce service",
    notAccepted: "Il n'accepte pas la connexion de votre compte.",
    again: "Réessayer",
    signIn: "Se connecter",
  },
});

const TROUBLES = {
  unreachable: { title: t("cannot"), message: t("noAnswer") },
  insecure: { title: t("cannotHere"), message: t("insecure") },
  ended: { title: t("signedOut"), message: t("stays") },
  refused: { title: t("failed"), message: t("refused") },
  mixed_up: { title: t("failed"), message: t("mixedUp") },
  not_accepted: { title: t("notAllowed"), message: t("notAccepted") },
};

export class Login {
  #credentials;
  #readSettings;
  #on;
  /** @type {Provider|null} */
  #provider = null;
  /** @type {Tokens|null} */
  #tokens = null;
  /** @type {string|null} */
  #personId = null;
  /** @type {number|undefined} */
  #timer;
  /** @type {Promise<boolean>|null} */
  #renewing = null;
  #givenAt = Number.NEGATIVE_INFINITY;
  /** Reaches pages of this origin alone: that of the interface's documentation asks here for the token. */
  #otherPages = new BroadcastChannel("turnwise.sign-in");

  /**
   * @param {Credentials} credentials take the token, and ask here for a newer one
   * @param {() => Promise<Settings>} readSettings the service's public settings
   * @param {{renewed: (token: string) => void, person: (person: Claims|null) => void,
   *          trouble: (text: Words, again: () => void, label: string) => void}} on what the page does about it
   */
  constructor(credentials, readSettings, on) {
    this.#credentials = credentials;
    this.#readSettings = readSettings;
    this.#on = on;
    credentials.renew = () => this.renew();
    this.#otherPages.addEventListener("message", ({ data }) => {
      if (data.wanted === true && this.#tokens !== null) this.#otherPages.postMessage({ token: this.#tokens.access });
    });
  }

  /** Id of the person, null where nobody has to sign in. */
  get personId() {
    return this.#personId;
  }

  /**
   * Before anything else is asked of the service. True: go on. False: the page is left for the sign-in service, or
   * cannot go on, which was said.
   */
  async enter() {
    const settings = await this.#settings();
    if (settings === null) return true; // the service does not answer: what comes next finds that out and says it
    const { enabled, realm_url: issuer, client_id: clientId } = settings.user_auth;
    if (!enabled || !issuer || !clientId) return true;
    return this.#attempted(async () => {
      this.#provider ??= await Provider.discover(issuer, clientId);
      const answer = answerIn(location);
      if (answer === null) return this.#leave();
      await this.#comeBack(answer);
      return true;
    }, () => location.reload());
  }

  /** After the service refused the token: whether there is a newer one. If not, the person has been informed. */
  renew() {
    this.#renewing ??= this.#renew().finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  /** Ends the session here and at the sign-in service. */
  signOut() {
    const end = this.#tokens === null ? null : this.#found.endForm(this.#tokens, new URL("/", location.href).href);
    this.#forget();
    if (end === null) this.#say("ended", () => this.#again());
    else send(end);
  }

  /** Nothing but `enter` is asked for before the provider is found. */
  get #found() {
    if (this.#provider === null) throw new OidcError("unreachable");
    return this.#provider;
  }

  async #settings() {
    try {
      return await this.#readSettings();
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }

  async #leave() {
    const { url, attempt } = await this.#found.begin(new URL("/", location.href).href);
    const returnTo = location.pathname + location.hash;
    sessionStorage.setItem(ATTEMPT_KEY, JSON.stringify({ attempt, returnTo }));
    location.assign(url);
    return false;
  }

  /** @param {URLSearchParams} answer */
  async #comeBack(answer) {
    const kept = sessionStorage.getItem(ATTEMPT_KEY);
    const { attempt, returnTo } = kept === null ? { attempt: null, returnTo: "/" } : JSON.parse(kept);
    sessionStorage.removeItem(ATTEMPT_KEY);
    // At once: an address with a code in it must not be reloaded, kept or passed on.
    history.replaceState(null, "", returnTo);
    this.#take(await this.#found.finish(answer, attempt));
  }

  async #renew() {
    if (this.#provider === null) {
      await this.enter(); // the service did not say at the start whether there is a sign-in
      return false;
    }
    if (performance.now() - this.#givenAt < TOO_SOON_MS) {
      this.#say("not_accepted", () => this.#again());
      return false;
    }
    return this.#attempted(async () => {
      this.#take(await this.#found.renew(this.#tokens));
      return true;
    }, () => this.#again());
  }

  /** @param {Tokens} tokens */
  #take(tokens) {
    this.#tokens = tokens;
    this.#personId = tokens.person?.sub ?? null;
    this.#givenAt = performance.now();
    this.#credentials.token = tokens.access;
    this.#on.person(tokens.person);
    this.#on.renewed(tokens.access);
    this.#otherPages.postMessage({ token: tokens.access });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#renewInTime(), renewAfterMs(tokens.lifetimeMs));
  }

  /** Before the end of the token, so that no socket is closed for it. What fails is tried again: nobody waits for it. */
  async #renewInTime() {
    try {
      this.#take(await this.#found.renew(this.#tokens));
    } catch (error) {
      if (!(error instanceof OidcError)) throw error;
      if (error.code === "unreachable") this.#timer = setTimeout(() => this.#renewInTime(), RETRY_MS);
      else this.#lose(error.code);
    }
  }

  /** @param {() => Promise<boolean>} step @param {() => void} again */
  async #attempted(step, again) {
    try {
      return await step();
    } catch (error) {
      if (!(error instanceof OidcError)) throw error;
      this.#lose(error.code, again);
      return false;
    }
  }

  /** @param {OidcProblem|"not_accepted"} code @param {() => void} again */
  #lose(code, again = () => this.#again()) {
    if (code === "ended") this.#forget();
    this.#say(code, again);
  }

  #forget() {
    clearTimeout(this.#timer);
    this.#tokens = null;
    this.#on.person(null);
  }

  #again() {
    this.#attempted(() => this.#leave(), () => location.reload());
  }

  /** @param {OidcProblem|"not_accepted"} code @param {() => void} again */
  #say(code, again) {
    this.#on.trouble(TROUBLES[code], again, t(code === "unreachable" ? "again" : "signIn"));
  }
}

/**
 * Leaves the page by a form, whose fields stand in no address.
 * @param {{url: string, fields: Record<string, string>}} form
 */
function send({ url, fields }) {
  const form = document.createElement("form");
  form.method = "post";
  form.action = url;
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name, value });
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}
