/**
 * What the page shows beside conversations: each place is a module of its own, fetched when it is first gone to, under
 * an address of its own (`#/live`).
 */

/** @import { Api } from "./api.js" */
/** @import { Words } from "./texts.js" */
import { el } from "./dom.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: {
    missing: "This part of the page could not be loaded. Reload the page to try again.",
    libraries: "Libraries",
    agents: "Agents",
    usage: "Usage",
    live: "Live",
    feedback: "Feedback",
    settings: "Settings",
    shared: "Shared conversation",
  },
  fr: {
    missing: "Cette partie de la page n'a pas pu être chargée. Rechargez la page pour réessayer.",
    libraries: "Bibliothèques",
    agents: "Agents",
    usage: "Consommation",
    live: "En direct",
    feedback: "Avis",
    settings: "Réglages",
    shared: "Conversation partagée",
  },
});

/**
 * What a place may use of the page.
 * @typedef {object} Page
 * @property {Api} api
 * @property {Set<string>} permissions of the person, as `resource:action`
 * @property {(text: string) => void} announce says something to screen readers
 * @property {(text: Words, retry?: (() => void)|null) => void} notify shows a failure that belongs to nothing else
 * @property {(hash: string) => void} goTo another address of the page
 * @property {(question: string) => void} ask begins a conversation with a question in its composer
 * @property {() => Promise<void>} agentsChanged reads the agents that may be asked again
 * @property {(id: string) => void} askAgent begins a conversation with this agent
 */

/**
 * A place: shows itself in `host` and returns what ends it when the person leaves (timers, requests).
 * @typedef {object} Place
 * @property {string} name of its address
 * @property {() => string} title
 * @property {string|null} permission that is needed for a link to it; null: none
 * @property {string|null} [style] its style sheet below web/
 * @property {boolean} [listed] false for one that only an address leads to
 * @property {(rest: string) => boolean} [open] whether such an address is shown to everybody, before they sign in
 * @property {() => Promise<{show: (host: HTMLElement, page: Page, rest: string) => () => void}>} load
 */

/** @type {Place[]} */
export const PLACES = [
  {
    name: "libraries",
    title: () => t("libraries"),
    permission: null,
    style: "libraries/style.css",
    load: () => import("./libraries/place.js"),
  },
  {
    name: "agents",
    title: () => t("agents"),
    permission: "agents:update",
    style: "builder/style.css",
    load: () => import("./builder/place.js"),
  },
  {
    name: "usage",
    title: () => t("usage"),
    permission: null,
    style: "figures/style.css",
    load: () => import("./usage/place.js"),
  },
  {
    name: "live",
    title: () => t("live"),
    permission: "kpi:read",
    style: "figures/style.css",
    load: () => import("./live/place.js"),
  },
  {
    name: "feedback",
    title: () => t("feedback"),
    permission: "feedback:read_all",
    style: "feedback/style.css",
    load: () => import("./feedback/place.js"),
  },
  {
    name: "settings",
    title: () => t("settings"),
    permission: null,
    style: "settings/style.css",
    load: () => import("./settings/place.js"),
  },
  {
    name: "s",
    title: () => t("shared"),
    permission: null,
    listed: false,
    open: (rest) => rest.startsWith("public/"),
    style: "share/style.css",
    load: () => import("./share/place.js"),
  },
];

/** Shows one place at a time in a host; `leave` ends it. */
export class Places {
  #host;
  #page;
  /** @type {() => void} */
  #end = () => {};
  #visits = 0;

  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.#host = host;
    this.#page = page;
  }

  /**
   * @param {Place} place
   * @param {string} rest what stands behind its name in the address
   */
  async show(place, rest) {
    this.leave();
    const visit = this.#visits;
    if (typeof place.style === "string") addStyle(place.style);
    try {
      const { show } = await place.load();
      if (visit !== this.#visits) return; // the person has gone on meanwhile
      this.#end = show(this.#host, this.#page, rest);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // a module that cannot be fetched
      this.#host.replaceChildren(el("p", { class: "hint" }, t("missing")));
    }
  }

  leave() {
    this.#visits += 1;
    this.#end();
    this.#end = () => {};
    this.#host.replaceChildren();
  }
}

/**
 * Adds a style sheet to the page, once.
 * @param {string} style below web/
 */
export function addStyle(style) {
  const href = new URL(style, import.meta.url).href;
  const known = [.../** @type {NodeListOf<HTMLLinkElement>} */ (document.querySelectorAll("link[rel=stylesheet]"))];
  if (!known.some((link) => link.href === href)) document.head.append(el("link", { rel: "stylesheet", href }));
}
