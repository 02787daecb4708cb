/** What the person prefers in a conversation: its model, and where it searches. The service keeps it with the session. */

/**
 * @import { App } from "./app.js"
 * @import { Preferences as Kept } from "./api.js"
 */
import { ApiError } from "./api.js";
import { errorText } from "./texts.js";

/** Reads and keeps preferences; those of a conversation that does not exist yet are kept once it does. */
export class Preferences {
  #app;
  /** @type {Kept} */
  #fresh = {};

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /**
   * Those of a session, or of the next one.
   * @param {string|null} sessionId
   * @returns {Record<string, unknown>}
   */
  of(sessionId) {
    return (sessionId === null ? this.#fresh : this.#app.state.sessions.get(sessionId)?.preferences) ?? {};
  }

  /**
   * Changes those of the conversation on the screen.
   * @param {Kept} change
   */
  async prefer(change) {
    const session = this.#app.state.currentSession;
    if (session === undefined) {
      this.#fresh = { ...this.#fresh, ...change };
      return;
    }
    const preferences = { ...session.preferences, ...change };
    this.#app.state.sessions.set(session.id, { ...session, preferences });
    try {
      await this.#app.api.setPreferences(session.id, preferences);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // They still hold for this visit: each question names what it needs of them.
      this.#app.view.notify(errorText(error.failure));
    }
  }

  /** The conversation that they were waiting for is there. */
  takeFresh() {
    const fresh = this.#fresh;
    this.#fresh = {};
    if (Object.keys(fresh).length > 0) this.prefer(fresh);
  }
}
