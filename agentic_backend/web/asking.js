/** Asking: a question is sent, stopped, asked again, or answered in the place of the agent. */

/**
 * @import { App } from "./app.js"
 * @import { Said } from "./hitl.js"
 * @import { Named } from "./protocol.js"
 * @import { Conversation } from "./state.js"
 */
import { ApiError } from "./api.js";
import { Branches } from "./branches.js";
import { catalogue } from "./i18n.js";
import { Turn } from "./protocol.js";
import { passOver } from "./state.js";
import { errorText } from "./texts.js";

const t = catalogue({
  en: {
    nobody: "There is no agent to ask",
    answering: "This conversation is answering.",
    wait: "Ask again when the answer is there.",
  },
  fr: {
    nobody: "Il n'y a pas d'agent à interroger",
    answering: "Cette conversation est en train de répondre.",
    wait: "Reposez votre question quand la réponse est là.",
  },
});

/** What the person asks, and answers to an agent. */
export class Asking {
  #app;
  /** Whether a question waits for its session, or for its files. */
  waiting = false;
  /** @type {Promise<string|null>|null} the session that is being made */
  #made = null;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /** @param {string} text */
  async send(text) {
    if (!(await this.#app.entered)) return;
    if (this.#app.agents.chosenAgentId === null) await this.#app.agents.agentsLoaded; // an early question waits for the agents
    if (this.waiting || this.#app.state.current?.running !== undefined) return;
    const agentId = this.#app.agents.chosenAgentId;
    if (agentId === null) {
      this.#app.view.notify({ title: t("nobody"), message: "" }, () => this.#app.agents.loadAgents());
      return;
    }
    const id = await this.#sessionToAsk(agentId);
    if (id === null) return;
    this.#app.view.clearNotice();
    this.#app.view.draft = "";
    this.#ask(this.#app.state.conversationOf(id), text, agentId);
  }

  /**
   * The session on the screen, or a new one, once its files can be searched; null where there is none, or another one is
   * on the screen then.
   * @param {string} agentId
   * @returns {Promise<string|null>}
   */
  async #sessionToAsk(agentId) {
    this.#wait(true);
    try {
      const id = await this.session(agentId);
      if (id === null) return null;
      await this.#app.uploads.settled(id);
      return this.#app.state.currentId === id ? id : null;
    } finally {
      this.#wait(false);
    }
  }

  /** @param {boolean} waiting */
  #wait(waiting) {
    this.waiting = waiting;
    this.#app.navigation.showBusy();
  }

  /**
   * The id of the session on the screen, or of a new one, however many ask for it at once.
   * @param {string} agentId
   * @returns {Promise<string|null>}
   */
  session(agentId) {
    const { currentId } = this.#app.state;
    if (currentId !== null) return Promise.resolve(currentId);
    this.#made ??= this.#createSession(agentId).finally(() => {
      this.#made = null;
    });
    return this.#made;
  }

