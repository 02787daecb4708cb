/** The person's sessions: the list beside the conversation. */

/**
 * @import { ListPlace, Session } from "./api.js"
 * @import { App } from "./app.js"
 */
import { ApiError } from "./api.js";
import { catalogue } from "./i18n.js";
import { saveFile } from "./saving.js";
import { titleOf } from "./sidebar.js";
import { titleFrom } from "./titles.js";

const t = catalogue({
  en: { deleted: "Deleted “{title}”.", back: "“{title}” is back.", renamed: "Renamed.", pinned: "Pinned.", unpinned: "No longer pinned." },
  fr: {
    deleted: "« {title} » supprimée.",
    back: "« {title} » est rétablie.",
    renamed: "Renommée.",
    pinned: "Épinglée.",
    unpinned: "N'est plus épinglée.",
  },
});

/** The session that was deleted as the page was left: the next load may still list it before that is done. */
const LEFT_KEY = "turnwise.deleted.left";
/** How many sessions the page asks for at once. */
const PAGE = 50;

/**
 * A list that is read page by page: where it goes on, null at its end.
 * @typedef {{behind: ListPlace|null, loading: boolean}} Pages
 */

/** The list of sessions: read, searched, renamed, pinned, saved and deleted. */
export class SessionList {
  #app;
  /** Words that the list is searched for, and the ids of the sessions that hold them. */
  #words = "";
  /** @type {Map<string, Session>} in the order of the service */
  #found = new Map();
  /** @type {Pages} */
  #pages = { behind: null, loading: false };
  /** @type {Pages} of the search */
  #hits = { behind: null, loading: false };
  /** Those that are deleted, or will be unless it is undone. */
  #gone = new Set(leftBehind());
  #loaded = false;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /** Reads the first page; what is known of later ones stays. */
  async loadSessions() {
    await this.#app.guarded(async () => {
      const page = await this.#app.api.sessions({ limit: PAGE });
      const { sessions, conversations } = this.#app.state;
      const last = page.length === PAGE ? page[PAGE - 1] : null;
      const read = new Set(page.map(({ id }) => id));
      for (const [id, session] of sessions) {
        // One in which nothing was begun yet is not listed, but it is here.
        const own = conversations.has(id) && session.next_rank === 0;
        if (!own && !read.has(id) && (last === null || order(session, last) < 0)) sessions.delete(id);
      }
      for (const session of page) sessions.set(session.id, session);
      if (!this.#loaded || last === null) this.#pages.behind = last;
      this.#loaded = true;
      await this.#readOpened();
      this.showSessions();
      this.#app.agents.showAgents();
      this.#showTitle();
    }, () => this.loadSessions());
  }

  /** Reads on, in the list or in what a search found, where there is more. */
  async loadMore() {
    const words = this.#words;
    const pages = words === "" ? this.#pages : this.#hits;
    const { behind } = pages;
    if (behind === null || pages.loading) return;
    pages.loading = true;
    try {
      await this.#app.guarded(async () => {
        const page = await this.#app.api.sessions({ words, limit: PAGE, behind });
        if (words !== this.#words || pages.behind !== behind) return;
        this.#take(page, words);
        pages.behind = page.at(PAGE - 1) ?? null;
      }, () => this.loadMore());
    } finally {
      pages.loading = false;
    }
    this.showSessions();
  }

  /** @param {Session[]} page @param {string} words */
  #take(page, words) {
    for (const session of page) {
      this.#app.state.sessions.set(session.id, session);
      if (words !== "") this.#found.set(session.id, session);
    }
  }

  /** The session on the screen, and those that answer, may be on no page that was read. */
  async #readOpened() {
    const { sessions, conversations, currentId } = this.#app.state;
    const answering = [...conversations.values()].filter(({ running }) => running !== undefined).map(({ id }) => id);
    const unknown = [...new Set([...answering, ...(currentId === null ? [] : [currentId])])].filter((id) => !sessions.has(id));
    await Promise.all(unknown.map((id) => this.#readOne(id)));
  }

  /**
   * Reads one that no page had; of one that is not there, its history says so.
   * @param {string} id
   */
  async #readOne(id) {
    try {
      this.#app.state.sessions.set(id, await this.#app.api.session(id));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  /** What was opened by its address may be on no page that was read. @param {string} id */
  async opened(id) {
    if (!this.#loaded || this.#app.state.sessions.has(id)) return;
    await this.#readOne(id);
    this.showSessions();
    this.#app.agents.showAgents();
    this.#showTitle();
  }

  #showTitle() {
    const { currentId, currentSession } = this.#app.state;
    if (currentId !== null) this.#app.view.showTitle(currentSession === undefined ? {} : this.#named(currentSession));
  }

  /** A session that has no title yet, under its first question. @param {Session} session */
  #named(session) {
    const asked = session.title === "" ? this.#app.state.conversations.get(session.id)?.known[0]?.question : null;
    return asked ? { ...session, title: titleFrom(asked) } : session;
  }

  /** What the list shows without a search. */
  get listed() {
    return this.#pagesShown(new Set());
  }

  showSessions() {
    const { sessions, conversations, currentId } = this.#app.state;
    const busy = [...conversations.values()].filter((conversation) => conversation.running !== undefined);
    const busyIds = new Set(busy.map((conversation) => conversation.id));
    const searching = this.#words !== "";
    const { behind } = searching ? this.#hits : this.#pages;
    const shown = searching ? this.#hitsShown() : this.#pagesShown(busyIds);
    this.#app.view.showSessions(shown, { currentId, busyIds, words: this.#words, more: behind !== null });
    const current = currentId === null ? undefined : sessions.get(currentId);
    if (current?.title === "") this.#app.view.showTitle(this.#named(current));
  }

  /** Those of the pages that were read, and what is open or answers. @param {Set<string>} busyIds */
  #pagesShown(busyIds) {
    const { behind } = this.#pages;
    const { sessions, currentId } = this.#app.state;
    const read = [...sessions.values()].filter(
      (session) =>
        !this.#gone.has(session.id) &&
        (behind === null || order(session, behind) <= 0 || session.id === currentId || busyIds.has(session.id)),
    );
    return read.map((session) => this.#named(session)).sort(order);
  }

  #hitsShown() {
    const hits = [...this.#found.values()].filter(({ id }) => !this.#gone.has(id));
    return hits.map((hit) => ({ ...hit, ...this.#app.state.sessions.get(hit.id), found: hit.found }));
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
      const page = await this.#app.api.sessions({ words, limit: PAGE });
      if (this.#words !== words) return;
      this.#found = new Map();
      this.#take(page, words);
      this.#hits = { behind: page.at(PAGE - 1) ?? null, loading: false };
      this.showSessions();
    }, () => this.search(words));
  }

  /** @param {"md"|"json"} format */
  async exportSession(format) {
    const id = this.#app.state.currentId;
    if (id === null) return;
    await this.#app.guarded(async () => {
      const { name, blob } = await this.#app.api.exported(id, format);
      saveFile(name, blob);
    });
  }

  async share() {
    const id = this.#app.state.currentId;
    if (id !== null) await this.#app.guarded(async () => (await import("./share/dialog.js")).share(this.#app.api, id));
  }

  /** @param {Frames.Session} session */
  noteSession(session) {
    if (this.#gone.has(session.id)) return;
    const known = this.#app.state.sessions.get(session.id);
    // A turn may tell of the preferences as they were when it began: what was chosen since stands.
    const noted = { ...known, ...session, preferences: known?.preferences ?? session.preferences };
    this.#app.state.sessions.set(session.id, noted);
    if (session.id === this.#app.state.currentId) this.#app.view.showTitle(this.#named(noted));
    this.showSessions();
  }

  /** @param {string} id @param {string} title */
  async rename(id, title) {
    await this.#change(id, { title }, t("renamed"));
  }

  /** @param {string} id @param {boolean} pinned */
  async pin(id, pinned) {
    await this.#change(id, { pinned }, t(pinned ? "pinned" : "unpinned"));
  }

  /**
   * Shows the change at once, and as it was where the service refuses it.
   * @param {string} id @param {{title?: string, pinned?: boolean}} change @param {string} said
   */
  async #change(id, change, said) {
    const { sessions } = this.#app.state;
    const before = sessions.get(id);
    if (before === undefined) return;
    this.noteSession({ ...before, ...change });
    let done = false;
    await this.#app.guarded(async () => {
      this.noteSession(await this.#app.api.changeSession(id, change));
      done = true;
    }, () => this.#change(id, change, said));
    if (done) this.#app.view.announce(said);
    else this.noteSession({ ...(sessions.get(id) ?? before), title: before.title, pinned: before.pinned });
  }

  /**
   * Takes a session out of the list; it is deleted once nothing undoes that any more.
   * @param {string} id
   */
  deleteSession(id) {
    const session = this.#app.state.sessions.get(id);
    if (session === undefined) return;
    const title = titleOf(this.#named(session));
    const text = t("deleted", { title });
    // What was deleted before it takes effect first.
    this.#app.view.undo.settle();
    this.#gone.add(id);
    this.showSessions();
    const { undo } = this.#app.view;
    if (id === this.#app.state.currentId) {
      this.#app.navigation.leaveTo("#/");
      // What is opened then takes the keyboard to its composer.
      addEventListener("hashchange", () => undo.focus(), { once: true });
    }
    undo.offer({
      text,
      undo: () => this.#restore(id, t("back", { title })),
      done: () => this.#deleteNow(id),
      leave: () => {
        this.#app.api.deleteSessionAtLeave(id);
        sessionStorage.setItem(LEFT_KEY, id);
      },
    });
    this.#app.view.announce(text);
  }

  /** @param {string} id @param {string|null} said */
  #restore(id, said = null) {
    this.#gone.delete(id);
    this.showSessions();
    if (said === null) return;
    this.#app.view.focusRow(id);
    this.#app.view.announce(said);
  }

  /** The service stops what still runs there. @param {string} id */
  async #deleteNow(id) {
    const { conversations, sessions, turns } = this.#app.state;
    let deleted = false;
    await this.#app.guarded(async () => {
      await this.#app.api.deleteSession(id);
      deleted = true;
      for (const turn of conversations.get(id)?.known ?? []) turns.delete(turn.exchangeId);
      conversations.delete(id);
      sessions.delete(id);
      this.#found.delete(id);
      this.#app.following.savePending();
    }, () => {
      this.#gone.add(id);
      this.showSessions();
      this.#deleteNow(id);
    });
    if (!deleted) this.#restore(id);
  }
}

function leftBehind() {
  const id = sessionStorage.getItem(LEFT_KEY);
  sessionStorage.removeItem(LEFT_KEY);
  return id === null ? [] : [id];
}

/**
 * The order of the list: pinned first, then latest change first.
 * @param {ListPlace} a @param {ListPlace} b
 */
function order(a, b) {
  if (Boolean(a.pinned) !== Boolean(b.pinned)) return a.pinned ? -1 : 1;
  if (a.updated_at !== b.updated_at) return a.updated_at < b.updated_at ? 1 : -1;
  return a.id < b.id ? -1 : Number(a.id > b.id);
}
