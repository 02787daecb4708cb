/** What is on the screen: a conversation, a new one, a place beside them, and a document over either. */

/**
 * @import { App } from "./app.js"
 * @import { Place } from "./places.js"
 * @import { Place as Passage } from "./sources.js"
 * @import { Conversation } from "./state.js"
 */
import { ApiError } from "./api.js";
import { PLACES, Places } from "./places.js";
import { placeInAddress } from "./sources.js";

/** What the address says is on the screen. */
export class Navigation {
  #app;
  #places;
  freshDraft = "";
  /** @type {Set<string>} what the person may do, as `resource:action` */
  #permissions = new Set();

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
    this.#places = new Places(app.view.placeHost, {
      api: app.api,
      permissions: this.#permissions,
      announce: (text) => app.view.announce(text),
      notify: (text, retry) => app.view.notify(text, retry),
      goTo: (hash) => this.leaveTo(hash),
      ask: (question) => this.#prepare(question),
      agentsChanged: () => app.agents.loadAgents(),
      askAgent: (id) => {
        app.agents.chooseAgent(id);
        this.leaveTo("#/");
      },
    });
  }

  /** @param {Passage & {claim?: string}} place */
  openDocument(place) {
    return this.#app.guarded(async () => (await this.#app.view.reader()).open(place, this.#app.api));
  }

  /** The page under the address of a citation: the document opens over a new conversation, which is what it leaves. */
  async openAddressedDocument() {
    const place = placeInAddress(location);
    if (place === null) return;
    await this.openDocument(place);
    if (placeInAddress(location) !== null) history.replaceState(null, "", "/#/");
  }

  /** Without them the page offers what everybody may do; the service decides in any case. */
  async loadPermissions() {
    try {
      for (const permission of await this.#app.api.permissions()) this.#permissions.add(permission);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    this.#showPlaces();
  }

  /** The places that the person is led to. */
  get places() {
    const open = PLACES.filter(({ permission }) => permission === null || this.#permissions.has(permission));
    return open.filter(({ listed = true }) => listed);
  }

  #showPlaces(current = placeAt(location.hash)?.place) {
    this.#app.view.showPlaces(this.places, current?.name ?? null);
  }

  /** @param {string} hash */
  leaveTo(hash) {
    if (location.hash === hash || (hash === "#/" && location.hash === "")) this.openFromAddress();
    else location.hash = hash;
  }

  /** What was typed until now belongs to the conversation that the page was opened for; what was opened stays open. */
  openFirst() {
    const typed = this.#app.view.draft;
    this.#openAddress();
    this.#app.view.draft = typed;
    this.freshDraft = "";
  }

  /** @param {string} question */
  #prepare(question) {
    this.freshDraft = question;
    this.leaveTo("#/");
  }

  openFromAddress() {
    this.#app.view.closeDrawer();
    this.#openAddress();
  }

  #openAddress() {
    const at = placeAt(location.hash);
    this.#showPlaces(at?.place);
    if (at !== null) {
      this.#goToPlace(at);
      return;
    }
    this.#places.leave();
    const match = /^#\/c\/([\w-]{1,64})(?:\/(\d{1,9}))?$/.exec(location.hash);
    const rank = match?.[2] === undefined ? null : Number(match[2]);
    // An address that is kept or shared means the conversation; the same message can be opened again.
    if (rank !== null) history.replaceState(null, "", `#/c/${match?.[1]}`);
    this.#open(match === null ? null : match[1], rank);
  }

  /** Shows a place that is there for people who have not signed in, and nothing else of the page; whether this is one. */
  showOpenly() {
    const at = placeAt(location.hash);
    if (!at?.place.open?.(at.rest)) return false;
    document.body.classList.add("stranger");
    addEventListener("hashchange", () => location.reload());
    this.#app.view.showPlace(at.place.title());
    this.#places.show(at.place, at.rest);
    return true;
  }

  /** @param {{place: Place, rest: string}} at */
  #goToPlace({ place, rest }) {
    this.#keepDraft();
    this.#app.state.currentId = null;
    this.#app.view.draft = this.freshDraft;
    this.#app.view.clearNotice();
    this.#app.view.showPlace(place.title());
    this.showBusy();
    this.#app.list.showSessions();
    this.#places.show(place, rest);
  }

  /** @param {string|null} id @param {number|null} rank of a message that is to be on the screen */
  #open(id, rank) {
    this.#keepDraft();
    this.#app.state.currentId = id;
    this.#app.view.clearNotice();
    if (id === null) {
      this.#app.view.showConversation(null, []);
    } else {
      const conversation = this.#app.state.conversationOf(id);
      this.show(conversation);
      this.#openAt(conversation, rank);
      this.#app.list.opened(id);
      this.#app.following.tabs?.postMessage({ open: id });
    }
    this.#app.view.draft = id === null ? this.freshDraft : this.#app.state.conversationOf(id).draft;
    this.showBusy();
    this.#app.list.showSessions();
    this.#app.agents.showAgents();
    this.#app.view.focusComposer();
  }

  /** @param {Conversation} conversation @param {number|null} rank */
  async #openAt(conversation, rank) {
    if (!conversation.loaded) await this.#app.histories.loadHistory(conversation);
    if (rank === null || !conversation.loaded) return;
    const turn = await this.#app.histories.turnOf(conversation, rank);
    if (turn === undefined || conversation.id !== this.#app.state.currentId) return;
    if (!conversation.turns.includes(turn)) {
      conversation.tip = turn.exchangeId; // it stands on another line than the one on the screen
      this.show(conversation);
    }
    this.#app.view.reveal(turn);
  }

  #keepDraft() {
    if (this.#app.state.currentId === null) this.freshDraft = this.#app.view.draft;
    else if (this.#app.state.conversations.has(this.#app.state.currentId)) this.#app.state.conversationOf(this.#app.state.currentId).draft = this.#app.view.draft;
  }

  /** @param {Conversation} conversation */
  show(conversation) {
    const session = this.#app.state.sessions.get(conversation.id) ?? {};
    const { turns, loaded, hasEarlier } = conversation;
    this.#app.view.showConversation(session, turns, { loading: !loaded, hasEarlier });
  }

  showBusy() {
    const running = this.#app.state.current?.running;
    const { waiting } = this.#app.asking;
    this.#app.view.showBusy(running !== undefined || waiting, running?.status === "stopping" || waiting);
  }
}

/**
 * The place that an address leads to, and what stands behind its name; null for one of a conversation.
 * @param {string} hash
 */
function placeAt(hash) {
  const [, name, rest = ""] = /^#\/([a-z]+)(?:\/(.*))?$/.exec(hash) ?? [];
  const place = PLACES.find((one) => one.name === name);
  return place === undefined ? null : { place, rest };
}