  /**
   * The id of a new session, which is then the one on the screen; null where the service did not make one.
   * @param {string} agentId
   * @returns {Promise<string|null>}
   */
  async #createSession(agentId) {
    try {
      const session = await this.#app.api.createSession(agentId);
      this.#app.state.sessions.set(session.id, session);
      const conversation = this.#app.state.conversationOf(session.id);
      conversation.loaded = true;
      this.#app.state.currentId = session.id;
      this.#app.navigation.freshDraft = "";
      this.#app.preferences.takeFresh();
      history.pushState(null, "", `#/c/${session.id}`);
      this.#app.navigation.show(conversation);
      return session.id;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#app.view.notify(errorText(error.failure));
      return null;
    }
  }

  /**
   * Asks behind what is on the screen, or where `given` says.
   * @param {Conversation} conversation
   * @param {string} question
   * @param {string|null} agentId
   * @param {Partial<Named>} given
   */
  #ask(conversation, question, agentId, given = {}) {
    const turn = new Turn({
      exchangeId: newExchangeId(),
      sessionId: conversation.id,
      agentId,
      model: this.#app.agents.modelFor(conversation.id, agentId),
      context: this.#app.scope.context(),
      question,
      askedAt: performance.now(),
      images: this.#app.uploads.unasked(conversation),
      ...this.#behindTheLine(conversation),
      ...given,
    });
    turn.savedAt = Date.now();
    for (const earlier of conversation.known) if (passOver(earlier)) this.#app.view.updateTurn(earlier);
    conversation.known.push(turn);
    conversation.tip = null;
    this.#app.state.turns.set(turn.exchangeId, turn);
    this.dispatch(turn);
    this.#app.following.savePending();
    this.#app.view.showLine(conversation.turns);
    this.#app.view.addTurn(turn);
    this.#app.uploads.showAttachments();
    this.#app.navigation.showBusy();
    this.#app.list.showSessions();
  }

  /**
   * A question that follows on the turn at the end of the screen names its place where that is not the newest message.
   * @param {Conversation} conversation
   * @returns {Partial<Named>}
   */
  #behindTheLine(conversation) {
    const last = conversation.turns.at(-1);
    if (last === undefined) return {};
    const { exchangeId: behind, lastRank: afterRank } = last;
    if (conversation.showsNewest || afterRank === null) return { behind };
    return { behind, fork: { afterRank, regenerates: null, anyBranch: true } };
  }

  /**
   * Asks in the place of a turn, which stays as an earlier version.
   * @param {Turn} turn
   * @param {string} question
   * @param {string|null} regenerates
   */
  #askInPlace(turn, question, regenerates) {
    const conversation = this.#app.state.conversationOf(turn.sessionId);
    const { parentRank: afterRank } = turn;
    if (afterRank === null || this.#isAnswering(conversation)) return;
    const { turns, showsNewest } = conversation;
    const behind = turns[turns.indexOf(turn) - 1]?.exchangeId ?? null;
    const agentId = this.#app.agents.chosenAgentId ?? turn.agentId ?? turn.metadata.agent_id ?? null;
    const fork = { afterRank, regenerates, anyBranch: !showsNewest };
    this.#ask(conversation, question, agentId, { behind, fork, images: this.#app.uploads.stillThere(turn) });
    // The button is gone, and with it the place of the keyboard.
    this.#app.view.focusComposer();
  }

  /** @param {Turn} turn @param {string} question */
  askEdited(turn, question) {
    this.#askInPlace(turn, question, null);
  }

  /** @param {Turn} turn */
  regenerate(turn) {
    if (turn.question !== null) this.#askInPlace(turn, turn.question, turn.exchangeId);
  }

  /**
   * Shows the version of a turn before or after it, with what came after that one last.
   * @param {Turn} turn
   * @param {-1|1} step
   */
  showVersion(turn, step) {
    const conversation = this.#app.state.conversationOf(turn.sessionId);
    const { known } = conversation;
    const branches = new Branches(known);
    const versions = branches.versionsOf(turn);
    const next = versions[versions.indexOf(turn) + step];
    if (next === undefined) return;
    const tip = branches.newestFrom(next);
    conversation.tip = tip === known.at(-1) ? null : tip.exchangeId;
    this.#app.view.showLine(conversation.turns);
    this.#app.view.showVersion(next, step);
  }

  /**
   * Sends the ask, or has it sent as soon as there is a connection.
   * @param {Turn} turn
   */
  dispatch(turn) {
    const sent = this.#app.socket.send(turn.askFrame());
    turn.sent ||= sent;
    turn.waitingForConnection = !sent;
    if (!sent) this.#app.wake();
    this.#app.view.updateTurn(turn);
  }

  stop() {
    const turn = this.#app.state.current?.running;
    if (turn === undefined) return;
    if (turn.sent) {
      turn.status = "stopping";
      this.#app.socket.send({ type: "cancel", exchange_id: turn.exchangeId });
    } else {
      turn.status = "cancelled";
    }
    this.#app.following.changed(turn);
  }

  /**
   * Whether a conversation is answering; then the person hears why nothing more is asked in it.
   * @param {Conversation} conversation
   */
  #isAnswering(conversation) {
    if (conversation.running === undefined) return false;
    this.#app.view.notify({ title: t("answering"), message: t("wait") });
    return true;
  }

  /** @param {Turn} turn */
  retry(turn) {
    const { question } = turn;
    const conversation = this.#app.state.conversationOf(turn.sessionId);
    if (question === null || this.#isAnswering(conversation)) return;
    this.#dropRefused(conversation, turn);
    const { fork, behind } = turn;
    const images = this.#app.uploads.stillThere(turn);
    const place = turn.status === "refused" ? { fork, behind, images } : { images };
    this.#ask(conversation, question, turn.agentId ?? this.#app.agents.chosenAgentId, place);
  }

  /**
   * Asks a stopped or interrupted question once more. The newest, where a restart cut it off, runs again in its place:
   * under its own id, so that the conversation holds it once.
   * @param {Turn} turn
   */
  askAgain(turn) {
    const { question } = turn;
    const conversation = this.#app.state.conversationOf(turn.sessionId);
    if (question === null || this.#isAnswering(conversation)) return;
    const agentId = turn.agentId ?? turn.metadata.agent_id ?? this.#app.agents.chosenAgentId;
    const newest = conversation.known.findLast(({ status }) => status !== "refused");
    if (turn.status === "interrupted" && turn === newest && !turn.overtaken) {
      const { exchangeId, rank, fork, behind } = turn;
      conversation.drop(turn);
      conversation.storedTurns.delete(exchangeId);
      this.#app.view.removeTurn(turn);
      this.#ask(conversation, question, agentId, { exchangeId, rank, fork, behind, images: turn.images });
    } else {
      turn.retried = true;
      this.#app.view.updateTurn(turn);
      this.#ask(conversation, question, agentId, { images: this.#app.uploads.stillThere(turn) });
    }
    // The button is gone, and with it the place of the keyboard.
    this.#app.view.focusComposer();
  }

  /**
   * Takes the person's answer to the agent's question to the server; without a connection it can be given again.
   * @param {Turn} turn
   * @param {Said} said
   */
  answerHuman(turn, said) {
    this.#app.state.turns.set(turn.exchangeId, turn);
    turn.savedAt = Date.now();
    turn.model = this.#app.agents.modelFor(turn.sessionId, turn.agentId);
    turn.context = this.#app.scope.context();
    turn.goOn(said, performance.now());
    if (!this.#app.socket.send(turn.humanFrame())) {
      this.#app.wake();
      this.#app.following.askHumanAgain(turn, { code: "unreachable" });
      return;
    }
    this.#app.following.changed(turn);
    this.#app.following.savePending();
    this.#app.list.showSessions();
    // The card is gone, and with it the place of the keyboard.
    this.#app.view.focusComposer();
  }

  /** @param {Turn} turn */
  edit(turn) {
    this.#dropRefused(this.#app.state.conversationOf(turn.sessionId), turn);
    this.#app.view.draft = turn.question ?? "";
    this.#app.view.focusComposer();
  }

  /**
   * A refused turn is in no history: its second attempt takes its place. A failed one stays, without its buttons.
   * @param {Conversation} conversation
   * @param {Turn} turn
   */
  #dropRefused(conversation, turn) {
    turn.retried = true;
    if (turn.status !== "refused") {
      this.#app.view.updateTurn(turn);
      return;
    }
    conversation.drop(turn);
    this.#app.state.turns.delete(turn.exchangeId);
    this.#app.view.removeTurn(turn);
  }
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
