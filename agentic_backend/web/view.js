/** The page around the turns: conversation list, header, message log, composer, connection, notices and the dialog. */

/**
 * @import { Agent, Attachment, Session } from "./api.js"
 * @import { Upload } from "./attachments.js"
 * @import { Fetch } from "./pictures.js"
 * @import { IconName } from "./dom.js"
 * @import { Claims } from "./oidc.js"
 * @import { ListState } from "./sidebar.js"
 * @import { ConnectionState, Turn } from "./protocol.js"
 * @import { Place } from "./places.js"
 * @import { Reader } from "./reader.js"
 * @import { Words } from "./texts.js"
 * @import { TurnActions } from "./turns.js"
 */

import { ApiError } from "./api.js";
import { AttachmentBar } from "./attachments.js";
import { CHOICE, enter } from "./choices.js";
import { el, icon, markAgent } from "./dom.js";
import { catalogue } from "./i18n.js";
import { shareButton } from "./share/button.js";
import { translateShell } from "./shell.js";
import { Sidebar, titleOf } from "./sidebar.js";
import { Tail } from "./tail.js";
import { TurnView } from "./turns.js";
import { UndoNotice } from "./undo.js";

const NEAR_END_PX = 96;
const COMPOSER_MAX_PX = 240;
const CARD_MARGIN_PX = 12;
const SEARCH_PAUSE_MS = 250;
const NARROW = "(max-width: 800px)";
/** A short break of the connection is mended before anyone needs to read about it. */
const QUIET_BREAK_MS = 1_200;

const t = catalogue({
  en: {
    newChat: "New conversation",
    connecting: "Connecting…",
    connected: "Connected",
    reconnecting: "Reconnecting…",
    idle: "Idle",
    elsewhere: "Open elsewhere",
    notSignedIn: "Not signed in",
    down: "The connection is down.",
    replaced: "This page was replaced by a newer connection of yours.",
    refused: "The service refused your credentials.",
    now: "Try now",
    again: "Try again",
    here: "Use it here",
    connectedAgain: "Connected again.",
    retrying: "Trying again…",
    retryIn: "Trying again in {seconds} s.",
    model: "Model",
    stop: "Stop",
    send: "Send",
    sendTitle: "Send (Enter)",
    sendTitleCtrl: "Send (Ctrl + Enter)",
    sends: "Enter sends, Shift + Enter starts a new line",
    breaks: "Enter starts a new line, Ctrl + Enter sends",
    close: "Close",
  },
  fr: {
    newChat: "Nouvelle conversation",
    connecting: "Connexion…",
    connected: "Connecté",
    reconnecting: "Reconnexion…",
    idle: "En veille",
    elsewhere: "Ouvert ailleurs",
    notSignedIn: "Non connecté",
    down: "La connexion est interrompue.",
    replaced: "Cette page a été remplacée par une connexion plus récente de votre part.",
    refused: "Le service a refusé vos identifiants.",
    now: "Essayer maintenant",
    again: "Réessayer",
    here: "Utiliser ici",
    connectedAgain: "De nouveau connecté.",
    retrying: "Nouvelle tentative…",
    retryIn: "Nouvelle tentative dans {seconds} s.",
    model: "Modèle",
    stop: "Arrêter",
    send: "Envoyer",
    sendTitle: "Envoyer (Entrée)",
    sendTitleCtrl: "Envoyer (Ctrl + Entrée)",
    sends: "Entrée envoie, Maj + Entrée passe à la ligne",
    breaks: "Entrée passe à la ligne, Ctrl + Entrée envoie",
    close: "Fermer",
  },
});

/** The name of the page, which the service has put there. */
const SITE = document.title;

/** @type {Record<ConnectionState["name"], {label: string, tone: string, banner?: string, action?: string}>} */
const CONNECTIONS = {
  connecting: { label: t("connecting"), tone: "wait" },
  open: { label: t("connected"), tone: "good" },
  waiting: { label: t("reconnecting"), tone: "wait", banner: t("down"), action: t("now") },
  asleep: { label: t("idle"), tone: "idle" },
  replaced: { label: t("elsewhere"), tone: "bad", banner: t("replaced"), action: t("here") },
  refused: { label: t("notSignedIn"), tone: "bad", banner: t("refused"), action: t("again") },
};

