/** The chat page: makes its parts and wires them; each reaches the others through it. */

import { Agents } from "./agents.js";
import { Api, ApiError, Credentials } from "./api.js";
import { Asking } from "./asking.js";
import { searchesDocuments } from "./doing.js";
import { Following } from "./following.js";
import { Histories } from "./histories.js";
import { Login } from "./login.js";
import { Navigation } from "./navigation.js";
import { readPacesFrom } from "./pace.js";
import { Preferences } from "./preferences.js";
import { SocketClient } from "./protocol.js";
import { Ratings } from "./ratings.js";
import { ScopeBar } from "./scope.js";
import { SessionList } from "./session_list.js";
import { Switcher } from "./switcher.js";
import { placeOf } from "./sources.js";
import { PageState } from "./state.js";
import { errorText } from "./texts.js";
import { learn } from "./service_facts.js";
import { Uploads } from "./uploads.js";
import { View } from "./view.js";

const CLOCK_REFRESH_MS = 60_000;

export class App {
  api;
  socket;
  view;
  navigation;
  /** Whether the person may continue; false if they are being sent to sign in, or saw why they may not. */
  entered = Promise.resolve(false);
  login;
  state = new PageState();
  agents = new Agents(this);
  list = new SessionList(this);
  switcher = new Switcher(this);
  ratings = new Ratings(this);
  uploads = new Uploads(this);
  histories = new Histories(this);
  asking = new Asking(this);
  following = new Following(this);
  preferences = new Preferences(this);
  scope;

  constructor() {
    const credentials = new Credentials();
    this.api = new Api(new URL("../agentic/v1/", import.meta.url), credentials);
    this.login = new Login(credentials, () => this.#settings(), {
      renewed: (token) => this.socket.send({ type: "auth", access_token: token }),
      person: (person) => this.view.showPerson(person),
      trouble: (text, again, label) => this.view.notify(text, again, label),
    });
    this.socket = new SocketClient({
      url: this.api.socketUrl,
      token: () => credentials.token,
      onEvent: (event) => this.following.onEvent(event),
      onState: (state) => this.following.onConnection(state),
    });
    this.view = new View({
      send: (text) => this.asking.send(text),
      stop: () => this.asking.stop(),
      newChat: () => this.navigation.leaveTo("#/"),
      deleteSession: (id) => this.list.deleteSession(id),
      renameSession: (id, title) => this.list.rename(id, title),
      pinSession: (id, pinned) => this.list.pin(id, pinned),
      loadMoreSessions: () => this.list.loadMore(),
      switchTo: () => this.switcher.toggle(),
      search: (words) => this.list.search(words),
      exportSession: (format) => this.list.exportSession(format),
      share: () => this.list.share(),
      rate: (turn, rating, said) => this.ratings.rate(turn, rating, said),
      searches: (turn) => searchesDocuments(this.agents.agents.find(({ id }) => id === turn.agentId)),
      loadEarlier: () => this.histories.loadEarlier(),
      connect: () => this.socket.connect(),
      retry: (turn) => this.asking.retry(turn),
      askAgain: (turn) => this.asking.askAgain(turn),
      edit: (turn) => this.asking.edit(turn),
      askEdited: (turn, text) => this.asking.askEdited(turn, text),
      regenerate: (turn) => this.asking.regenerate(turn),
      showVersion: (turn, step) => this.asking.showVersion(turn, step),
      answerHuman: (turn, said) => this.asking.answerHuman(turn, said),
      signOut: () => this.#signOut(),
      chooseAgent: (id) => this.agents.chooseAgent(id),
      chooseModel: (id) => this.agents.chooseModel(id),
      attach: (files) => this.uploads.attach(files),
      detach: (attachment) => this.uploads.detach(attachment),
      picture: (picture) => this.uploads.picture(picture),
      retryUpload: (upload) => this.uploads.retry(upload),
      dropUpload: (upload) => this.uploads.drop(upload),
      openSource: (source, claim) => this.navigation.openDocument({ ...placeOf(source), claim }),
    });
    this.navigation = new Navigation(this);
    this.scope = new ScopeBar(this);
  }

  async start() {
    if (this.navigation.showOpenly()) return;
    this.entered = this.login.enter();
    if (!(await this.entered)) return;
    readPacesFrom(this.api);
    this.following.begin();
    addEventListener("hashchange", () => this.navigation.openFromAddress());
    addEventListener("online", () => this.wake());
    addEventListener("offline", () => this.socket.drop());
    addEventListener("pagehide", () => this.following.savePending());
    document.addEventListener("visibilitychange", () => this.#onVisible());
    setInterval(() => this.list.showSessions(), CLOCK_REFRESH_MS);
    this.socket.connect();
    this.navigation.openFirst();
    this.agents.loadAgents();
    this.list.loadSessions();
    this.navigation.loadPermissions();
    this.navigation.openAddressedDocument();
  }

  async #settings() {
    const settings = await this.api.settings();
    learn(settings);
    return settings;
  }

  /**
   * The name under which something is kept for the person that is signed in.
   * @param {string} name
   */
  own(name) {
    return this.login.personId === null ? name : `${name}.${this.login.personId}`;
  }

  #signOut() {
    this.state.turns.clear();
    this.following.savePending();
    this.login.signOut();
  }

  #onVisible() {
    if (document.visibilityState !== "visible") {
      this.following.savePending(); // a hidden page may be ended without a word
      return;
    }
    this.wake();
    this.list.loadSessions();
  }

  /** Not if the server closed on purpose: two tabs would throw each other out endlessly. */
  wake() {
    if (this.socket.state === "asleep" || this.socket.state === "waiting") this.socket.connect();
  }

  /**
   * Runs a REST call for the page; a failure becomes a notice, with `again` behind its button where that may help.
   * @param {() => Promise<void>} call
   * @param {(() => void)|null} again
   */
  async guarded(call, again = null) {
    try {
      await call();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.view.notify(errorText(error.failure), error.retryable ? again : null);
    }
  }
}

new App().start();
