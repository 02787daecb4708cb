/**
 * The native protocol (turnwise.v1): what a turn is to the page, and the socket that carries turns.
 *
 * `Turn`, `backoffMs` and `afterClose` are pure: they take events and codes and give states, and know neither socket
 * nor DOM. `SocketClient` is the I/O around them: one socket for the whole page, kept alive, reconnected with back-off.
 */

/**
 * @import { Feedback } from "./api.js"
 * @import { Version } from "./branches.js"
 * @import { Said } from "./hitl.js"
 * @import { Ledger } from "./ledger.js"
 * @import { Picture } from "./pictures.js"
 */

/**
 * @typedef {object} Named what a turn is made with
 * @property {string} exchangeId
 * @property {string} sessionId
 * @property {string|null} agentId
 * @property {string|null} [model]
 * @property {Partial<Frames.RuntimeContext>} [context] what its question says of where to search
 * @property {string|null} question null where history does not have it
 * @property {Picture[]} [images] what the question shows
 * @property {number|null} [askedAt]
 * @property {string|null} [timestamp]
 * @property {number|null} [rank] of its question, once that is known
 * @property {Fork|null} [fork] null where it follows on the newest message
 * @property {string|null} [behind] the exchange that it was asked behind on this page
 *
 * @typedef {object} Fork where a turn begins, if not behind the newest message
 * @property {number} afterRank of the message on which it follows, -1 for none
 * @property {string|null} regenerates the exchange whose question it asks again
 * @property {boolean} anyBranch whether that may be on a line that is not live
 *
 * @typedef {"sending"|"running"|"stopping"|"done"|"cancelled"|"interrupted"|"failed"|"refused"|"unanswered"|"awaiting"
 *   |"passed"} Status
 * @typedef {object} Item one message after the question; `message` is null until all of it is known
 * @property {number} rank
 * @property {Frames.Role} role
 * @property {Frames.Channel} channel
 * @property {string} text
 * @property {Frames.ChatMessage|null} message
 * @property {Thinking} [thinking] where it is what a model said while it reasoned
 * @typedef {object} Thinking how long the model reasoned
 * @property {number|null} ms up to `since`; null where nobody knows
 * @property {boolean} [inAll] whether that is the time of all the turn's reasoning, not of this part of it
 * @property {number|null} since when it went on reasoning, of the caller's clock; null where it does not
 * @typedef {{status: Status, lastSeq: number, items: Item[], sources: Frames.SearchHit[]}} Heard
 * @typedef {Omit<Named, "askedAt"> & Heard} Snapshot
 *
 * @typedef {Extract<Frames.FromServer, {seq: number}>} Event a numbered event of an exchange
 * @typedef {object} Failure an error frame, or as much of one as the page says itself
 * @property {string} code
 * @property {string|null} [message]
 * @property {boolean} [retryable]
 * @property {number} [retry_after_ms]
 * @property {boolean} [partial]
 * @property {string} [field] what of an answer to the agent it cannot take
 * @property {never} [retryAfterMs] so that nothing which names it otherwise (ApiError, TurnError) is taken for one
 * @typedef {{code: string, message: string|null, retryable: boolean, retryAfterMs: number, partial: boolean}} TurnError
 *
 * @typedef {{name: "connecting"|"open"|"waiting"|"asleep"|"replaced"|"refused", retryInMs?: number, code?: number}}
 *   ConnectionState
 */

const SUBPROTOCOL = "turnwise.v1";

const FIRST_RETRY_MS = 200;
const FIRST_CEILING_MS = 2_000;
const LAST_CEILING_MS = 30_000;
const STABLE_AFTER_MS = 10_000;
const CONNECT_DEADLINE_MS = 10_000;
const WATCH_EVERY_MS = 1_000;
/** The server breaks its silence every 15 s while a turn runs; past this the page asks whether it is still there. */
const PING_AFTER_SILENCE_MS = 20_000;
const PONG_DEADLINE_MS = 10_000;
const CLOSE_STALE = 4001;
/** What an agent tells of its progress is a line, however much it sends. */
const MAX_NOTE_CHARS = 300;
/** Where what the model reasoned stands before there is anything else. */
const FIRST_THINKING_RANK = -0.5;

