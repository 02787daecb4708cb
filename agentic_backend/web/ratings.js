/** Feedback on answers. */

/**
 * @import { App } from "./app.js"
 * @import { Opinion } from "./opinion.js"
 * @import { Turn } from "./protocol.js"
 * @import { Conversation } from "./state.js"
 */
import { ApiError } from "./api.js";

/** What the person says of answers. */
export class Ratings {
  #app;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  /**
   * Rates an answer, or takes the rating back if it is the current one and nothing else is given.
   * @param {Turn} turn
   * @param {number} rating
   * @param {Opinion|null} said
   */
  async rate(turn, rating, said) {
    const { answer } = turn;
    if (answer === undefined) return; // its buttons stand under an answer
    await this.#app.guarded(async () => {
      if (said === null && turn.feedback?.rating === rating) {
        await this.#app.api.takeFeedbackBack(turn.feedback.id);
      } else {
        const agentName = turn.metadata.agent_id ?? turn.agentId ?? "unknown";
        const messageId = String(answer.rank);
        await this.#app.api.giveFeedback({ sessionId: turn.sessionId, messageId, agentName, rating, ...said });
      }
      await this.#showFeedback(this.#app.state.conversationOf(turn.sessionId));
    });
  }

  /** @param {Conversation} conversation */
  async #showFeedback(conversation) {
    const given = await this.#app.api.feedback(conversation.id);
    const byMessage = new Map(given.map((feedback) => [feedback.messageId, feedback]));
    for (const turn of conversation.known) {
      const feedback = byMessage.get(String(turn.answer?.rank)) ?? null;
      if (JSON.stringify(turn.feedback) === JSON.stringify(feedback)) continue;
      turn.feedback = feedback;
      this.#app.view.updateTurn(turn);
    }
  }

  /**
   * What was said of answers is an ornament of the conversation: without it the rest is as good.
   * @param {Conversation} conversation
   */
  async loadFeedback(conversation) {
    try {
      await this.#showFeedback(conversation);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }
}
