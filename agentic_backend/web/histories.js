/** Stored messages become turns of a conversation. */

/**
 * @import { App } from "./app.js"
 * @import { Conversation } from "./state.js"
 */
import { Turn } from "./protocol.js";
import { HISTORY_WINDOW, isEnd, passOver } from "./state.js";

/** How far back a message is looked for. */
const MOST_AT_ONCE = 1_000;

/** Takes what the service has stored of a session into its conversation. */
export class Histories {
  #app;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /** @param {Conversation} conversation */
  async loadHistory(conversation) {
    await this.#app.guarded(async () => {
      this.#merge(conversation, await this.#app.api.history(conversation.id, { limit: HISTORY_WINDOW }));
      conversation.loaded = true;
      if (conversation.id === this.#app.state.currentId) {
        this.#app.navigation.show(conversation);
        this.#app.uploads.showAttachments();
      }
      this.#app.ratings.loadFeedback(conversation);
    }, () => this.loadHistory(conversation));
    if (conversation.id !== this.#app.state.currentId) return;
    this.#app.view.hideLoading();
    this.#app.navigation.showBusy();
  }

  /**
   * The turn of a message, which is read first where it is further back than what was read; undefined where it is not
   * there, or not within a thousand messages.
   * @param {Conversation} conversation
   * @param {number} rank
   */
  async turnOf(conversation, rank) {
    const missing = conversation.firstRank - rank;
    if (missing > 0 && missing <= MOST_AT_ONCE) await this.loadEarlier(missing + HISTORY_WINDOW);
    const exchangeId = conversation.messages.get(rank)?.exchange_id;
    return conversation.known.find((turn) => turn.exchangeId === exchangeId);
  }

  async loadEarlier(limit = HISTORY_WINDOW) {
    const conversation = this.#app.state.current;
    if (conversation === undefined) return;
    await this.#app.guarded(async () => {
      // Where next_rank is stale the window overlaps with what is known, and ranks sort that out.
      const newest = Math.max(...conversation.messages.keys());
      const next = Math.max(this.#app.state.sessions.get(conversation.id)?.next_rank ?? 0, newest + 1);
      const window = { limit, offset: next - conversation.firstRank };
      this.#merge(conversation, await this.#app.api.history(conversation.id, window));
      if (conversation.id === this.#app.state.currentId) this.#app.view.showEarlier(conversation.turns, conversation.hasEarlier);
    });
  }

  /**
   * Takes messages of the history into the conversation: the stored turns in order, then those not stored yet.
   * @param {Conversation} conversation
   * @param {Frames.ChatMessage[]} messages
   */
  #merge(conversation, messages) {
    for (const message of messages) conversation.messages.set(message.rank, message);
    const ordered = [...conversation.messages.values()].sort((a, b) => a.rank - b.rank);
    const groups = Map.groupBy(ordered, (message) => message.exchange_id);
    const newestId = ordered.at(-1)?.exchange_id;
    const stored = [...groups].map(([id, group]) => this.#storedTurn(conversation, id, group, id === newestId));
    conversation.known = [...stored, ...conversation.known.filter((turn) => !groups.has(turn.exchangeId))];
  }

  /**
   * A turn that this page follows itself is taken as it is, or ended where storage has its answer.
   * @param {Conversation} conversation
   * @param {string} exchangeId
   * @param {Frames.ChatMessage[]} messages
   * @param {boolean} newest
   */
  #storedTurn(conversation, exchangeId, messages, newest) {
    const followed = this.#app.state.turns.get(exchangeId);
    if (followed !== undefined) {
      if (!followed.ended && isEnd(followed, messages, newest)) this.#app.following.settle(followed, messages);
      return followed;
    }
    const known = conversation.storedTurns.get(exchangeId);
    if (known?.size === messages.length) return known.turn;
    const turn = Turn.fromMessages(messages);
    if (!newest) passOver(turn);
    conversation.storedTurns.set(exchangeId, { turn, size: messages.length });
    return turn;
  }
}