/**
 * What the page does after a close, by its code (docs/protocol.md#close-codes); any code that is not listed is a reason
 * to reconnect.
 * @type {Map<number, "asleep"|"replaced"|"refused">}
 */
const AFTER_CLOSE = new Map([
  [1000, "asleep"],
  [4401, "refused"],
  [4403, "refused"],
  [4408, "asleep"],
  [4409, "replaced"],
]);

/** Events that end a turn: exactly one follows each accepted ask (`awaiting_human` only where an agent asks back). */
const TERMINAL = new Set(["final", "error", "cancelled", "awaiting_human"]);

/**
 * How long to wait before the next attempt, in ms: at random between 0.2 s and a ceiling of 2 s that doubles with each
 * failed attempt up to 30 s. A whole service full of pages must not come back in the same instant.
 * @param {number} attempt failed attempts so far
 * @param {() => number} random uniform in [0, 1)
 */
export function backoffMs(attempt, random = Math.random) {
  const ceiling = Math.min(LAST_CEILING_MS, FIRST_CEILING_MS * 2 ** Math.min(attempt, 10));
  return FIRST_RETRY_MS + random() * (ceiling - FIRST_RETRY_MS);
}

/**
 * "retry", "asleep" (reconnects when needed), "replaced" or "refused" (both wait for the person).
 * @param {number} code
 * @returns {"retry"|"asleep"|"replaced"|"refused"}
 */
function afterClose(code) {
  return AFTER_CLOSE.get(code) ?? "retry";
}

/**
 * One exchange as the page sees it: the question, what the agent has said and done so far, and how it ended.
 *
 * `status`: "sending" (not accepted yet), "running", "stopping" (cancel asked for), and the ends: "done", "cancelled",
 * "interrupted" (the service ended before its answer), "failed" (see `error`), "refused" (the same, and the server keeps
 * nothing of it), "unanswered" (history holds a question without an answer), "awaiting" (the agent asks the person what
 * `awaiting` says, and goes on once they answer), "passed" (the person asked something else instead). `items` holds what came after the question: {rank, role, channel, text, message} in
 * ascending rank, `message` being the whole ChatMessage once it is known. What a model says while it reasons has no rank
 * of its own, and in most services no message: as it is heard it gets a place between those that have. Times are ms of
 * the caller's clock.
 */
export class Turn {
  /** @param {Named} named */
  constructor({ exchangeId, sessionId, agentId, model = null, question, ...more }) {
    this.exchangeId = exchangeId;
    this.sessionId = sessionId;
    this.agentId = agentId;
    this.model = model;
    this.context = more.context ?? {};
    this.question = question;
    this.timestamp = more.timestamp ?? null;
    this.askedAt = more.askedAt ?? null;
    this.rank = more.rank ?? null;
    /** @type {Fork|null} */
    this.fork = more.fork ?? null;
    this.behind = more.behind ?? null;
    this.images = more.images ?? [];
    /** @type {string[]} names of the files that came before its question */
    this.files = [];
    /** @type {Version} */
    this.version = { at: 1, of: 1 };
    /** @type {number|null} */
    this.firstTokenMs = null;
    /** @type {number|null} */
    this.elapsedMs = null;
    /** @type {Status} */
    this.status = "sending";
    this.sent = false;
    this.lastSeq = 0;
    this.replayExpected = false;
    this.resuming = false;
    /** @type {number|null} */
    this.queuePosition = null;
    /** @type {Item[]} */
    this.items = [];
    /** How often the service began to answer again: what was shown of the answer before is none of it. */
    this.restarts = 0;
    /** What the agent said last of its progress: "" once something else has happened. */
    this.note = "";
    /** @type {Frames.SearchHit[]} */
    this.sources = [];
    /** @type {Ledger|null} */
    this.ledger = null;
    /** @type {string[]} */
    this.warnings = [];
    /** @type {Frames.final["durable"]|null} */
    this.durable = null;
    /** @type {TurnError|null} */
    this.error = null;
    /** @type {Frames.HitlPayload|null} */
    this.awaiting = null;
    /** @type {Said|null} */
    this.answering = null;
    // What the page keeps of it beside the protocol: see app.js.
    this.savedAt = 0;
    this.waitingForConnection = false;
    this.recoveries = 0;
    this.overtaken = false;
    this.retried = false;
    this.fromOtherTab = false;
    /** @type {Feedback|null} */
    this.feedback = null;
  }

