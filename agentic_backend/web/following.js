/**
 * Following turns: what the server says of them, and what becomes of them after a break.
 *
 * A turn belongs to the server, not to the socket: after a break, or a reload, the page resumes it after the last event
 * that it has. Where the server runs it again, what was shown of the answer is replaced. Where the server knows nothing of
 * it, or was itself restarted in the middle of the answer and does not run it again, the page looks into the history and,
 * where nothing else was asked since, asks again under the same id, which the server answers once. Tabs of one browser
 * tell each other about running turns, and each follows them on its own.
 */

/**
 * @import { App } from "./app.js"
 * @import { ConnectionState, Failure, Snapshot, Status } from "./protocol.js"
 */
import { ApiError } from "./api.js";
import { catalogue } from "./i18n.js";
import { backoffMs, isCutOff, Turn } from "./protocol.js";
import { HISTORY_WINDOW, isEnd } from "./state.js";
import { errorText } from "./texts.js";

const t = catalogue({
  en: {
    done: "Answer complete.",
    cancelled: "Stopped.",
    interrupted: "This answer was interrupted.",
    unanswered: "There is no answer.",
    awaiting: "The agent asks you something.",
  },
  fr: {
    done: "La réponse est complète.",
    cancelled: "Arrêté.",
    interrupted: "Cette réponse a été interrompue.",
    unanswered: "Il n'y a pas de réponse.",
    awaiting: "L'agent vous demande quelque chose.",
  },
});

const PENDING_KEY = "turnwise.pending";
const TABS_CHANNEL = "turnwise.turns";
/** Longer than any turn may take: an older question is answered or lost, and history says which. */
const PENDING_MAX_AGE_MS = 10 * 60_000;
const MAX_RECOVERIES = 20;
const OFFER_GONE = new Set(["agent_not_found", "bad_request"]);

/** Follows each turn to its end. */
export class Following {
  #app;
  /** @type {BroadcastChannel|null} */
  tabs = null;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /** @param {Turn} turn @param {Failure} error */
  askHumanAgain(turn, error) {
    turn.awaitAgain();
    this.#app.view.notify(errorText(error));
    this.changed(turn);
  }

