/** The list of conversations by days: choose, rename, pin, delete, see which one is answering. */

/** @import { Session } from "./api.js" */
/** @import { Group } from "./day_groups.js" */
import { foundGroup, grouping } from "./day_groups.js";
import { el, icon, markAgent } from "./dom.js";
import { fullMoment, moment } from "./format.js";
import { catalogue } from "./i18n.js";
import { RowMenu } from "./row_menu.js";
import { marked } from "./snippets.js";

const t = catalogue({
  en: {
    untitled: "New conversation",
    answering: "answering…",
    options: "Options of {title}",
    rename: "Rename",
    pin: "Pin",
    unpin: "Unpin",
    delete: "Delete",
    newTitle: "Title of the conversation",
  },
  fr: {
    untitled: "Nouvelle conversation",
    answering: "répond…",
    options: "Options de {title}",
    rename: "Renommer",
    pin: "Épingler",
    unpin: "Détacher",
    delete: "Supprimer",
    newTitle: "Titre de la conversation",
  },
});

const MAX_TITLE_CHARS = 200;
/** How many rows there are at most, and how many come and go at once: the rest of a long list is not drawn. */
const MOST_ROWS = 200;
const STEP_ROWS = 50;
/** How near either end of what is drawn comes before more is. */
const NEAR_PX = 400;

/**
 * A line of the list: its nodes, and what it shows.
 * @typedef {object} Row
 * @property {HTMLElement} node
 * @property {HTMLAnchorElement} link
 * @property {HTMLElement} mark
 * @property {HTMLElement} title
 * @property {HTMLElement} snippet
 * @property {HTMLTimeElement} time
 * @property {HTMLButtonElement} options
 * @property {Session} session
 * @property {string} shown what its nodes say, so that nothing is written twice
 * @typedef {{node: HTMLElement, name: HTMLElement, list: HTMLUListElement}} GroupNodes
 */

/**
 * What the list's controls do.
 * @typedef {object} ListActions
 * @property {(session: Session, title: string) => void} rename
 * @property {(session: Session, pinned: boolean) => void} pin
 * @property {(session: Session) => void} remove
 * @property {() => void} more is called when the end of the list comes near
 */

/**
 * What is shown of the list beside its sessions: `words` of a search ("" without one), and whether there is `more`.
 * @typedef {{currentId: string|null, busyIds: Set<string>, words?: string, more?: boolean}} ListState
 */

/**
 * The name under which a session is shown: its title, that of what was attached first, or that it is new.
 * @param {{title?: string, attachments?: {name: string}[]}|null|undefined} session
 */
export function titleOf(session) {
  return session?.title || session?.attachments?.[0]?.name || t("untitled");
}

/**
 * Makes an element the icon of a session's agent.
 * @param {HTMLElement} node @param {Session} session
 */
export function markAgentOf(node, session) {
  node.title = session.agents?.[0]?.name || session.agent_id || "";
  markAgent(node, session.agent_id, node.title);
}

/** Fills an element with sessions in groups of days. */
export class Sidebar {
  #host;
  #actions;
  #menu;
  /** @type {Map<string, Row>} */
  #rows = new Map();
  /** @type {Map<string, GroupNodes>} */
  #groups = new Map();
  /** Stands for the rows above those that are drawn. */
  #above = el("div", { "aria-hidden": "true" });
  /** @type {number[]} the height of each step of rows above, in pixels */
  #heights = [];
  #end = el("div", { class: "list-end", "aria-hidden": "true" });
  #seen;
  /** @type {Session[]} */
  #sessions = [];
  /** @type {ListState} */
  #state = { currentId: null, busyIds: new Set() };
  #from = 0;
  #to = MOST_ROWS;