  /**
   * A turn of the history: the ChatMessages of one exchange in ascending rank.
   * @param {Frames.ChatMessage[]} messages
   */
  static fromMessages(messages) {
    const user = messages.find(isQuestion);
    const first = user ?? messages[0];
    const turn = new Turn({
      exchangeId: first.exchange_id,
      sessionId: first.session_id,
      agentId: null,
      question: user === undefined ? null : textOf(user),
      timestamp: first.timestamp,
      rank: first.rank,
      fork: user === undefined ? null : forkOf(user),
      images: user === undefined ? [] : imagesOf(user),
    });
    turn.sent = true;
    turn.adopt(messages);
    return turn;
  }

  /**
   * What `snapshot` gave, of a turn that the server may have gone on with since.
   * @param {Snapshot} kept
   */
  static fromSnapshot({ status, lastSeq, items, sources, ...named }) {
    const turn = new Turn(named);
    Object.assign(turn, { sent: true, status, lastSeq, items, sources });
    // The clock by which they were timed ended with its page.
    for (const item of turn.items) if (item.thinking !== undefined) item.thinking.since = null;
    return turn;
  }

  /**
   * The turn as plain data: what it was named, and what is known of it up to event `lastSeq`.
   * @returns {Snapshot}
   */
  snapshot() {
    const { exchangeId, sessionId, agentId, model, context, question, images, timestamp, rank, fork, behind } = this;
    const named = { exchangeId, sessionId, agentId, model, context, question, images, timestamp, rank, fork, behind };
    const { status, lastSeq, items, sources } = this;
    return { ...named, status, lastSeq, items, sources };
  }

  /**
   * The same without anything that was received: to be read from its first event.
   * @returns {Snapshot}
   */
  outline() {
    const status = this.status === "stopping" ? "stopping" : "sending";
    return { ...this.snapshot(), status, lastSeq: 0, items: [], sources: [] };
  }

  /** The rank of the message on which it follows, -1 where it begins the conversation; null where nobody knows yet. */
  get parentRank() {
    return this.fork?.afterRank ?? (this.rank === null ? null : this.rank - 1);
  }

  /** The rank of its last message that is stored; null where it has none. */
  get lastRank() {
    const ranks = this.items.filter(({ message }) => message !== null).map(({ rank }) => rank);
    return ranks.length === 0 ? this.rank : Math.max(...ranks);
  }

  get ended() {
    return !["sending", "running", "stopping"].includes(this.status);
  }

  /** The answer's item: the last message of the assistant on the final channel, or undefined. */
  get answer() {
    return this.items.findLast((item) => item.role === "assistant" && item.channel === "final");
  }

  /**
   * The metadata of the stored answer, or {} while there is none.
   * @returns {Frames.Metadata}
   */
  get metadata() {
    return this.answer?.message?.metadata ?? {};
  }

  /**
   * The ask frame; sent again under the same id it is the same turn, not a second one.
   * @returns {Frames.ask|Frames.ask_again}
   */
  askFrame() {
    /** @type {Omit<Frames.ask, "message"|"regenerate">} */
    const frame = {
      type: "ask",
      session_id: this.sessionId,
      // Of a turn of the history this, and the question, may be unknown; the server refuses it then.
      agent_id: this.agentId ?? "",
      client_exchange_id: this.exchangeId,
      if_busy: "reject",
      ...this.#context(),
    };
    const { fork } = this;
    const message = this.question ?? "";
    const images = this.images.length === 0 ? {} : { images: this.images.map(({ id }) => id) };
    if (fork === null) return { ...frame, ...images, message };
    const { afterRank, regenerates, anyBranch } = fork;
    if (anyBranch) frame.any_branch = true;
    if (regenerates === null) return { ...frame, ...images, message, after_rank: afterRank };
    return { ...frame, after_rank: null, regenerate: regenerates };
  }

