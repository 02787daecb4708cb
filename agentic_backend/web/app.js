/**
 * The chat page: wires the credentials, the REST interface, the socket and the view, and keeps what they share.
 *
 * A turn belongs to the server, not to the socket: after a break, or a reload, the page resumes it after the last
 * event that it has. Where the server runs it again, what was shown of the answer is replaced. Where the server knows
 * nothing of it, or was itself restarted in the middle of the answer and does not run it again, the page looks into the
 * history and, where nothing else was asked since, asks again under the same id, which the server answers once. Tabs of one browser tell each other of running turns, and each follows them by itself.
 */

/**
 * @import { Agent, Attachment, Session } from "./api.js"
 * @import { Said } from "./hitl.js"
 * @import { Opinion } from "./opinion.js"
 * @import { ConnectionState, Failure, Snapshot, Status } from "./protocol.js"
 * @import { Place } from "./places.js"
 * @import { Place as Passage } from "./sources.js"
 */

import { Api, ApiError, Credentials } from "./api.js";
import { searchesDocuments } from "./doing.js";
import { Login } from "./login.js";
import { PLACES, Places } from "./places.js";
import { backoffMs, isCutOff, SocketClient, Turn } from "./protocol.js";
import { placeInAddress, placeOf } from "./sources.js";
import { errorText } from "./texts.js";
import { learn } from "./told.js";
import { View } from "./view.js";

const HISTORY_WINDOW = 100;
const PENDING_KEY = "turnwise.pending";
const TABS_CHANNEL = "turnwise.turns";
const AGENT_KEY = "turnwise.agent";
/** Longer than any turn may take: an older question is answered or lost, and history says which. */
const PENDING_MAX_AGE_MS = 10 * 60_000;
const MAX_RECOVERIES = 20;
const OFFER_GONE = new Set(["agent_not_found", "bad_request"]);
const CLOCK_REFRESH_MS = 60_000;

/** What the page knows of one session: its turns in order, and the messages that were read from its history. */
class Conversation {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    /** @type {string|null} */
    this.agentId = null;
    /** @type {Turn[]} */
    this.turns = [];
    /** @type {Map<number, Frames.ChatMessage>} by rank */
    this.messages = new Map();
    /** @type {Map<string, {turn: Turn, size: number}>} by exchange, with the number of its messages */
    this.storedTurns = new Map();
    this.loaded = false;
    this.draft = "";
    /** @type {string[]} names of files that are being attached */
    this.reading = [];
  }

  get firstRank() {
    return Math.min(...this.messages.keys(), Number.POSITIVE_INFINITY);
  }

  get hasEarlier() {
    return this.messages.size > 0 && this.firstRank > 0;
  }

  get running() {
    return this.turns.find((turn) => !turn.ended);
  }
}

class App {
  #api;
  #socket;
  #view;
  /** @type {Agent[]} */
  #agents = [];
  /** Whether the person may go on; false where they are on the way to sign in, or were told why not. */
  #entered = Promise.resolve(false);
  /** Settled once the agents were asked for, also where that failed. */
  #agentsLoaded = Promise.resolve();
  #agentId = localStorage.getItem(AGENT_KEY);
  /** @type {Map<string, Session>} */
  #sessions = new Map();
  /** Words that the list is searched for, and the ids of the sessions that hold them. */
  #words = "";
  /** @type {Set<string>} */
  #found = new Set();
  /** @type {Map<string, Conversation>} */
  #conversations = new Map();
  /** @type {Map<string, Turn>} the turns that are followed, by exchange */
  #turns = new Map();
  /** @type {string|null} */
  #currentId = null;
  #creating = false;
  #freshDraft = "";
  /** @type {string|null} */
  #freshModel = null;
  /** @type {BroadcastChannel|null} */
  #tabs = null;
  #login;
  #places;
  /** @type {Set<string>} what the person may do, as `resource:action` */
  #permissions = new Set();