  /** @param {Frames.FromServer} event */
  onEvent(event) {
    // The service says it of all sessions of the person's, which may be on no page of the list that was read.
    if ("session" in event && event.session.updated_at !== "") this.#app.list.noteSession(event.session);
    const turn = "exchange_id" in event ? this.#app.state.turns.get(event.exchange_id ?? "") : undefined;
    if (!("seq" in event)) {
      if (event.type === "error") this.#onRefusal(event, turn);
    } else if (turn?.ended === false && event.type === "cancelled" && isCutOff(event.messages)) {
      this.#recover(turn);
    } else if (turn?.apply(event, performance.now())) {
      if (event.type === "accepted") this.tabs?.postMessage({ running: turn.outline() });
      this.changed(turn);
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
    const concerned = [...this.#app.state.turns.values()].filter((turn) => turn.sent && turn.status === status);
    const turn = named ?? (concerned.length === 1 ? concerned[0] : undefined);
    if (turn?.answering) {
      this.askHumanAgain(turn, event);
      // Another tab may have answered: then the exchange goes on there, and is followed here too.
      if (event.code === "not_awaiting") this.#resume(turn);
    } else if (turn === undefined) {
      // A cancel that came after the end is nobody's trouble.
      if (!late) this.#app.view.notify(errorText(event));
    } else if (turn.resuming && late) {
      if (turn.fromOtherTab) this.#forget(turn);
      else this.#recover(turn);
    } else if (turn.status === "sending" && !turn.recoveries && !turn.resuming) {
      turn.refuse(event);
      this.changed(turn);
      // What the page offers may be gone: an agent, or one of its models.
      if (OFFER_GONE.has(event.code)) this.#app.agents.loadAgents();
    } else if (!turn.ended) {
      this.#recoverLater(turn, event);
    }
  }

  /** @param {Turn} turn */
  changed(turn) {
    turn.waitingForConnection = false;
    this.#app.view.updateTurn(turn);
    if (turn.ended) {
      this.savePending();
      this.#app.view.announce(ENDINGS[turn.status] ?? "");
      this.#app.list.showSessions();
    }
    if (turn.sessionId === this.#app.state.currentId) this.#app.navigation.showBusy();
  }

  async #renewAndConnect() {
    if (await this.#app.login.renew()) this.#app.socket.connect();
  }

  /** @param {ConnectionState} state */
  onConnection(state) {
    this.#app.view.showConnection(state);
    if (state.name === "refused" && state.code === 4401) this.#renewAndConnect();
    const open = [...this.#app.state.turns.values()].filter((turn) => !turn.ended);
    for (const turn of open) {
      if (state.name !== "open") this.#waitForConnection(turn);
      else if (turn.sent) this.#resume(turn);
      else this.#app.asking.dispatch(turn);
    }
  }

  /** @param {Turn} turn */
  #waitForConnection(turn) {
    turn.waitingForConnection = true;
    this.#app.view.updateTurn(turn);
  }

  /**
   * Follows the turn from the last event that is known of it.
   * @param {Turn} turn
   */
  #resume(turn) {
    const stopping = turn.status === "stopping";
    turn.resuming = true;
    turn.expectReplay();
    turn.waitingForConnection = !this.#app.socket.send(turn.resumeFrame());
    if (stopping) this.#app.socket.send({ type: "cancel", exchange_id: turn.exchangeId });
    this.#app.view.updateTurn(turn);
  }

  /**
   * Looks for the turn's answer in the history; where there is none, asks again under the same id.
   * @param {Turn} turn
   */
  async #recover(turn) {
    turn.resuming = false;
    turn.recoveries = (turn.recoveries ?? 0) + 1;
    try {
      const messages = await this.#app.api.history(turn.sessionId, { limit: HISTORY_WINDOW });
      const own = messages.filter((message) => message.exchange_id === turn.exchangeId);
      if (turn.ended) return;
      const newest = messages.at(-1)?.exchange_id === turn.exchangeId;
      if (isEnd(turn, own, newest)) {
        turn.overtaken = !newest;
        this.settle(turn, own);
        return;
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#recoverLater(turn, error.failure);
      return;
    }
    const stopping = turn.status === "stopping";
    turn.expectReplay();
    this.#app.asking.dispatch(turn);
    if (stopping) this.#app.socket.send({ type: "cancel", exchange_id: turn.exchangeId });
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
      this.changed(turn);
      return;
    }
    const wait = Math.max(retryAfterMs, backoffMs(tried));
    setTimeout(() => {
      // Without a connection the next one starts the recovery.
      if (!turn.ended && this.#app.socket.state === "open") this.#recover(turn);
    }, wait);
  }

  /** @param {Turn} turn @param {Frames.ChatMessage[]} messages */
  settle(turn, messages) {
    turn.adopt(messages);
    this.changed(turn);
  }

  /** Questions whose answer is outstanding survive a reload of the tab, with what is known of the answer. */
  savePending() {
    const open = [...this.#app.state.turns.values()].filter((turn) => !turn.ended);
    /** @param {object[]} kept */
    const keep = (kept) => sessionStorage.setItem(this.#app.own(PENDING_KEY), JSON.stringify(kept));
    try {
      keep(open.map((turn) => ({ savedAt: turn.savedAt, ...turn.snapshot() })));
    } catch (error) {
      if (!(error instanceof DOMException) || error.name !== "QuotaExceededError") throw error;
      keep(open.map((turn) => ({ savedAt: turn.savedAt, ...turn.outline() })));
    }
  }

  /** Takes up what was outstanding when the page was left, and listens to the other tabs. */
  begin() {
    // Another person may sign in next in this tab, or be signed in in the one beside it.
    this.tabs = new BroadcastChannel(this.#app.own(TABS_CHANNEL));
    this.#restorePending();
    this.tabs.addEventListener("message", ({ data }) => this.#onTab(data));
  }

  #restorePending() {
    const pending = JSON.parse(sessionStorage.getItem(this.#app.own(PENDING_KEY)) ?? "[]");
    for (const { savedAt, ...kept } of pending) {
      if (Date.now() - savedAt <= PENDING_MAX_AGE_MS) this.#adopt(Turn.fromSnapshot(kept), savedAt);
    }
  }

  /** @param {Turn} turn @param {number} savedAt */
  #adopt(turn, savedAt) {
    turn.savedAt = savedAt;
    this.#app.state.turns.set(turn.exchangeId, turn);
    this.#app.state.conversationOf(turn.sessionId).known.push(turn);
  }

  /** @param {Turn} turn */
  #forget(turn) {
    const conversation = this.#app.state.conversationOf(turn.sessionId);
    conversation.drop(turn);
    this.#app.state.turns.delete(turn.exchangeId);
    this.#app.view.removeTurn(turn);
    this.#app.navigation.showBusy();
    this.#app.list.showSessions();
  }

  /**
   * Another tab opened a conversation, and gets what runs there; or it has a turn running in one that is open here.
   * @param {{open?: string, running?: Snapshot}} told
   */
  #onTab({ open, running }) {
    if (open !== undefined) {
      const turn = this.#app.state.conversations.get(open)?.running;
      if (turn?.sent && turn.status !== "sending") this.tabs?.postMessage({ running: turn.outline() });
      return;
    }
    if (running === undefined) return;
    const conversation = this.#app.state.conversations.get(running.sessionId);
    if (conversation === undefined || this.#app.state.turns.has(running.exchangeId)) return;
    if (conversation.storedTurns.has(running.exchangeId)) return;
    const turn = Turn.fromSnapshot(running);
    turn.fromOtherTab = true;
    this.#adopt(turn, Date.now());
    if (turn.sessionId === this.#app.state.currentId) {
      // It may stand in the place of what is on the screen, or on another line than that.
      const { turns } = conversation;
      this.#app.view.showLine(turns);
      if (turns.includes(turn)) this.#app.view.addTurn(turn);
      this.#app.navigation.showBusy();
    }
    if (this.#app.socket.state === "open") this.#resume(turn);
    this.#app.list.showSessions();
  }
}

/** What a screen reader announces at a turn's end. @type {Partial<Record<Status, string>>} */
const ENDINGS = {
  done: t("done"),
  cancelled: t("cancelled"),
  interrupted: t("interrupted"),
  unanswered: t("unanswered"),
  awaiting: t("awaiting"),
};