  /**
   * The person's answer to what the agent asks.
   * @returns {Frames.human_resume}
   */
  humanFrame() {
    return {
      type: "human_resume",
      session_id: this.sessionId,
      exchange_id: this.exchangeId,
      agent_id: this.agentId ?? "",
      payload: this.answering ?? "",
      ...this.#context(),
    };
  }

  /** What a run says about itself: the model that is to answer, and where to search, where there was a choice. */
  #context() {
    const context = { ...this.context, ...(this.model === null ? {} : { model: this.model }) };
    return Object.keys(context).length === 0 ? {} : { runtime_context: context };
  }

  /**
   * The person has answered. Until that is taken, the question may be heard again: the answer may have been lost.
   * @param {Said} said
   * @param {number} now
   */
  goOn(said, now) {
    this.answering = said;
    this.status = "sending";
    this.askedAt = now;
    this.firstTokenMs = null;
    this.lastSeq = Math.max(0, this.lastSeq - 1);
  }

  /** The answer was not taken, and may be given again. */
  awaitAgain() {
    this.answering = null;
    this.status = "awaiting";
  }

  /**
   * Asks to go on after the last event that is known.
   * @returns {Frames.resume}
   */
  resumeFrame() {
    return {
      type: "resume",
      session_id: this.sessionId,
      exchange_id: this.exchangeId,
      after_seq: this.lastSeq,
    };
  }

  /** The ask, or a resume, goes out: the server may tell the turn from its beginning, or go on where it is. */
  expectReplay() {
    this.replayExpected = true;
  }

  /**
   * Takes one numbered event of this exchange. An event that was seen before changes nothing.
   *
   * Except as the first one after `expectReplay`: then the turn is replayed and what was known of it is dropped. The
   * server joins fragments that have piled up, so a replayed fragment need not end where one ended the first time.
   * @param {Event} event
   * @param {number} now
   * @returns {boolean} whether anything changed
   */
  apply(event, now) {
    if (this.ended && this.status !== "awaiting") return false;
    if (this.replayExpected && event.seq <= this.lastSeq) {
      this.items = [];
      this.lastSeq = 0;
    }
    this.replayExpected = false;
    this.resuming = false;
    if (event.seq <= this.lastSeq) return false;
    this.lastSeq = event.seq;
    if (this.status === "sending" || this.status === "awaiting") this.status = "running";
    if (event.type !== "awaiting_human") this.answering = null;
    this.#take(event, now);
    if (TERMINAL.has(event.type)) this.elapsedMs = this.askedAt === null ? null : now - this.askedAt;
    return true;
  }

  /**
   * Ends the turn with an error that came before it was accepted: the server keeps nothing of it.
   * @param {Failure} event
   */
  refuse(event) {
    for (const { thinking } of this.items) if (thinking !== undefined) thinking.since = null;
    this.error = errorOf(event);
    this.status = "refused";
  }

  /**
   * Ends the turn with what storage holds of it.
   * @param {Frames.ChatMessage[]} messages
   */
  adopt(messages) {
    this.#replaceItems(messages);
    const { metadata } = this;
    this.#takeMetadata();
    const failure = metadata.extras?.error;
    const awaiting = metadata.extras?.awaiting;
    if (awaiting !== undefined && metadata.extras?.status === "awaiting_human") {
      this.#await(awaiting.payload);
      this.agentId = metadata.agent_id ?? null;
      this.lastSeq = awaiting.seq;
      // The message only holds the place of the answer.
      this.items = this.items.filter((item) => item !== this.answer);
    } else if (failure) {
      this.error = { code: failure, message: this.#takeExcuse(), retryable: false, retryAfterMs: 0, partial: false };
      this.status = "failed";
    } else if (metadata.finish_reason === "cancelled") {
      this.status = isCutOff(messages) ? "interrupted" : "cancelled";
    } else {
      this.status = this.answer === undefined ? "unanswered" : "done";
    }
  }

  /** A stored failure has its fixed text as the answer's last part: it belongs into the error, not into the answer. */
  #takeExcuse() {
    const { answer } = this;
    if (!answer?.message) return null;
    const texts = textsOf(answer.message);
    answer.text = texts.slice(0, -1).join("\n");
    return texts.at(-1) ?? null;
  }

  #takeMetadata() {
    const { metadata } = this;
    this.ledger = ledgerOf(metadata);
    if (metadata.sources?.length) this.sources = metadata.sources;
  }

  /** @param {Event} event @param {number} now */
  #take(event, now) {
    switch (event.type) {
      case "accepted":
        this.queuePosition = event.queue_position ?? null;
        break;
      case "restarted":
        this.restarts += 1;
        this.items = [];
        this.sources = [];
        this.firstTokenMs = null;
        break;
      case "delta":
        this.#rest(now);
        this.#append(event, now);
        break;
      case "thought":
        this.#think(event.text, now);
        break;
      case "custom":
        this.note = noteOf(event.data) ?? this.note;
        break;
      case "message":
        this.#rest(now);
        if (isQuestion(event.message)) this.#takeQuestion(event.message);
        else this.#takeStep(itemOf(event.message));
        break;
      case "sources":
        this.sources = event.sources;
        break;
      case "final":
        this.#rest(now);
        this.#finish(event);
        break;
      case "awaiting_human":
        this.#rest(now);
        this.#await(event.payload);
        break;
      case "cancelled":
        this.#rest(now);
        if (event.messages?.length > 0) this.#replaceItems(event.messages);
        this.#takeMetadata();
        this.status = "cancelled";
        break;
      case "error":
        this.#rest(now);
        this.error = errorOf(event);
        this.status = "failed";
        break;
      default:
    }
    if (event.type !== "accepted") this.queuePosition = null;
    if (!QUIET.has(event.type)) this.note = "";
  }

  /** @param {Frames.ChatMessage} question */
  #takeQuestion(question) {
    this.timestamp = question.timestamp;
    this.rank = question.rank;
    this.images = imagesOf(question);
  }

  /** @param {string} text @param {number} now */
  #think(text, now) {
    const last = this.items.at(-1);
    if (last?.thinking !== undefined && last.message === null) {
      last.text += text;
      last.thinking.since ??= now;
      return;
    }
    const rank = last === undefined ? FIRST_THINKING_RANK : last.rank + 0.5;
    this.#put({ rank, role: "assistant", channel: "thought", text, message: null, thinking: { ms: 0, since: now } });
  }

  /**
   * The model does something else than to reason.
   * @param {number} now
   */
  #rest(now) {
    for (const { thinking } of this.items) {
      if (thinking === undefined || thinking.since === null) continue;
      thinking.ms = (thinking.ms ?? 0) + now - thinking.since;
      thinking.since = null;
    }
  }

  /**
   * A step; where it is what was heard of the model's reasoning, it takes its place.
   * @param {Item} item
   */
  #takeStep(item) {
    if (item.thinking !== undefined) {
      const heard = this.items.find(isHeardThinking);
      item.thinking.ms ??= heard?.thinking?.ms ?? null;
      this.items = this.items.filter((other) => other !== heard);
    }
    this.#put(item);
  }

  /** @param {Frames.HitlPayload} payload */
  #await(payload) {
    this.awaiting = payload;
    this.answering = null;
    this.status = "awaiting";
    // What was said before the question was not the answer.
    for (const item of this.items) if (item.message === null) item.channel = "thought";
  }

  /** @param {Frames.delta} delta @param {number} now */
  #append({ rank, channel, text }, now) {
    if (this.firstTokenMs === null && channel === "final" && this.askedAt !== null) {
      this.firstTokenMs = now - this.askedAt;
    }
    const known = this.items.find((item) => item.rank === rank);
    if (known === undefined) this.#put({ rank, role: "assistant", channel, text, message: null });
    else known.text += text;
  }

  /** @param {Item} item */
  #put(item) {
    const at = this.items.findIndex((other) => other.rank >= item.rank);
    if (at === -1) this.items.push(item);
    else this.items.splice(at, this.items[at].rank === item.rank ? 1 : 0, item);
  }

  /** @param {Frames.final} event */
  #finish(event) {
    this.#replaceItems(event.messages);
    this.#takeMetadata();
    if (event.ledger !== undefined) this.ledger = { rows: event.ledger, unattributedMs: event.unattributed_ms ?? null };
    this.warnings = event.warnings ?? [];
    this.durable = event.durable ?? null;
    this.status = this.metadata.finish_reason === "cancelled" ? "cancelled" : "done";
  }

  /** @param {Frames.ChatMessage[]} messages */
  #replaceItems(messages) {
    const user = messages.find(isQuestion);
    if (user !== undefined) this.#takeQuestion(user);
    const heard = this.items.filter((item) => item.thinking !== undefined);
    this.items = messages.filter((message) => !isQuestion(message)).map(itemOf);
    this.#takeLateThinking();
    const stored = this.items.filter((item) => item.thinking !== undefined);
    if (stored.length === 0) for (const item of heard) this.#keepThinking(item);
    stored.forEach((item, at) => {
      if (item.thinking !== undefined) item.thinking.ms ??= heard[at]?.thinking?.ms ?? null;
    });
    this.#timeThinking();
  }

  /** Where reasoning is stored, that which came after the first words of the answer is kept with the answer. */
  #takeLateThinking() {
    const { answer } = this;
    const text = this.metadata.extras?.late_thoughts;
    if (answer === undefined || typeof text !== "string" || text === "") return;
    const thinking = { ms: null, since: null };
    this.#put({ rank: answer.rank - 0.5, role: "assistant", channel: "thought", text, message: null, thinking });
  }

  /**
   * What was heard of the model's reasoning is in no message, and stays for as long as the page does.
   * @param {Item} item
   */
  #keepThinking(item) {
    // What came after the first words of the answer still came before its end.
    const rank = Math.min(item.rank, (this.answer?.rank ?? item.rank + 1) - 0.5);
    const before = this.items.find((other) => other.rank === rank);
    if (before?.thinking === undefined) {
      this.#put({ ...item, rank, thinking: { ms: item.thinking?.ms ?? null, since: null } });
      return;
    }
    before.text += `\n\n${item.text}`;
    before.thinking.ms = (before.thinking.ms ?? 0) + (item.thinking?.ms ?? 0);
  }

  /** The service has timed it as it happened; this page may have joined later, or heard all of it at once. */
  #timeThinking() {
    const ms = this.metadata.extras?.thinking_ms;
    if (typeof ms !== "number" || !(ms > 0)) return;
    const parts = this.items.flatMap(({ thinking }) => thinking ?? []);
    if (parts.length === 0) {
      const thinking = { ms, since: null };
      this.#put({ rank: FIRST_THINKING_RANK, role: "assistant", channel: "thought", text: "", message: null, thinking });
      return;
    }
    const known = parts.reduce((total, part) => total + (part.ms ?? 0), 0);
    const untimed = parts.filter((part) => part.ms === null);
    if (parts.length === 1) {
      parts[0].ms = ms;
    } else if (untimed.length === 1 && known < ms) {
      untimed[0].ms = ms - known;
    } else if (untimed.length > 1 || known < ms / 2) {
      parts.forEach((part, at) => Object.assign(part, { ms: at === 0 ? ms : null, inAll: at === 0 }));
    }
  }
}