/**
 * What the page's controls do, beside those of a turn.
 * @typedef {object} PageActions
 * @property {(text: string) => void} send
 * @property {() => void} stop
 * @property {() => void} newChat
 * @property {(id: string) => void} deleteSession
 * @property {(id: string, title: string) => void} renameSession
 * @property {(id: string, pinned: boolean) => void} pinSession
 * @property {() => void} loadMoreSessions
 * @property {() => void} switchTo opens the dialog that leads anywhere
 * @property {(words: string) => void} search
 * @property {(format: "md"|"json") => void} exportSession
 * @property {() => void} share
 * @property {() => void} loadEarlier
 * @property {() => void} connect
 * @property {() => void} signOut
 * @property {(id: string) => void} chooseAgent
 * @property {(id: string) => void} chooseModel
 * @property {(files: File[]) => void} attach
 * @property {(attachment: Attachment) => void} detach
 * @property {Fetch} picture
 * @property {(upload: Upload) => void} retryUpload
 * @property {(upload: Upload) => void} dropUpload
 * @typedef {PageActions & TurnActions} Actions
 */

/**
 * The nodes of index.html by their ids, as far as more is asked of one than of any element.
 * @typedef {object} SpecialNodes
 * @property {HTMLSelectElement} agent
 * @property {HTMLSelectElement} model
 * @property {HTMLTextAreaElement} message
 * @property {HTMLInputElement} search
 * @property {HTMLInputElement} attach-input
 * @property {HTMLButtonElement} action
 * @property {HTMLElement} reader
 * @typedef {"attach"|"attachments"} AttachmentIds
 * @typedef {"title"|"exports"|"export-md"|"export-json"|"welcome"|"loading"|"earlier"|"log"|"turns"|"suggestions"
 *   |"to-end"|"place"|"places"} LogIds
 * @typedef {"sidebar"|"sessions"|"no-sessions"|"nothing-found"|"new-chat"|"menu"|"scrim"|"main"|"switch"}
 *   SidebarIds
 * @typedef {"composer"|"enter-hint"|"agent-picker"|"agent-about"|"model-picker"|"scope"|"scope-chips"|"agent-cards"|AttachmentIds} ComposerIds
 * @typedef {"connection"|"connection-banner"|"connection-text"|"connection-action"|"notice"|"announcer"|"person"
 *   |"person-name"|"sign-out"} StateIds
 * @typedef {SpecialNodes & Record<LogIds|SidebarIds|ComposerIds|StateIds, HTMLElement>} Nodes
 */

/** Owns every node of the page outside a turn. */
export class View {
  #actions;
  /** @type {Nodes} */
  #nodes;
  /** @type {WeakMap<Turn, TurnView>} */
  #turnViews = new WeakMap();
  /** @type {Set<Turn>} */
  #dirty = new Set();
  /** @type {number|null} */
  #frame = null;
  #lastRenderMs = 0;
  /** @type {ConnectionState["name"]} */
  #connection = "connecting";
  /** @type {number|null} */
  #bannerTimer = null;
  /** @type {number|undefined} */
  #countdown;
  /** @type {number|undefined} */
  #searchTimer;
  /** What was done last and can be undone. */
  undo = new UndoNotice();
  /** @type {Reader|null} */
  #reader = null;
  #tail;
  /** @type {boolean|null} */
  #busy = null;
  #sidebar;

