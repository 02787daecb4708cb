/** The person's sessions: the list beside the conversation. */

/**
 * @import { App } from "./app.js"
 */

/** The list of sessions: read, searched, saved and deleted. */
export class SessionList {
  #app;
  /** Words that the list is searched for, and the ids of the sessions that hold them. */
  #words = "";
  /** @type {Set<string>} */
  #found = new Set();

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  async loadSessions() {
    await this.#app.guarded(async () => {
      const sessions = await this.#app.api.sessions();
      this.#app.state.sessions = new Map(sessions.map((session) => [session.id, session]));
      this.showSessions();
      this.#app.agents.showAgents();
      if (this.#app.state.currentId !== null) this.#app.view.showTitle(this.#app.state.sessions.get(this.#app.state.currentId) ?? {});
    }, () => this.loadSessions());
  }

  showSessions() {
    const known = [...this.#app.state.sessions.values()];
    const sessions = this.#words === "" ? known : known.filter(({ id }) => this.#found.has(id));
    sessions.sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    const busy = [...this.#app.state.conversations.values()].filter((conversation) => conversation.running !== undefined);
    const busyIds = new Set(busy.map((conversation) => conversation.id));
    this.#app.view.showSessions(sessions, { currentId: this.#app.state.currentId, busyIds });
  }

  /**
   * Lists the sessions that hold the words; of two searches the later one counts.
   * @param {string} words
   */
  async search(words) {
    this.#words = words;
    if (words === "") {
      this.showSessions();
      return;
    }
    await this.#app.guarded(async () => {
      const sessions = await this.#app.api.sessions(words);
      if (this.#words !== words) return;
      for (const session of sessions) this.#app.state.sessions.set(session.id, session);
      this.#found = new Set(sessions.map(({ id }) => id));
      this.showSessions();
    }, () => this.search(words));
  }

  /** @param {"md"|"json"} format */
  async exportSession(format) {
    const id = this.#app.state.currentId;
    if (id !== null) await this.#app.guarded(async () => this.#app.view.save(await this.#app.api.exported(id, format)));
  }

  async share() {
    const id = this.#app.state.currentId;
    if (id !== null) await this.#app.guarded(async () => (await import("./share/dialog.js")).share(this.#app.api, id));
  }

  /** @param {Frames.Session} session */
  noteSession(session) {
    const known = this.#app.state.sessions.get(session.id);
    // A turn may tell of the preferences as they were when it began: what was chosen since stands.
    const noted = { ...known, ...session, preferences: known?.preferences ?? session.preferences };
    this.#app.state.sessions.set(session.id, noted);
    if (session.id === this.#app.state.currentId) this.#app.view.showTitle(noted);
    this.showSessions();
  }

  /** @param {string} id */
  async deleteSession(id) {
    const running = this.#app.state.conversations.get(id)?.running;
    if (running?.sent) this.#app.socket.send({ type: "cancel", exchange_id: running.exchangeId });
    await this.#app.guarded(async () => {
      await this.#app.api.deleteSession(id);
      for (const turn of this.#app.state.conversations.get(id)?.known ?? []) this.#app.state.turns.delete(turn.exchangeId);
      this.#app.state.conversations.delete(id);
      this.#app.state.sessions.delete(id);
      this.#app.following.savePending();
      this.showSessions();
      if (id === this.#app.state.currentId) this.#app.navigation.leaveTo("#/");
    });
  }
}