  constructor() {
    const credentials = new Credentials();
    this.#api = new Api(new URL("../agentic/v1/", import.meta.url), credentials);
    this.#login = new Login(credentials, () => this.#settings(), {
      renewed: (token) => this.#socket.send({ type: "auth", access_token: token }),
      person: (person) => this.#view.showPerson(person),
      trouble: (text, again, label) => this.#view.notify(text, again, label),
    });
    this.#socket = new SocketClient({
      url: this.#api.socketUrl,
      token: () => credentials.token,
      onEvent: (event) => this.#onEvent(event),
      onState: (state) => this.#onConnection(state),
    });
    this.#view = new View({
      send: (text) => this.#send(text),
      stop: () => this.#stop(),
      newChat: () => this.#leaveTo("#/"),
      deleteSession: (id) => this.#deleteSession(id),
      search: (words) => this.#search(words),
      exportSession: (format) => this.#exportSession(format),
      rate: (turn, rating, said) => this.#rate(turn, rating, said),
      searches: (turn) => searchesDocuments(this.#agents.find(({ id }) => id === turn.agentId)),
      loadEarlier: () => this.#loadEarlier(),
      connect: () => this.#socket.connect(),
      retry: (turn) => this.#retry(turn),
      askAgain: (turn) => this.#askAgain(turn),
      edit: (turn) => this.#edit(turn),
      answerHuman: (turn, said) => this.#answerHuman(turn, said),
      signOut: () => this.#signOut(),
      chooseAgent: (id) => this.#chooseAgent(id),
      chooseModel: (id) => this.#chooseModel(id),
      attach: (files) => this.#attach(files),
      detach: (attachment) => this.#detach(attachment),
      openSource: (source, claim) => this.#openDocument({ ...placeOf(source), claim }),
    });
    this.#places = new Places(this.#view.placeHost, {
      api: this.#api,
      permissions: this.#permissions,
      announce: (text) => this.#view.announce(text),
      notify: (text, retry) => this.#view.notify(text, retry),
      goTo: (hash) => this.#leaveTo(hash),
      ask: (question) => this.#prepare(question),
    });
  }

  async start() {
    this.#entered = this.#login.enter();
    if (!(await this.#entered)) return;
    // Another person may sign in next in this tab, or be signed in in the one beside it.
    this.#tabs = new BroadcastChannel(this.#own(TABS_CHANNEL));
    this.#restorePending();
    addEventListener("hashchange", () => this.#openFromAddress());
    addEventListener("online", () => this.#wake());
    addEventListener("offline", () => this.#socket.drop());
    addEventListener("pagehide", () => this.#savePending());
    this.#tabs.addEventListener("message", ({ data }) => this.#onTab(data));
    document.addEventListener("visibilitychange", () => this.#onVisible());
    setInterval(() => this.#showSessions(), CLOCK_REFRESH_MS);
    this.#socket.connect();
    this.#openFirst();
    this.#loadAgents();
    this.#loadSessions();
    this.#loadPermissions();
    this.#openAddressedDocument();
  }

  async #settings() {
    const settings = await this.#api.settings();
    learn(settings);
    return settings;
  }

  /**
   * The name under which something is kept for the person that is signed in.
   * @param {string} name
   */
  #own(name) {
    return this.#login.personId === null ? name : `${name}.${this.#login.personId}`;
  }

  #signOut() {
    this.#turns.clear();
    this.#savePending();
    this.#login.signOut();
  }

  // ---- documents ----

  /** @param {Passage & {claim?: string}} place */
  #openDocument(place) {
    const { documentUid, chunkUid } = place;
    return this.#view.reader.open(place, {
      passage: chunkUid === null ? null : () => this.#api.passage(documentUid, chunkUid),
      text: () => this.#api.documentText(documentUid),
    });
  }

  /** The page under the address of a citation: the document opens over a new conversation, which is what it leaves. */
  async #openAddressedDocument() {
    const place = placeInAddress(location);
    if (place === null) return;
    await this.#openDocument(place);
    if (placeInAddress(location) !== null) history.replaceState(null, "", "/#/");
  }

  #onVisible() {
    if (document.visibilityState !== "visible") {
      this.#savePending(); // a hidden page may be ended without a word
      return;
    }
    this.#wake();
    this.#loadSessions();
  }

  /** Not where the server closed on purpose: two tabs would throw each other out for ever. */
  #wake() {
    if (this.#socket.state === "asleep" || this.#socket.state === "waiting") this.#socket.connect();
  }

  // ---- agents and sessions ----

  #loadAgents() {
    this.#agentsLoaded = this.#guarded(async () => {
      this.#agents = await this.#api.agents();
      this.#showAgents();
    }, () => this.#loadAgents());
    return this.#agentsLoaded;
  }

  /** Without them the page offers what everybody may do; the service decides in any case. */
  async #loadPermissions() {
    try {
      for (const permission of await this.#api.permissions()) this.#permissions.add(permission);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    this.#showPlaces();
  }

  #showPlaces(current = placeAt(location.hash)?.place) {
    const open = PLACES.filter(({ permission }) => permission === null || this.#permissions.has(permission));
    this.#view.showPlaces(open, current?.name ?? null);
  }

  async #loadSessions() {
    await this.#guarded(async () => {
      const sessions = await this.#api.sessions();
      this.#sessions = new Map(sessions.map((session) => [session.id, session]));
      this.#showSessions();
      this.#showAgents();
      if (this.#currentId !== null) this.#view.showTitle(this.#sessions.get(this.#currentId) ?? {});
    }, () => this.#loadSessions());
  }

  #showSessions() {
    const known = [...this.#sessions.values()];
    const sessions = this.#words === "" ? known : known.filter(({ id }) => this.#found.has(id));
    sessions.sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    const busy = [...this.#conversations.values()].filter((conversation) => conversation.running !== undefined);
    const busyIds = new Set(busy.map((conversation) => conversation.id));
    this.#view.showSessions(sessions, { currentId: this.#currentId, busyIds });
  }

  /**
   * Lists the sessions that hold the words; of two searches the later one counts.
   * @param {string} words
   */
  async #search(words) {
    this.#words = words;
    if (words === "") {
      this.#showSessions();
      return;
    }
    await this.#guarded(async () => {
      const sessions = await this.#api.sessions(words);
      if (this.#words !== words) return;
      for (const session of sessions) this.#sessions.set(session.id, session);
      this.#found = new Set(sessions.map(({ id }) => id));
      this.#showSessions();
    }, () => this.#search(words));
  }

  /** @param {"md"|"json"} format */
  async #exportSession(format) {
    const id = this.#currentId;
    if (id !== null) await this.#guarded(async () => this.#view.save(await this.#api.exported(id, format)));
  }

  // ---- feedback ----

  /**
   * Rates an answer, or takes the rating back where it is the one that it has and nothing more is said.
   * @param {Turn} turn
   * @param {number} rating
   * @param {Opinion|null} said
   */
  async #rate(turn, rating, said) {
    const { answer } = turn;
    if (answer === undefined) return; // its buttons stand under an answer
    await this.#guarded(async () => {
      if (said === null && turn.feedback?.rating === rating) {
        await this.#api.takeFeedbackBack(turn.feedback.id);
      } else {
        const agentName = turn.metadata.agent_id ?? turn.agentId ?? "unknown";
        const messageId = String(answer.rank);
        await this.#api.giveFeedback({ sessionId: turn.sessionId, messageId, agentName, rating, ...said });
      }
      await this.#showFeedback(this.#conversationOf(turn.sessionId));
    });
  }

  /** @param {Conversation} conversation */
  async #showFeedback(conversation) {
    const given = await this.#api.feedback(conversation.id);
    const byMessage = new Map(given.map((feedback) => [feedback.messageId, feedback]));
    for (const turn of conversation.turns) {
      const feedback = byMessage.get(String(turn.answer?.rank)) ?? null;
      if (JSON.stringify(turn.feedback) === JSON.stringify(feedback)) continue;
      turn.feedback = feedback;
      this.#view.updateTurn(turn);
    }
  }

  /**
   * What was said of answers is an ornament of the conversation: without it the rest is as good.
   * @param {Conversation} conversation
   */
  async #loadFeedback(conversation) {
    try {
      await this.#showFeedback(conversation);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  /** The conversation on the screen; undefined where it does not exist yet, or was not opened. */
  get #current() {
    return this.#currentId === null ? undefined : this.#conversations.get(this.#currentId);
  }

  get #currentSession() {
    return this.#currentId === null ? undefined : this.#sessions.get(this.#currentId);
  }

  get #chosenAgentId() {
    /** @param {string|null|undefined} id */
    const known = (id) => this.#agents.some((agent) => agent.id === id);
    const own = this.#current?.agentId ?? this.#currentSession?.agent_id;
    return [own, this.#agentId].find(known) ?? this.#agents[0]?.id ?? null;
  }

  #showAgents() {
    const agentId = this.#chosenAgentId;
    this.#view.showAgents(this.#agents, agentId);
    this.#view.showModels(this.#modelChoices(agentId), this.#modelFor(this.#currentId, agentId));
    this.#showAttachments();
  }

  /**
   * The models that a turn of the agent may choose, its own first.
   * @param {string|null} agentId
   */
  #modelChoices(agentId) {
    return this.#agents.find(({ id }) => id === agentId)?.model_choices ?? [];
  }

  /**
   * The model that a question gets: what is preferred in its conversation, else the agent's own; null without choice.
   * @param {string|null} sessionId
   * @param {string|null} agentId
   * @returns {string|null}
   */
  #modelFor(sessionId, agentId) {
    const choices = this.#modelChoices(agentId);
    if (choices.length < 2) return null;
    const preferred = sessionId === null ? this.#freshModel : this.#sessions.get(sessionId)?.preferences?.model;
    return (choices.find(({ id }) => id === preferred) ?? choices[0]).id;
  }

  /**
   * A conversation remembers its model; one that does not exist yet gets it when it does.
   * @param {string} model
   */
  async #chooseModel(model) {
    const session = this.#currentSession;
    if (session === undefined) {
      this.#freshModel = model;
      return;
    }
    const before = session.preferences ?? {};
    this.#sessions.set(session.id, { ...session, preferences: { ...before, model } });
    try {
      await this.#api.setPreferences(session.id, { ...before, model });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // It still holds for this visit: each question names its model.
      this.#view.notify(errorText(error.failure));
    }
  }

  /** @param {string} id */
  #chooseAgent(id) {
    this.#agentId = id;
    localStorage.setItem(AGENT_KEY, id);
    const conversation = this.#current;
    if (conversation !== undefined) conversation.agentId = id;
    this.#showAgents();
  }

  /** @param {Frames.Session} session */
  #noteSession(session) {
    const known = this.#sessions.get(session.id);
    // A turn may tell of the preferences as they were when it began: what was chosen since stands.
    const noted = { ...known, ...session, preferences: known?.preferences ?? session.preferences };
    this.#sessions.set(session.id, noted);
    if (session.id === this.#currentId) this.#view.showTitle(noted);
    this.#showSessions();
  }

  /** @param {string} id */
  async #deleteSession(id) {
    const running = this.#conversations.get(id)?.running;
    if (running?.sent) this.#socket.send({ type: "cancel", exchange_id: running.exchangeId });
    await this.#guarded(async () => {
      await this.#api.deleteSession(id);
      for (const turn of this.#conversations.get(id)?.turns ?? []) this.#turns.delete(turn.exchangeId);
      this.#conversations.delete(id);
      this.#sessions.delete(id);
      this.#savePending();
      this.#showSessions();
      if (id === this.#currentId) this.#leaveTo("#/");
    });
  }

  // ---- attachments ----

  #showAttachments() {
    const agent = this.#agents.find(({ id }) => id === this.#chosenAgentId);
    this.#view.showAttachments({
      offered: agent?.chat_options?.attach_files === true,
      attached: this.#currentSession?.attachments ?? [],
      reading: this.#current?.reading ?? [],
    });
  }

  /**
   * Attaches files one after the other; what cannot be attached is said, and the others go on.
   * @param {File[]} files
   */
  async #attach(files) {
    if (this.#creating) return;
    const agentId = this.#chosenAgentId;
    const id = this.#currentId ?? (agentId === null ? null : await this.#createSession(agentId));
    if (id === null) return;
    this.#showSessions();
    this.#view.clearNotice();
    const conversation = this.#conversationOf(id);
    conversation.reading.push(...files.map(({ name }) => name));
    this.#showAttachments();
    for (const file of files) {
      try {
        const { attachment_id: attachmentId, filename } = await this.#api.upload(id, file);
        this.#setAttachments(id, (now) => [...now, { id: attachmentId, name: filename }]);
        this.#view.announce(`${filename} is attached.`);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        const { title, message } = errorText(error.failure);
        this.#view.notify({ title, message: `${file.name}: ${message}` });
      }
      conversation.reading.splice(conversation.reading.indexOf(file.name), 1);
      this.#showAttachments();
    }
  }

  /** @param {Attachment} attachment */
  async #detach({ id: attachmentId, name }) {
    const id = this.#currentId;
    if (id === null) return;
    await this.#guarded(async () => {
      await this.#api.removeAttachment(id, attachmentId);
      this.#setAttachments(id, (now) => now.filter((one) => one.id !== attachmentId));
      this.#view.announce(`${name} is removed.`);
    });
    // The button is gone, and with it the place of the keyboard.
    this.#view.focusComposer();
  }

  /**
   * The list that was read meanwhile may hold a new one already.
   * @param {string} id
   * @param {(now: Attachment[]) => Attachment[]} change
   */
  #setAttachments(id, change) {
    const session = this.#sessions.get(id);
    if (session === undefined) return;
    const byId = new Map(change(session.attachments ?? []).map((one) => [one.id, one]));
    this.#sessions.set(id, { ...session, attachments: [...byId.values()] });
    this.#showAttachments();
  }

  // ---- the conversation on the screen ----

  /** @param {string} hash */
  #leaveTo(hash) {
    if (location.hash === hash || (hash === "#/" && location.hash === "")) this.#openFromAddress();
    else location.hash = hash;
  }

  /** What was typed until now belongs to the conversation that the page was opened for. */
  #openFirst() {
    const typed = this.#view.draft;
    this.#openFromAddress();
    this.#view.draft = typed;
    this.#freshDraft = "";
  }

  /** @param {string} question */
  #prepare(question) {
    this.#freshDraft = question;
    this.#leaveTo("#/");
  }

  #openFromAddress() {
    const at = placeAt(location.hash);
    this.#showPlaces(at?.place);
    if (at !== null) {
      this.#goToPlace(at);
      return;
    }
    this.#places.leave();
    const match = /^#\/c\/([\w-]{1,64})$/.exec(location.hash);
    this.#open(match === null ? null : match[1]);
  }

  /** @param {{place: Place, rest: string}} at */
  #goToPlace({ place, rest }) {
    this.#keepDraft();
    this.#currentId = null;
    this.#view.draft = this.#freshDraft;
    this.#view.clearNotice();
    this.#view.showPlace(place.title());
    this.#showBusy();
    this.#showSessions();
    this.#places.show(place, rest);
  }

  /** @param {string|null} id */
  #open(id) {
    this.#keepDraft();
    this.#currentId = id;
    this.#view.clearNotice();
    if (id === null) {
      this.#view.showConversation(null, []);
    } else {
      const conversation = this.#conversationOf(id);
      this.#show(conversation);
      if (!conversation.loaded) this.#loadHistory(conversation);
      this.#tabs?.postMessage({ open: id });
    }
    this.#view.draft = id === null ? this.#freshDraft : this.#conversationOf(id).draft;
    this.#showBusy();
    this.#showSessions();
    this.#showAgents();
    this.#view.focusComposer();
  }

  #keepDraft() {
    if (this.#currentId === null) this.#freshDraft = this.#view.draft;
    else if (this.#conversations.has(this.#currentId)) this.#conversationOf(this.#currentId).draft = this.#view.draft;
  }

  /** @param {string} id @returns {Conversation} */
  #conversationOf(id) {
    const known = this.#conversations.get(id) ?? new Conversation(id);
    this.#conversations.set(id, known);
    return known;
  }

  /** @param {Conversation} conversation */
  #show(conversation) {
    const session = this.#sessions.get(conversation.id) ?? {};
    const { turns, loaded, hasEarlier } = conversation;
    this.#view.showConversation(session, turns, { loading: !loaded, hasEarlier });
  }

  #showBusy() {
    const running = this.#current?.running;
    this.#view.showBusy(running !== undefined || this.#creating, running?.status === "stopping" || this.#creating);
  }

  /** @param {Conversation} conversation */
  async #loadHistory(conversation) {
    await this.#guarded(async () => {
      this.#merge(conversation, await this.#api.history(conversation.id, { limit: HISTORY_WINDOW }));
      conversation.loaded = true;
      if (conversation.id === this.#currentId) this.#show(conversation);
      this.#loadFeedback(conversation);
    }, () => this.#loadHistory(conversation));
    if (conversation.id !== this.#currentId) return;
    this.#view.hideLoading();
    this.#showBusy();
  }

  async #loadEarlier() {
    const conversation = this.#current;
    if (conversation === undefined) return;
    await this.#guarded(async () => {
      // Where next_rank is stale the window overlaps with what is known, and ranks sort that out.
      const newest = Math.max(...conversation.messages.keys());
      const next = Math.max(this.#sessions.get(conversation.id)?.next_rank ?? 0, newest + 1);
      const window = { limit: HISTORY_WINDOW, offset: next - conversation.firstRank };
      this.#merge(conversation, await this.#api.history(conversation.id, window));
      if (conversation.id === this.#currentId) this.#view.showEarlier(conversation.turns, conversation.hasEarlier);
    });
  }

  /**
   * Takes messages of the history into the conversation: the stored turns in order, then those not stored yet.
   * @param {Conversation} conversation
   * @param {Frames.ChatMessage[]} messages
   */
  #merge(conversation, messages) {
    for (const message of messages) conversation.messages.set(message.rank, message);
    const ordered = [...conversation.messages.values()].sort((a, b) => a.rank - b.rank);
    const groups = Map.groupBy(ordered, (message) => message.exchange_id);
    const newestId = ordered.at(-1)?.exchange_id;
    const stored = [...groups].map(([id, group]) => this.#storedTurn(conversation, id, group, id === newestId));
    conversation.turns = [...stored, ...conversation.turns.filter((turn) => !groups.has(turn.exchangeId))];
  }

  /**
   * A turn that this page follows itself is taken as it is, or ended where storage has its answer.
   * @param {Conversation} conversation
   * @param {string} exchangeId
   * @param {Frames.ChatMessage[]} messages
   * @param {boolean} newest
   */
  #storedTurn(conversation, exchangeId, messages, newest) {
    const followed = this.#turns.get(exchangeId);
    if (followed !== undefined) {
      if (!followed.ended && isEnd(followed, messages, newest)) this.#settle(followed, messages);
      return followed;
    }
    const known = conversation.storedTurns.get(exchangeId);
    if (known?.size === messages.length) return known.turn;
    const turn = Turn.fromMessages(messages);
    if (!newest) passOver(turn);
    conversation.storedTurns.set(exchangeId, { turn, size: messages.length });
    return turn;
  }

  // ---- asking ----

  /** @param {string} text */
  async #send(text) {
    if (!(await this.#entered)) return;
    if (this.#chosenAgentId === null) await this.#agentsLoaded; // who asks at once is not told that there is none
    if (this.#creating || this.#current?.running !== undefined) return;
    const agentId = this.#chosenAgentId;
    if (agentId === null) {
      this.#view.notify({ title: "There is no agent to ask", message: "" }, () => this.#loadAgents());
      return;
    }
    const id = this.#currentId ?? (await this.#createSession(agentId));
    if (id === null) return;
    this.#view.clearNotice();
    this.#view.draft = "";
    this.#ask(this.#conversationOf(id), text, agentId);
  }

  /**
   * The id of a new session, which is then the one on the screen; null where the service did not make one.
   * @param {string} agentId
   * @returns {Promise<string|null>}
   */
  async #createSession(agentId) {
    this.#creating = true;
    this.#showBusy();
    try {
      const session = await this.#api.createSession(agentId);
      this.#sessions.set(session.id, session);
      const conversation = this.#conversationOf(session.id);
      conversation.loaded = true;
      this.#currentId = session.id;
      this.#freshDraft = "";
      if (this.#freshModel !== null) this.#chooseModel(this.#freshModel);
      this.#freshModel = null;
      history.pushState(null, "", `#/c/${session.id}`);
      this.#show(conversation);
      return session.id;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#view.notify(errorText(error.failure));
      return null;
    } finally {
      this.#creating = false;
      this.#showBusy();
    }
  }

  /**
   * @param {Conversation} conversation
   * @param {string} question
   * @param {string|null} agentId
   * @param {string} exchangeId
   */
  #ask(conversation, question, agentId, exchangeId = newExchangeId()) {
    const turn = new Turn({
      exchangeId,
      sessionId: conversation.id,
      agentId,
      model: this.#modelFor(conversation.id, agentId),
      question,
      askedAt: performance.now(),
    });
    turn.savedAt = Date.now();
    for (const earlier of conversation.turns) if (passOver(earlier)) this.#view.updateTurn(earlier);
    conversation.turns.push(turn);
    this.#turns.set(turn.exchangeId, turn);
    this.#dispatch(turn);
    this.#savePending();
    this.#view.addTurn(turn);
    this.#showBusy();
    this.#showSessions();
  }

  /**
   * Sends the ask, or has it sent as soon as there is a connection.
   * @param {Turn} turn
   */
  #dispatch(turn) {
    const sent = this.#socket.send(turn.askFrame());
    turn.sent ||= sent;
    turn.waitingForConnection = !sent;
    if (!sent) this.#wake();
    this.#view.updateTurn(turn);
  }

  #stop() {
    const turn = this.#current?.running;
    if (turn === undefined) return;
    if (turn.sent) {
      turn.status = "stopping";
      this.#socket.send({ type: "cancel", exchange_id: turn.exchangeId });
    } else {
      turn.status = "cancelled";
    }
    this.#changed(turn);
  }

  /**
   * Whether a conversation is answering; then the person hears why nothing more is asked in it.
   * @param {Conversation} conversation
   */
  #isAnswering(conversation) {
    if (conversation.running === undefined) return false;
    this.#view.notify({ title: "This conversation is answering.", message: "Ask again when the answer is there." });
    return true;
  }

  /** @param {Turn} turn */
  #retry(turn) {
    const { question } = turn;
    const conversation = this.#conversationOf(turn.sessionId);
    if (question === null || this.#isAnswering(conversation)) return;
    this.#dropRefused(conversation, turn);
    this.#ask(conversation, question, turn.agentId ?? this.#chosenAgentId);
  }

  /**
   * Asks a stopped or interrupted question once more. The newest, where a restart cut it off, runs again in its place:
   * under its own id, so that the conversation holds it once.
   * @param {Turn} turn
   */
  #askAgain(turn) {
    const { question } = turn;
    const conversation = this.#conversationOf(turn.sessionId);
    if (question === null || this.#isAnswering(conversation)) return;
    const agentId = turn.agentId ?? turn.metadata.agent_id ?? this.#chosenAgentId;
    const newest = conversation.turns.findLast(({ status }) => status !== "refused");
    if (turn.status === "interrupted" && turn === newest && !turn.overtaken) {
      conversation.turns = conversation.turns.filter((other) => other !== turn);
      conversation.storedTurns.delete(turn.exchangeId);
      this.#view.removeTurn(turn);
      this.#ask(conversation, question, agentId, turn.exchangeId);
    } else {
      turn.retried = true;
      this.#view.updateTurn(turn);
      this.#ask(conversation, question, agentId);
    }
    // The button is gone, and with it the place of the keyboard.
    this.#view.focusComposer();
  }

  /**
   * Takes the person's answer to the agent's question to the server; without a connection it can be given again.
   * @param {Turn} turn
   * @param {Said} said
   */
  #answerHuman(turn, said) {
    this.#turns.set(turn.exchangeId, turn);
    turn.savedAt = Date.now();
    turn.model = this.#modelFor(turn.sessionId, turn.agentId);
    turn.goOn(said, performance.now());
    if (!this.#socket.send(turn.humanFrame())) {
      this.#wake();
      this.#askHumanAgain(turn, { code: "unreachable" });
      return;
    }
    this.#changed(turn);
    this.#savePending();
    this.#showSessions();
    // The card is gone, and with it the place of the keyboard.
    this.#view.focusComposer();
  }

  /** @param {Turn} turn @param {Failure} error */
  #askHumanAgain(turn, error) {
    turn.awaitAgain();
    this.#view.notify(errorText(error));
    this.#changed(turn);
  }

  /** @param {Turn} turn */
  #edit(turn) {
    this.#dropRefused(this.#conversationOf(turn.sessionId), turn);
    this.#view.draft = turn.question ?? "";
    this.#view.focusComposer();
  }

  /**
   * A refused turn is in no history: its second attempt takes its place. A failed one stays, without its buttons.
   * @param {Conversation} conversation
   * @param {Turn} turn
   */
  #dropRefused(conversation, turn) {
    turn.retried = true;
    if (turn.status !== "refused") {
      this.#view.updateTurn(turn);
      return;
    }
    conversation.turns = conversation.turns.filter((other) => other !== turn);
    this.#turns.delete(turn.exchangeId);
    this.#view.removeTurn(turn);
  }

  // ---- what the server says ----

  /** @param {Frames.FromServer} event */
  #onEvent(event) {
    if ("session" in event && this.#sessions.has(event.session.id)) this.#noteSession(event.session);
    const turn = "exchange_id" in event ? this.#turns.get(event.exchange_id ?? "") : undefined;
    if (!("seq" in event)) {
      if (event.type === "error") this.#onRefusal(event, turn);
    } else if (turn?.ended === false && event.type === "cancelled" && isCutOff(event.messages)) {
      this.#recover(turn);
    } else if (turn?.apply(event, performance.now())) {
      if (event.type === "accepted") this.#tabs?.postMessage({ running: turn.outline() });
      this.#changed(turn);
    }
  }

  /**
   * An error before any turn: of an ask, of a resume or repeated ask after a break, or of a cancel that came late.
   * @param {Frames.refusal|Frames.frame_error} event
   * @param {Turn|undefined} named
   */
  #onRefusal(event, named) {
    const late = event.code === "exchange_not_found";
    const status = late ? "stopping" : "sending";
    const concerned = [...this.#turns.values()].filter((turn) => turn.sent && turn.status === status);
    const turn = named ?? (concerned.length === 1 ? concerned[0] : undefined);
    if (turn?.answering) {
      this.#askHumanAgain(turn, event);
      // Another tab may have answered: then the exchange goes on there, and is followed here too.
      if (event.code === "not_awaiting") this.#resume(turn);
    } else if (turn === undefined) {
      // A cancel that came after the end is nobody's trouble.
      if (!late) this.#view.notify(errorText(event));
    } else if (turn.resuming && late) {
      if (turn.fromOtherTab) this.#forget(turn);
      else this.#recover(turn);
    } else if (turn.status === "sending" && !turn.recoveries && !turn.resuming) {
      turn.refuse(event);
      this.#changed(turn);
      // What the page offers may be gone: an agent, or one of its models.
      if (OFFER_GONE.has(event.code)) this.#loadAgents();
    } else if (!turn.ended) {
      this.#recoverLater(turn, event);
    }
  }

  /** @param {Turn} turn */
  #changed(turn) {
    turn.waitingForConnection = false;
    this.#view.updateTurn(turn);
    if (turn.ended) {
      this.#savePending();
      this.#view.announce(ENDINGS[turn.status] ?? "");
      this.#showSessions();
    }
    if (turn.sessionId === this.#currentId) this.#showBusy();
  }

  async #renewAndConnect() {
    if (await this.#login.renew()) this.#socket.connect();
  }

  /** @param {ConnectionState} state */
  #onConnection(state) {
    this.#view.showConnection(state);
    if (state.name === "refused" && state.code === 4401) this.#renewAndConnect();
    const open = [...this.#turns.values()].filter((turn) => !turn.ended);
    for (const turn of open) {
      if (state.name !== "open") this.#waitForConnection(turn);
      else if (turn.sent) this.#resume(turn);
      else this.#dispatch(turn);
    }
  }

  // ---- after a break ----

  /** @param {Turn} turn */
  #waitForConnection(turn) {
    turn.waitingForConnection = true;
    this.#view.updateTurn(turn);
  }

  /**
   * Follows the turn from the last event that is known of it.
   * @param {Turn} turn
   */
  #resume(turn) {
    const stopping = turn.status === "stopping";
    turn.resuming = true;
    turn.expectReplay();
    turn.waitingForConnection = !this.#socket.send(turn.resumeFrame());
    if (stopping) this.#socket.send({ type: "cancel", exchange_id: turn.exchangeId });
    this.#view.updateTurn(turn);
  }

  /**
   * Looks for the turn's answer in the history; where there is none, asks again under the same id.
   * @param {Turn} turn
   */
  async #recover(turn) {
    turn.resuming = false;
    turn.recoveries = (turn.recoveries ?? 0) + 1;
    try {
      const messages = await this.#api.history(turn.sessionId, { limit: HISTORY_WINDOW });
      const own = messages.filter((message) => message.exchange_id === turn.exchangeId);
      if (turn.ended) return;
      const newest = messages.at(-1)?.exchange_id === turn.exchangeId;
      if (isEnd(turn, own, newest)) {
        turn.overtaken = !newest;
        this.#settle(turn, own);
        return;
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#recoverLater(turn, error.failure);
      return;
    }
    const stopping = turn.status === "stopping";
    turn.expectReplay();
    this.#dispatch(turn);
    if (stopping) this.#socket.send({ type: "cancel", exchange_id: turn.exchangeId });
  }

  /**
   * The service cannot say yet (it is busy with this very turn, or not back): look again a little later.
   * @param {Turn} turn
   * @param {Failure} failure
   */
  #recoverLater(turn, { code, message, retryable, retry_after_ms: retryAfterMs = 0 }) {
    const hopeful = retryable || code === "session_busy" || code === "exchange_not_found";
    const tried = turn.recoveries ?? 0;
    if (!hopeful || tried >= MAX_RECOVERIES) {
      turn.refuse(hopeful ? { code: "lost" } : { code, message });
      this.#changed(turn);
      return;
    }
    const wait = Math.max(retryAfterMs, backoffMs(tried));
    setTimeout(() => {
      // Without a connection the next one starts the recovery.
      if (!turn.ended && this.#socket.state === "open") this.#recover(turn);
    }, wait);
  }

  /** @param {Turn} turn @param {Frames.ChatMessage[]} messages */
  #settle(turn, messages) {
    turn.adopt(messages);
    this.#changed(turn);
  }

  /** Questions whose answer is outstanding survive a reload of the tab, with what is known of the answer. */
  #savePending() {
    const open = [...this.#turns.values()].filter((turn) => !turn.ended);
    /** @param {object[]} kept */
    const keep = (kept) => sessionStorage.setItem(this.#own(PENDING_KEY), JSON.stringify(kept));
    try {
      keep(open.map((turn) => ({ savedAt: turn.savedAt, ...turn.snapshot() })));
    } catch (error) {
      if (!(error instanceof DOMException) || error.name !== "QuotaExceededError") throw error;
      keep(open.map((turn) => ({ savedAt: turn.savedAt, ...turn.outline() })));
    }
  }

  #restorePending() {
    const pending = JSON.parse(sessionStorage.getItem(this.#own(PENDING_KEY)) ?? "[]");
    for (const { savedAt, ...kept } of pending) {
      if (Date.now() - savedAt <= PENDING_MAX_AGE_MS) this.#adopt(Turn.fromSnapshot(kept), savedAt);
    }
  }

  /** @param {Turn} turn @param {number} savedAt */
  #adopt(turn, savedAt) {
    turn.savedAt = savedAt;
    this.#turns.set(turn.exchangeId, turn);
    this.#conversationOf(turn.sessionId).turns.push(turn);
  }

  /** @param {Turn} turn */
  #forget(turn) {
    const conversation = this.#conversationOf(turn.sessionId);
    conversation.turns = conversation.turns.filter((other) => other !== turn);
    this.#turns.delete(turn.exchangeId);
    this.#view.removeTurn(turn);
    this.#showBusy();
    this.#showSessions();
  }

  // ---- other tabs ----

  /**
   * Another tab opened a conversation, and is told what runs there; or it has a turn running in one that is open here.
   * @param {{open?: string, running?: Snapshot}} told
   */
  #onTab({ open, running }) {
    if (open !== undefined) {
      const turn = this.#conversations.get(open)?.running;
      if (turn?.sent && turn.status !== "sending") this.#tabs?.postMessage({ running: turn.outline() });
      return;
    }
    if (running === undefined) return;
    const conversation = this.#conversations.get(running.sessionId);
    if (conversation === undefined || this.#turns.has(running.exchangeId)) return;
    if (conversation.storedTurns.has(running.exchangeId)) return;
    const turn = Turn.fromSnapshot(running);
    turn.fromOtherTab = true;
    this.#adopt(turn, Date.now());
    if (turn.sessionId === this.#currentId) {
      this.#view.addTurn(turn);
      this.#showBusy();
    }
    if (this.#socket.state === "open") this.#resume(turn);
    this.#showSessions();
  }

  /**
   * Runs a REST call for the page; a failure becomes a notice, with `again` behind its button where that may help.
   * @param {() => Promise<void>} call
   * @param {(() => void)|null} again
   */
  async #guarded(call, again = null) {
    try {
      await call();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#view.notify(errorText(error.failure), error.retryable ? again : null);
    }
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

/** @type {Partial<Record<Status, string>>} */
const ENDINGS = {
  done: "Answer complete.",
  cancelled: "Stopped.",
  interrupted: "This answer was interrupted.",
  unanswered: "There is no answer.",
  awaiting: "The agent asks you something.",
};

/**
 * The person went on without answering: whether the turn had waited for them.
 * @param {Turn} turn
 */
function passOver(turn) {
  if (turn.status !== "awaiting") return false;
  turn.status = "passed";
  return true;
}

/**
 * Whether these messages of the history are the turn's end: its answer, or a cut that nothing can mend any more.
 * @param {Turn} turn
 * @param {Frames.ChatMessage[]} messages
 * @param {boolean} newest
 */
function isEnd(turn, messages, newest) {
  if (isCutOff(messages)) return !newest || turn.status === "stopping";
  return messages.some((message) => message.role === "assistant" && message.channel === "final");
}

/** crypto.randomUUID() exists on https and this machine only; the page may also be served on a plain local network. */
function newExchangeId() {
  if (crypto.randomUUID !== undefined) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

new App().start();