  /** @param {Actions} actions */
  constructor(actions) {
    this.#actions = actions;
    translateShell();
    const named = [...document.querySelectorAll("[id]")].map((node) => [node.id, node]);
    this.#nodes = Object.fromEntries(named);
    this.#tail = new Tail(this.#nodes.log, NEAR_END_PX);
    this.#sidebar = new Sidebar(this.#nodes.sessions, {
      rename: ({ id }, title) => this.#actions.renameSession(id, title),
      pin: ({ id }, pinned) => this.#actions.pinSession(id, pinned),
      remove: ({ id }) => this.#actions.deleteSession(id),
      more: () => this.#actions.loadMoreSessions(),
    });
    this.#nodes.switch.addEventListener("click", () => this.#actions.switchTo());
    const { attachments: list, attach: button, "attach-input": input, message: field, main: area } = this.#nodes;
    this.attachments = new AttachmentBar(
      { list, button, input, field, area },
      {
        attach: (files) => actions.attach(files),
        remove: (attachment) => actions.detach(attachment),
        retry: (upload) => actions.retryUpload(upload),
        drop: (upload) => actions.dropUpload(upload),
        picture: (picture) => actions.picture(picture),
      },
    );
    this.#addIcons();
    this.#wireComposer();
    this.#wireDrawer();
    this.#wireScrolling();
    this.#nodes["sign-out"].addEventListener("click", () => this.#actions.signOut());
    this.#nodes["new-chat"].addEventListener("click", () => this.#actions.newChat());
    this.#nodes.exports.prepend(shareButton(() => this.#actions.share()));
    this.#nodes["export-md"].addEventListener("click", () => this.#actions.exportSession("md"));
    this.#nodes["export-json"].addEventListener("click", () => this.#actions.exportSession("json"));
    const { search, agent, model } = this.#nodes;
    search.addEventListener("input", () => this.#searchSoon(search.value.trim()));
    this.#nodes.earlier.addEventListener("click", () => this.#actions.loadEarlier());
    this.#nodes["connection-action"].addEventListener("click", () => this.#actions.connect());
    agent.addEventListener("change", () => this.#actions.chooseAgent(agent.value));
    model.addEventListener("change", () => {
      this.#describeModel();
      this.#actions.chooseModel(model.value);
    });
  }

  // ---- conversations ----

  /**
   * A pause in typing is the moment to search.
   * @param {string} words
   */
  #searchSoon(words) {
    clearTimeout(this.#searchTimer);
    this.#searchTimer = setTimeout(() => this.#actions.search(words), SEARCH_PAUSE_MS);
  }

  /**
   * The list beside the log, or why there is none.
   * @param {Session[]} sessions
   * @param {ListState} state
   */
  showSessions(sessions, state) {
    this.#sidebar.show(sessions, state);
    const searching = this.#nodes.search.value.trim() !== "";
    this.#nodes["no-sessions"].hidden = sessions.length > 0 || searching;
    this.#nodes["nothing-found"].hidden = sessions.length > 0 || !searching;
  }

  /**
   * A conversation's turns; `session` is null for one that does not exist yet.
   * @param {{title?: string}|null} session
   * @param {Turn[]} turns
   * @param {{loading?: boolean, hasEarlier?: boolean}} state
   */
  showConversation(session, turns, { loading = false, hasEarlier = false } = {}) {
    this.#leavePlace();
    this.showTitle(session);
    this.#nodes.welcome.hidden = session !== null;
    this.#nodes.loading.hidden = !loading;
    this.#nodes.earlier.hidden = !hasEarlier;
    // A screen reader is not to read a whole history aloud: only what is added while the log is not busy.
    this.#nodes.log.setAttribute("aria-busy", "true");
    this.#nodes.turns.replaceChildren(...turns.map((turn) => this.#viewOf(turn).node));
    this.#follow();
    requestAnimationFrame(() => this.#nodes.log.removeAttribute("aria-busy"));
  }

  // ---- documents ----

  /**
   * The panel of documents, which is fetched with the first of them. Rejects with ApiError where it cannot be.
   * @returns {Promise<Reader>}
   */
  async reader() {
    if (this.#reader !== null) return this.#reader;
    const module = await import("./reader.js").catch((error) => {
      throw error instanceof TypeError ? new ApiError("unreachable") : error;
    });
    this.#reader ??= new module.Reader(this.#nodes.reader);
    return this.#reader;
  }

  // ---- places ----

  /** The node in which a place shows itself. */
  get placeHost() {
    return this.#nodes.place;
  }

  /**
   * The links to the places.
   * @param {Place[]} places
   * @param {string|null} current
   */
  showPlaces(places, current) {
    const links = places.map(({ name, title }) => {
      const link = el("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title());
      return el("li", {}, link);
    });
    this.#nodes.places.firstElementChild?.replaceChildren(...links);
    this.#nodes.places.hidden = places.length === 0;
  }

  /**
   * A place instead of a conversation.
   * @param {string} title
   */
  showPlace(title) {
    this.#nodes.title.textContent = title;
    document.title = `${title} · ${SITE}`;
    this.#nodes.exports.hidden = true;
    this.#nodes.main.classList.add("at-place");
    this.#nodes.place.hidden = false;
    this.#nodes.place.focus();
  }

  #leavePlace() {
    this.#nodes.main.classList.remove("at-place");
    this.#nodes.place.hidden = true;
  }

  hideLoading() {
    this.#nodes.loading.hidden = true;
  }

  /**
   * The same conversation with more turns above, and what is on the screen where it was.
   * @param {Turn[]} turns
   * @param {boolean} hasEarlier
   */
  showEarlier(turns, hasEarlier) {
    const { log } = this.#nodes;
    const fromEnd = log.scrollHeight - log.scrollTop;
    this.#nodes.turns.replaceChildren(...turns.map((turn) => this.#viewOf(turn).node));
    this.#nodes.earlier.hidden = !hasEarlier;
    log.scrollTop = log.scrollHeight - fromEnd;
  }

  /** @param {{title?: string}|null} session */
  showTitle(session) {
    const title = session === null ? t("newChat") : titleOf(session);
    this.#nodes.title.textContent = title;
    this.#nodes.exports.hidden = session === null;
    document.title = session === null ? SITE : `${title} · ${SITE}`;
  }

  /**
   * The line that is on the screen, where it has become another one; what stays keeps its nodes, and its place.
   * @param {Turn[]} turns
   */
  showLine(turns) {
    const { turns: host } = this.#nodes;
    const nodes = turns.map((turn) => this.#viewOf(turn).node);
    const stay = new Set(nodes);
    for (const node of [...host.children]) if (!stay.has(/** @type {HTMLElement} */ (node))) node.remove();
    nodes.forEach((node, at) => {
      if (host.children[at] !== node) host.insertBefore(node, host.children[at] ?? null);
    });
    for (const turn of turns) this.#viewOf(turn).updateQuestion();
  }

  /** @param {Turn} turn */
  addTurn(turn) {
    this.#nodes.welcome.hidden = true;
    if (!this.#viewOf(turn).node.isConnected) this.#nodes.turns.append(this.#viewOf(turn).node);
    this.#tail.toEnd();
  }

  /**
   * Another version is on the screen now: the focus stays at the switch, which announces the version.
   * @param {Turn} turn
   * @param {-1|1} step
   */
  showVersion(turn, step) {
    const { node } = this.#viewOf(turn);
    node.scrollIntoView({ block: "nearest" });
    this.#viewOf(turn).focusVersions(step);
    this.announce(node.querySelector(".version")?.textContent ?? "");
  }

  /**
   * Brings a turn onto the screen, and the keyboard to it.
   * @param {Turn} turn
   */
  reveal(turn) {
    const { node } = this.#viewOf(turn);
    this.#tail.leave();
    node.setAttribute("tabindex", "-1");
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "start" });
  }

  /** @param {string} id */
  focusRow(id) {
    this.#sidebar.focusRow(id);
  }

  /** @param {Turn} turn */
  removeTurn(turn) {
    this.#viewOf(turn).node.remove();
  }

  /**
   * Shows a turn's change with the next frame; many changes in one frame cost one update.
   * @param {Turn} turn
   */
  updateTurn(turn) {
    this.#dirty.add(turn);
    if (this.#frame !== null) return;
    // A very long answer may take longer than a frame to draw: then draw less often and stay usable between.
    const paint = () => requestAnimationFrame(() => this.#paint());
    this.#frame = this.#lastRenderMs < 8 ? paint() : setTimeout(paint, this.#lastRenderMs * 3);
  }

  #paint() {
    this.#frame = null;
    const start = performance.now();
    for (const turn of this.#dirty) this.#viewOf(turn).update();
    this.#dirty.clear();
    if (this.#tail.following) this.#follow();
    this.#lastRenderMs = performance.now() - start;
  }

  /** @param {Turn} turn */
  #viewOf(turn) {
    let view = this.#turnViews.get(turn);
    if (view === undefined) {
      view = new TurnView(turn, this.#actions);
      this.#turnViews.set(turn, view);
    }
    return view;
  }

  // ---- agents ----

  /**
   * The picker is there only where there is a choice.
   * @param {Agent[]} agents
   * @param {string|null} chosenId
   */
  showAgents(agents, chosenId) {
    const { agent, "agent-about": about } = this.#nodes;
    agent.replaceChildren(...agents.map(({ id, name }) => el("option", { value: id }, name)));
    agent.value = chosenId ?? "";
    this.#nodes["agent-picker"].hidden = agents.length < 2;
    const chosen = agents.find(({ id }) => id === chosenId);
    const words = [chosen?.tuning?.role, chosen?.tuning?.description].filter(Boolean);
    about.textContent = chosen === undefined || agents.length > 1 ? "" : [chosen.name, ...words].join(" · ");
    this.#showCards(agents, chosenId);
    this.#showStarters(chosen?.starters ?? []);
  }

  /**
   * Who may be asked, each with what they are for; on a page without a conversation, and only where there is a choice.
   * @param {Agent[]} agents
   * @param {string|null} chosenId
   */
  #showCards(agents, chosenId) {
    const { "agent-cards": cards } = this.#nodes;
    cards.hidden = agents.length < 2;
    const focused = cards.contains(document.activeElement) ? document.activeElement?.getAttribute("value") : null;
    const buttons = agents.map(({ id, name, tuning }) => {
      const about = [tuning?.role, tuning?.description].filter(Boolean).join(" · ");
      const attributes = { type: "button", value: id, class: "agent-card", "aria-pressed": String(id === chosenId) };
      const words = el("span", {}, el("strong", { dir: "auto" }, name), el("span", { class: "hint", dir: "auto" }, about));
      const mark = el("span", { class: "agent-mark", "aria-hidden": "true" });
      markAgent(mark, id, name);
      return el("button", { ...attributes, onclick: () => this.#actions.chooseAgent(id) }, mark, words);
    });
    cards.replaceChildren(...buttons);
    buttons.find(({ value }) => value === focused)?.focus();
  }

  /**
   * What the chosen agent may be asked to begin with; buttons that stay the same keep their focus.
   * @param {string[]} texts
   */
  #showStarters(texts) {
    const { suggestions } = this.#nodes;
    const shown = [...suggestions.children].map((button) => button.textContent);
    if (shown.length === texts.length && shown.every((text, place) => text === texts[place])) return;
    /** @param {string} text */
    const send = (text) => () => this.#actions.send(text);
    suggestions.replaceChildren(
      ...texts.map((text) => el("button", { type: "button", onclick: send(text) }, text)),
    );
  }

  /**
   * @param {{id: string, title: string, description?: string|null}[]} choices of models; the picker is there only where there is more than one
   * @param {string|null} chosenId
   */
  showModels(choices, chosenId) {
    const { model, "model-picker": picker } = this.#nodes;
    const options = choices.map(({ id, title, description }) => el("option", { value: id, title: description }, title));
    model.replaceChildren(...options);
    model.value = chosenId ?? "";
    this.#describeModel();
    picker.hidden = choices.length < 2;
  }

  /** A closed list shows only the chosen entry, with its description. */
  #describeModel() {
    const { model } = this.#nodes;
    const about = model.selectedOptions[0]?.title ?? "";
    model.title = about === "" ? t("model") : about;
  }

  // ---- composer ----

  /** Where the scope of a conversation is shown and changed. */
  get scopeNodes() {
    return { chips: this.#nodes["scope-chips"], button: this.#nodes.scope };
  }

  /**
   * Whether the conversation on the screen is answering: the send button is then a stop button.
   * @param {boolean} busy
   * @param {boolean} stopping
   */
  showBusy(busy, stopping) {
    const { action } = this.#nodes;
    // With each piece of an answer: an icon that is exchanged between press and release swallows the click.
    if (busy !== this.#busy) {
      this.#busy = busy;
      action.replaceChildren(icon(busy ? "stop" : "send"));
      action.setAttribute("aria-label", t(busy ? "stop" : "send"));
      action.title = busy ? t("stop") : sendTitle();
      action.classList.toggle("stop", busy);
    }
    action.disabled = stopping;
    if (!busy) this.#fitComposer();
  }

  get draft() {
    return this.#nodes.message.value;
  }

  /** @param {string} text */
  set draft(text) {
    this.#nodes.message.value = text;
    this.#fitComposer();
  }

  focusComposer() {
    if (!matchMedia("(pointer: coarse)").matches) this.#nodes.message.focus();
  }

  #wireComposer() {
    const { action, composer, message, "enter-hint": hint } = this.#nodes;
    const showEnter = () => {
      hint.textContent = t(enter());
      if (!this.#busy) action.title = sendTitle();
    };
    showEnter();
    addEventListener(CHOICE, showEnter);
    message.addEventListener("input", () => this.#fitComposer());
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing || !isToSend(event)) return;
      event.preventDefault();
      if (!this.#busy) this.#submit();
    });
    composer.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#busy) this.#actions.stop();
      else this.#submit();
    });
  }

  #submit() {
    const text = this.draft.trim();
    if (text !== "") this.#actions.send(text);
  }

  #fitComposer() {
    const { message, action } = this.#nodes;
    message.style.height = "auto";
    message.style.height = `${Math.min(message.scrollHeight, COMPOSER_MAX_PX)}px`;
    if (!this.#busy) action.disabled = message.value.trim() === "";
  }

  // ---- connection and notices ----

  /** @param {ConnectionState} state as SocketClient tells it */
  showConnection({ name, retryInMs = 0 }) {
    const { label, tone, banner, action } = CONNECTIONS[name];
    const { connection, "connection-banner": box } = this.#nodes;
    connection.dataset.tone = tone;
    const [, words] = connection.children;
    words.textContent = label;
    connection.title = label;
    const lost = banner !== undefined;
    if (action !== undefined) this.#nodes["connection-action"].textContent = action;
    if (name === "waiting") this.#countDown(performance.now() + retryInMs);
    else this.#nodes["connection-text"].textContent = banner ?? "";
    // "connecting" between two attempts neither shows nor hides the banner: it would flicker.
    if (name === "open" && this.#connection !== "open" && !box.hidden) this.announce(t("connectedAgain"));
    if (name === "open" || name === "asleep") this.#hideBanner();
    else if (lost && box.hidden && this.#bannerTimer === null) this.#showBannerSoon();
    this.#connection = name;
  }

  #showBannerSoon() {
    this.#bannerTimer = setTimeout(() => {
      this.#nodes["connection-banner"].hidden = false;
      this.announce(t("down"));
    }, QUIET_BREAK_MS);
  }

  #hideBanner() {
    if (this.#bannerTimer !== null) clearTimeout(this.#bannerTimer);
    clearInterval(this.#countdown);
    this.#bannerTimer = null;
    this.#nodes["connection-banner"].hidden = true;
  }

  /** @param {number} due */
  #countDown(due) {
    clearInterval(this.#countdown);
    const show = () => {
      const left = Math.max(0, Math.ceil((due - performance.now()) / 1000));
      const when = left === 0 ? t("retrying") : t("retryIn", { seconds: left });
      this.#nodes["connection-text"].textContent = `${CONNECTIONS.waiting.banner} ${when}`;
    };
    this.#countdown = setInterval(show, 500);
    show();
  }

  /**
   * A failure that belongs to no turn. Stays until the next one or until it is closed.
   * @param {Words} text
   * @param {(() => void)|null} retry
   * @param {string} label
   */
  notify({ title, message }, retry = null, label = t("again")) {
    const { notice } = this.#nodes;
    const close = el("button", { type: "button", class: "quiet icon-button", "aria-label": t("close") }, icon("close"));
    close.addEventListener("click", () => this.clearNotice());
    const again = el("button", { type: "button", class: "small" }, label);
    again.addEventListener("click", () => {
      this.clearNotice();
      retry?.();
    });
    const text = el("span", {}, el("strong", {}, title), message ? ` ${message}` : "");
    notice.replaceChildren(icon("alert"), text, ...(retry === null ? [] : [again]), close);
    notice.hidden = false;
  }

  /**
   * Who is signed in: their claims, or null.
   * @param {Claims|null} person
   */
  showPerson(person) {
    this.#nodes.person.hidden = person === null;
    this.#nodes["person-name"].textContent = person?.name ?? person?.preferred_username ?? person?.email ?? "";
  }

  clearNotice() {
    this.#nodes.notice.hidden = true;
    this.#nodes.notice.replaceChildren();
  }

  /**
   * Says something to screen readers only.
   * @param {string} text
   */
  announce(text) {
    this.#nodes.announcer.textContent = text;
  }

  // ---- drawer of narrow screens ----

  closeDrawer() {
    this.#setDrawer(false);
  }

  #wireDrawer() {
    const { menu, scrim, sidebar } = this.#nodes;
    menu.addEventListener("click", () => this.#setDrawer(!document.body.classList.contains("drawer-open")));
    scrim.addEventListener("click", () => this.#setDrawer(false));
    document.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape" || !document.body.classList.contains("drawer-open")) return;
      this.#setDrawer(false);
      menu.focus();
    });
    const narrow = matchMedia(NARROW);
    const settle = () => {
      document.body.classList.remove("drawer-open");
      menu.setAttribute("aria-expanded", "false");
      sidebar.inert = narrow.matches;
    };
    narrow.addEventListener("change", settle);
    settle();
  }

  /** @param {boolean} open */
  #setDrawer(open) {
    const { menu, sidebar, main } = this.#nodes;
    const narrow = matchMedia(NARROW).matches;
    document.body.classList.toggle("drawer-open", open && narrow);
    menu.setAttribute("aria-expanded", String(open && narrow));
    sidebar.inert = narrow && !open;
    main.inert = narrow && open;
    if (open && narrow) this.#nodes["new-chat"].focus();
  }

  // ---- scrolling ----

  /** The log follows what is written while its end is in sight, and leaves the reader alone otherwise. */
  #wireScrolling() {
    const { log, "to-end": button } = this.#nodes;
    log.addEventListener("scroll", () => {
      button.hidden = this.#tail.following;
    });
    button.addEventListener("click", () => this.#tail.toEnd());
    // What understands Markdown, and formulas, may come after the text.
    log.addEventListener("grown", () => {
      if (this.#tail.following) this.#follow();
    });
  }

  /** To the end; of what the agent asks there to its beginning, where it is higher than the log. */
  #follow() {
    this.#tail.toEnd();
    const { log } = this.#nodes;
    const card = log.querySelector(".human");
    if (card === null || card.clientHeight < log.clientHeight) return;
    log.scrollTop += card.getBoundingClientRect().top - log.getBoundingClientRect().top - CARD_MARGIN_PX;
  }

  #addIcons() {
    const waiting = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-icon]"));
    for (const node of waiting) node.prepend(icon(/** @type {IconName} */ (node.dataset.icon)));
  }
}

/**
 * Whether the Enter key sends rather than begins a new line: alone or with Ctrl, as the person has chosen.
 * @param {KeyboardEvent} event
 */
function isToSend({ shiftKey, ctrlKey, metaKey }) {
  return enter() === "sends" ? !shiftKey : ctrlKey || metaKey;
}

function sendTitle() {
  return t(enter() === "sends" ? "sendTitle" : "sendTitleCtrl");
}