/** Events that say nothing of what the agent does now. */
const QUIET = new Set(["custom", "session", "sources"]);

/** @param {Item} item */
function isHeardThinking(item) {
  return item.thinking !== undefined && item.message === null;
}

/**
 * Whether a message is what the person asked; what they answer in the middle of a turn is one of its steps.
 * @param {Frames.ChatMessage} message
 */
function isQuestion({ role, channel }) {
  return role === "user" && channel !== "observation";
}

/**
 * Where a stored question says that its exchange begins; null where that is behind the message before it. Asked again
 * under the same id it names the same place, whichever line is live since.
 * @param {Frames.ChatMessage} question
 * @returns {Fork|null}
 */
function forkOf({ metadata }) {
  const { after_rank: afterRank, regenerates } = metadata.extras ?? {};
  if (typeof afterRank !== "number") return null;
  return { afterRank, regenerates: typeof regenerates === "string" ? regenerates : null, anyBranch: true };
}

/**
 * The line that an agent's own event has for a person, if any: what it is made of is the agent's affair.
 * @param {unknown} data
 * @returns {string|null}
 */
function noteOf(data) {
  const { message, status, text } = /** @type {Record<string, unknown>} */ (typeof data === "object" && data ? data : {});
  const said = [data, message, status, text].find((value) => typeof value === "string");
  return typeof said === "string" ? said.trim().slice(0, MAX_NOTE_CHARS) : null;
}

