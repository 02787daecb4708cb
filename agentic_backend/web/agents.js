/** The agents that may be asked, and their models. */

/**
 * @import { Agent } from "./api.js"
 * @import { App } from "./app.js"
 */
const AGENT_KEY = "turnwise.agent";

/** Who answers: the agent and the model of the conversation on the screen, or of the next one. */
export class Agents {
  #app;
  /** @type {Agent[]} */
  agents = [];
  /** Settled once the agents were asked for, also where that failed. */
  agentsLoaded = Promise.resolve();
  #agentId = localStorage.getItem(AGENT_KEY);

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  loadAgents() {
    this.agentsLoaded = this.#app.guarded(async () => {
      this.agents = await this.#app.api.agents();
      this.showAgents();
    }, () => this.loadAgents());
    return this.agentsLoaded;
  }

  get chosenAgentId() {
    /** @param {string|null|undefined} id */
    const known = (id) => this.agents.some((agent) => agent.id === id);
    const own = this.#app.state.current?.agentId ?? this.#app.state.currentSession?.agent_id;
    return [own, this.#agentId].find(known) ?? this.agents[0]?.id ?? null;
  }

  showAgents() {
    const agentId = this.chosenAgentId;
    this.#app.view.showAgents(this.agents, agentId);
    this.#app.view.showModels(this.#modelChoices(agentId), this.modelFor(this.#app.state.currentId, agentId));
    this.#app.uploads.showAttachments();
    this.#app.scope.show();
  }

  /**
   * The models that a turn of the agent may choose, its own first.
   * @param {string|null} agentId
   */
  #modelChoices(agentId) {
    return this.agents.find(({ id }) => id === agentId)?.model_choices ?? [];
  }

  /**
   * The model that a question gets: what is preferred in its conversation, else the agent's own; null without choice.
   * @param {string|null} sessionId
   * @param {string|null} agentId
   * @returns {string|null}
   */
  modelFor(sessionId, agentId) {
    const choices = this.#modelChoices(agentId);
    if (choices.length < 2) return null;
    const preferred = this.#app.preferences.of(sessionId).model;
    return (choices.find(({ id }) => id === preferred) ?? choices[0]).id;
  }

  /** Whether the model that answers the next question sees images. */
  get seesImages() {
    const agentId = this.chosenAgentId;
    const choices = this.#modelChoices(agentId);
    const chosen = this.modelFor(this.#app.state.currentId, agentId);
    return (choices.find(({ id }) => id === chosen) ?? choices[0])?.vision === true;
  }

  /** @param {string} model */
  chooseModel(model) {
    this.#app.preferences.prefer({ model });
    this.#app.uploads.showAttachments(); // another may see images
  }

  /** @param {string} id */
  chooseAgent(id) {
    this.#agentId = id;
    localStorage.setItem(AGENT_KEY, id);
    const conversation = this.#app.state.current;
    if (conversation !== undefined) conversation.agentId = id;
    this.showAgents();
  }
}
