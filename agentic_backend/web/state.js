/** What the page knows of sessions: their turns in order, those that are followed, and which one is on the screen. */

/**
 * @import { Session } from "./api.js"
 * @import { Upload } from "./attachments.js"
 * @import { Turn } from "./protocol.js"
 */
import { Branches } from "./branches.js";
import { isCutOff } from "./protocol.js";

/** How many messages the page asks for at once. */
export const HISTORY_WINDOW = 100;

/** What the page knows of one session: its turns, and the messages that were read from its history. */
export class Conversation {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    /** @type {string|null} */
    this.agentId = null;
    /** @type {Turn[]} all of them, in the order in which they began */
    this.known = [];
    /** @type {string|null} the exchange at the end of the line that is on the screen; null for the newest */
    this.tip = null;
    /** @type {Map<number, Frames.ChatMessage>} by rank */
    this.messages = new Map();
    /** @type {Map<string, {turn: Turn, size: number}>} by exchange, with the number of its messages */
    this.storedTurns = new Map();
    this.loaded = false;
    this.draft = "";
    /** @type {Upload[]} files on their way, and those that could not be attached */
    this.uploads = [];
  }

  get firstRank() {
    return Math.min(...this.messages.keys(), Number.POSITIVE_INFINITY);
  }

  get hasEarlier() {
    return this.messages.size > 0 && this.firstRank > 0;
  }

  /** The turns of the line that is on the screen, each with its place among its versions. */
  get turns() {
    const branches = new Branches(this.known);
    const line = branches.line(this.tip);
    for (const turn of line) {
      const versions = branches.versionsOf(turn);
      turn.version = { at: versions.indexOf(turn) + 1, of: versions.length };
    }
    return line;
  }

  /** Whether the newest turn is on the screen. */
  get showsNewest() {
    return this.tip === null || this.tip === this.known.at(-1)?.exchangeId;
  }

  /** @param {Turn} turn */
  drop(turn) {
    this.known = this.known.filter((other) => other !== turn);
  }

  get running() {
    return this.known.find((turn) => !turn.ended);
  }
}

/** What the parts of the page share of sessions and turns. */
export class PageState {
  /** @type {Map<string, Session>} */
  sessions = new Map();

  /** @type {Map<string, Conversation>} */
  conversations = new Map();

  /** @type {Map<string, Turn>} the turns that are followed, by exchange */
  turns = new Map();

  /** @type {string|null} */
  currentId = null;

  /** The conversation on the screen; undefined where it does not exist yet, or was not opened. */
  get current() {
    return this.currentId === null ? undefined : this.conversations.get(this.currentId);
  }

  get currentSession() {
    return this.currentId === null ? undefined : this.sessions.get(this.currentId);
  }

  /** @param {string} id @returns {Conversation} */
  conversationOf(id) {
    const known = this.conversations.get(id) ?? new Conversation(id);
    this.conversations.set(id, known);
    return known;
  }
}

/**
 * The person went on without answering: whether the turn had waited for them.
 * @param {Turn} turn
 */
export function passOver(turn) {
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
export function isEnd(turn, messages, newest) {
  if (isCutOff(messages)) return !newest || turn.status === "stopping";
  return messages.some((message) => message.role === "assistant" && message.channel === "final");
}