/**
 * Whether an exchange's messages say that the end of a service's process was its end: it has no answer.
 * @param {Frames.ChatMessage[]} messages
 */
export function isCutOff(messages) {
  return messages.some((message) => message.metadata.extras?.interrupted_by === "restart");
}

/** @param {Frames.ChatMessage} message @returns {Item} */
function itemOf(message) {
  const { rank, role, channel, metadata } = message;
  const item = { rank, role, channel, text: textOf(message), message };
  if (channel !== "thought" || metadata.extras?.reasoning !== true) return item;
  const ms = metadata.extras.thinking_ms;
  return { ...item, thinking: { ms: typeof ms === "number" ? ms : null, since: null } };
}

/** @param {Frames.ChatMessage} message */
function textOf(message) {
  return textsOf(message).join("\n");
}

/**
 * The images that a question shows, with the ids of their attachments.
 * @param {Frames.ChatMessage} message
 * @returns {Picture[]}
 */
function imagesOf(message) {
  return message.parts.flatMap((part) => {
    const id = part.type === "image_url" ? /^chatbot\/upload\/([\w-]+)\/image$/.exec(part.url)?.[1] : undefined;
    return id === undefined || part.type !== "image_url" ? [] : [{ id, name: part.alt ?? "" }];
  });
}