  /** @param {HTMLElement} host @param {ListActions} actions */
  constructor(host, actions) {
    this.#host = host;
    this.#actions = actions;
    this.#menu = new RowMenu(/** @type {HTMLElement} */ (host.closest("aside")));
    host.before(this.#above);
    host.append(this.#end);
    const options = { root: host.parentElement, rootMargin: `${NEAR_PX}px` };
    this.#seen = new IntersectionObserver((entries) => {
      const near = entries.filter((entry) => entry.isIntersecting).map(({ target }) => target);
      if (near.includes(this.#above)) this.#back();
      else if (near.includes(this.#end)) this.#on();
    }, options);
  }

  /**
   * Shows the sessions in the order given; rows that stay keep their nodes, so that the focus stays where it is.
   * @param {Session[]} sessions
   * @param {ListState} state
   */
  show(sessions, state) {
    const other = (state.words ?? "") !== (this.#state.words ?? "");
    this.#sessions = sessions;
    this.#state = state;
    if (other || this.#from >= sessions.length) {
      this.#heights = [];
      this.#from = 0;
      this.#to = MOST_ROWS;
      this.#setSpace();
    }
    this.#draw();
  }

  /** The end of what is drawn is near: on it goes, and what is furthest above is not drawn any more. */
  #on() {
    if (this.#to >= this.#sessions.length) {
      if (this.#state.more) this.#actions.more();
      return;
    }
    this.#to += STEP_ROWS;
    this.#draw();
    if (this.#to - this.#from <= MOST_ROWS) return;
    // What is on the screen stays where it is: the space above is as high as what it stands for.
    const stays = this.#rows.get(this.#sessions[this.#from + STEP_ROWS].id)?.node;
    const before = stays?.getBoundingClientRect().top ?? 0;
    this.#from += STEP_ROWS;
    this.#draw();
    this.#heights.push(before - (stays?.getBoundingClientRect().top ?? 0));
    this.#setSpace();
  }

  /** What stands for rows above is near: as many are drawn as are there. */
  #back() {
    const nearest = (this.#host.parentElement?.getBoundingClientRect().top ?? 0) - NEAR_PX;
    let { bottom } = this.#above.getBoundingClientRect();
    while (this.#heights.length > 0 && bottom > nearest) {
      bottom -= this.#heights.pop() ?? 0;
      this.#from -= STEP_ROWS;
    }
    this.#to = Math.min(this.#to, this.#from + MOST_ROWS);
    this.#setSpace();
    this.#draw();
  }

  #setSpace() {
    this.#above.style.height = `${this.#heights.reduce((sum, height) => sum + height, 0)}px`;
  }

  #draw() {
    const { currentId, busyIds, words = "", more = false } = this.#state;
    const sessions = this.#sessions.slice(this.#from, this.#to);
    const groupOf = words === "" ? grouping() : foundGroup;
    /** @type {Map<string, {group: Group, rows: Row[]}>} */
    const wanted = new Map();
    for (const session of sessions) {
      const row = this.#rows.get(session.id) ?? this.#newRow(session);
      this.#fill(row, session, { current: session.id === currentId, busy: busyIds.has(session.id), words });
      const group = groupOf(session);
      const of = wanted.get(group.key) ?? { group, rows: [] };
      of.rows.push(row);
      wanted.set(group.key, of);
    }
    this.#drop(new Set(sessions.map(({ id }) => id)));
    this.#arrange(wanted);
    // Where an end is still in sight, nothing would say so again.
    this.#seen.disconnect();
    if (more || this.#to < this.#sessions.length) this.#seen.observe(this.#end);
    if (this.#from > 0) this.#seen.observe(this.#above);
  }

  /** The session's button, so that the focus comes back to it. @param {string} id */
  focusRow(id) {
    const row = this.#rows.get(id) ?? this.#rows.values().next().value;
    row?.options.focus();
  }

  /** @param {Set<string>} keep */
  #drop(keep) {
    for (const [id, row] of this.#rows) {
      if (keep.has(id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
  }

  /** @param {Map<string, {group: Group, rows: Row[]}>} wanted */
  #arrange(wanted) {
    // A row that goes to another place loses the focus that it had.
    const focused = document.activeElement;
    let before = this.#host.firstElementChild;
    for (const [key, { group, rows }] of wanted) {
      const nodes = this.#groups.get(key) ?? this.#newGroup(key);
      if (nodes.name.textContent !== group.name) nodes.name.textContent = group.name;
      if (before === nodes.node) before = nodes.node.nextElementSibling;
      else this.#host.insertBefore(nodes.node, before);
      let next = nodes.list.firstElementChild;
      for (const { node } of rows) {
        if (node === next) next = node.nextElementSibling;
        else nodes.list.insertBefore(node, next);
      }
    }
    for (const [key, { node }] of this.#groups) {
      if (wanted.has(key)) continue;
      node.remove();
      this.#groups.delete(key);
    }
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.#host.contains(focused)) focused.focus();
  }

  /** @param {string} key @returns {GroupNodes} */
  #newGroup(key) {
    const name = el("p", { class: "group-name", id: `group-${key}` });
    const list = el("ul", { "aria-labelledby": name.id });
    const nodes = { node: el("div", { class: "group" }, name, list), name, list };
    this.#groups.set(key, nodes);
    return nodes;
  }

  /** @param {Session} session @returns {Row} */
  #newRow(session) {
    const mark = el("span", { class: "agent-mark", "aria-hidden": "true" });
    const title = el("span", { class: "session-title", dir: "auto" });
    const snippet = el("span", { class: "snippet", dir: "auto", hidden: true });
    const time = el("time", {});
    const link = el("a", {}, mark, title, snippet, time);
    const options = el("button", { type: "button", class: "quiet icon-button", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("more"));
    const row = { node: el("li", { class: "session" }, link, options), link, mark, title, snippet, time, options, session, shown: "" };
    options.addEventListener("click", () => this.#openMenu(row));
    this.#rows.set(session.id, row);
    return row;
  }

  /** @param {Row} row */
  #openMenu(row) {
    const { session } = row;
    const pinned = session.pinned === true;
    this.#menu.open(row.options, t("options", { title: titleOf(session) }), [
      { icon: "pencil", label: t("rename"), act: () => this.#rename(row) },
      { icon: "pin", label: t(pinned ? "unpin" : "pin"), act: () => this.#actions.pin(session, !pinned) },
      { icon: "trash", label: t("delete"), act: () => this.#actions.remove(session) },
    ]);
  }

  /** The row's title in a field: Enter keeps what is typed, Escape what was there. @param {Row} row */
  #rename(row) {
    const before = titleOf(row.session);
    const field = el("input", { class: "rename", maxlength: MAX_TITLE_CHARS, "aria-label": t("newTitle"), dir: "auto", autocomplete: "off" });
    field.value = before;
    /** @param {boolean} keep @param {boolean} focus */
    const end = (keep, focus) => {
      if (!row.node.classList.contains("renaming")) return;
      row.node.classList.remove("renaming");
      const title = field.value.trim();
      field.remove();
      if (focus) row.options.focus();
      if (keep && title !== "" && title !== before) this.#actions.rename(row.session, title);
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter", true);
    });
    field.addEventListener("blur", () => end(true, false));
    row.node.classList.add("renaming");
    row.node.append(field);
    field.focus();
    field.select();
  }

  /** @param {Row} row @param {Session} session @param {{current: boolean, busy: boolean, words: string}} state */
  #fill(row, session, { current, busy, words }) {
    row.session = session;
    const title = titleOf(session);
    const when = busy ? t("answering") : moment(session.updated_at);
    const found = words === "" ? undefined : session.found;
    const shown = JSON.stringify([title, when, session.updated_at, current, busy, session.agents, session.agent_id, found, found && words]);
    if (shown === row.shown) return;
    row.shown = shown;
    row.title.textContent = title;
    row.time.textContent = when;
    row.time.dateTime = session.updated_at;
    row.link.href = `#/c/${session.id}${found === undefined ? "" : `/${found.rank}`}`;
    row.link.title = `${title}\n${fullMoment(session.updated_at)}`;
    markAgentOf(row.mark, session);
    row.snippet.hidden = found === undefined;
    row.snippet.replaceChildren(...(found === undefined ? [] : marked(found.text, words)));
    row.options.setAttribute("aria-label", t("options", { title }));
    row.options.title = t("options", { title });
    row.node.classList.toggle("busy", busy);
    if (current) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
  }
}
