/** The list of conversations: choose, delete, see which one is answering. */

/** @import { Session } from "./api.js" */
import { el, icon } from "./dom.js";
import { fullMoment, moment } from "./format.js";

/**
 * A line of the list: its nodes, and the session that it shows.
 * @typedef {object} Row
 * @property {HTMLElement} node
 * @property {HTMLAnchorElement} link
 * @property {HTMLElement} title
 * @property {HTMLTimeElement} time
 * @property {HTMLButtonElement} remove
 * @property {Session} session
 */

/**
 * The name under which a session is shown.
 * @param {{title?: string}|null|undefined} session
 */
export function titleOf(session) {
  return session?.title || "New conversation";
}

/** Fills a list element with sessions. `onDelete` is called with the session whose bin was pressed. */
export class Sidebar {
  #list;
  #onDelete;
  /** @type {Map<string, Row>} */
  #rows = new Map();

  /** @param {HTMLElement} list @param {(session: Session) => void} onDelete */
  constructor(list, onDelete) {
    this.#list = list;
    this.#onDelete = onDelete;
  }

  /**
   * Shows the sessions in the order given; rows that stay keep their nodes, so that the focus stays where it is.
   * @param {Session[]} sessions
   * @param {{currentId: string|null, busyIds: Set<string>}} state
   */
  show(sessions, { currentId, busyIds }) {
    const rows = sessions.map((session) => {
      const row = this.#rows.get(session.id) ?? this.#newRow(session);
      this.#fill(row, session, session.id === currentId, busyIds.has(session.id));
      return row;
    });
    const keep = new Set(sessions.map((session) => session.id));
    for (const [id, row] of this.#rows) {
      if (keep.has(id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
    rows.forEach((row, at) => {
      if (this.#list.children[at] !== row.node) this.#list.insertBefore(row.node, this.#list.children[at] ?? null);
    });
  }

  /** @param {Session} session @returns {Row} */
  #newRow(session) {
    const title = el("span", { class: "session-title" });
    const time = el("time", {});
    const link = el("a", { href: `#/c/${session.id}` }, title, time);
    const remove = el("button", { type: "button", class: "quiet icon-button" }, icon("trash"));
    const row = { node: el("li", { class: "session" }, link, remove), link, title, time, remove, session };
    remove.addEventListener("click", () => this.#onDelete(row.session));
    this.#rows.set(session.id, row);
    return row;
  }

  /** @param {Row} row @param {Session} session @param {boolean} current @param {boolean} busy */
  #fill(row, session, current, busy) {
    row.session = session;
    row.title.textContent = titleOf(session);
    row.time.textContent = busy ? "answering…" : moment(session.updated_at);
    row.time.dateTime = session.updated_at;
    row.link.title = `${titleOf(session)}\n${fullMoment(session.updated_at)}`;
    row.remove.setAttribute("aria-label", `Delete ${titleOf(session)}`);
    row.remove.title = "Delete";
    row.node.classList.toggle("busy", busy);
    if (current) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
  }
}