/** @param {Frames.ChatMessage} message */
function textsOf(message) {
  return message.parts.filter((part) => part.type === "text").map((part) => part.text);
}

/** @param {Failure} event @returns {TurnError} */
function errorOf(event) {
  return {
    code: event.code ?? "internal",
    message: event.message ?? null,
    retryable: event.retryable === true,
    retryAfterMs: event.retry_after_ms ?? 0,
    partial: event.partial === true,
  };
}

/**
 * The ledger that the answer keeps in its metadata. What it leaves unattributed follows from the turn's length.
 * @param {Frames.Metadata} metadata
 * @returns {Ledger|null}
 */
function ledgerOf(metadata) {
  const rows = metadata.extras?.ledger;
  return Array.isArray(rows) ? { rows, unattributedMs: null, totalMs: metadata.latency_ms ?? null } : null;
}

/**
 * The page's one socket. Tells `onState` about {name, retryInMs?, code?} with name "connecting", "open", "waiting"
 * (for the next attempt), "asleep", "replaced" or "refused", and `onEvent` about every event of the server.
 */
export class SocketClient {
  #url;
  #token;
  #onEvent;
  #onState;
  /** @type {WebSocket|null} */
  #socket = null;
  #attempt = 0;
  #openedAt = 0;
  #heardAt = 0;
  /** @type {number|null} */
  #pingedAt = null;
  /** @type {number|undefined} */
  #retryTimer;
  /** @type {number|undefined} */
  #watchTimer;
  /** @type {ConnectionState["name"]} */
  #state = "asleep";

  /**
   * @param {{url: string, token: () => string, onEvent: (event: Frames.FromServer) => void,
   *          onState: (state: ConnectionState) => void}} page
   */
  constructor({ url, token, onEvent, onState }) {
    this.#url = url;
    this.#token = token;
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  get state() {
    return this.#state;
  }

  /** Connects unless that is done or under way. Also the person's "try now" while an attempt is waited for. */
  connect() {
    if (this.#socket !== null) return;
    clearTimeout(this.#retryTimer);
    this.#setState({ name: "connecting" });
    const socket = new WebSocket(this.#url, [SUBPROTOCOL, `bearer.${this.#token()}`]);
    this.#socket = socket;
    this.#heardAt = performance.now();
    socket.addEventListener("open", () => this.#opened(socket));
    socket.addEventListener("message", ({ data }) => this.#heard(socket, data));
    socket.addEventListener("close", ({ code }) => this.#closed(socket, code));
    this.#watchTimer = setInterval(() => this.#watch(socket), WATCH_EVERY_MS);
  }

  /**
   * Sends a frame. False where there is no open socket: the caller sends again once it is.
   * @param {Frames.FromClient} frame
   */
  send(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  /** The browser says that there is no network: what is open is dead, though nothing may say so for minutes. */
  drop() {
    if (this.#socket !== null) this.#abandon(this.#socket);
  }

  /** @param {WebSocket} socket */
  #opened(socket) {
    if (socket !== this.#socket) return;
    this.#openedAt = performance.now();
    this.#heardAt = this.#openedAt;
    this.#setState({ name: "open" });
  }

  /** @param {WebSocket} socket @param {string} data */
  #heard(socket, data) {
    if (socket !== this.#socket) return;
    this.#heardAt = performance.now();
    this.#pingedAt = null;
    this.#onEvent(JSON.parse(data));
  }

  /** @param {WebSocket} socket @param {number} code */
  #closed(socket, code) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    this.#pingedAt = null;
    clearInterval(this.#watchTimer);
    // A server that accepts and then drops everybody must not be hammered: only a lasting connection clears the count.
    const lasted = this.#openedAt > 0 && performance.now() - this.#openedAt > STABLE_AFTER_MS;
    this.#attempt = lasted ? 0 : this.#attempt;
    this.#openedAt = 0;
    const next = afterClose(code);
    if (next !== "retry") {
      this.#setState({ name: next, code });
      return;
    }
    const retryInMs = backoffMs(this.#attempt);
    this.#attempt += 1;
    this.#retryTimer = setTimeout(() => this.connect(), retryInMs);
    this.#setState({ name: "waiting", retryInMs, code });
  }

  /**
   * A connection can die without a word (sleep, another network): silence is answered with a ping, then a close.
   * @param {WebSocket} socket
   */
  #watch(socket) {
    const now = performance.now();
    const silent = now - this.#heardAt;
    if (socket.readyState === WebSocket.CONNECTING) {
      if (silent > CONNECT_DEADLINE_MS) this.#abandon(socket);
    } else if (this.#pingedAt !== null) {
      if (now - this.#pingedAt > PONG_DEADLINE_MS) this.#abandon(socket);
    } else if (silent > PING_AFTER_SILENCE_MS && document.visibilityState === "visible") {
      this.#pingedAt = this.send({ type: "ping" }) ? now : null;
    }
  }

  /**
   * close() on a dead connection may take a minute to report: the page does not wait for it.
   * @param {WebSocket} socket
   */
  #abandon(socket) {
    socket.close(CLOSE_STALE);
    this.#closed(socket, CLOSE_STALE);
  }

  /** @param {ConnectionState} state */
  #setState(state) {
    this.#state = state.name;
    this.#onState(state);
  }
}
