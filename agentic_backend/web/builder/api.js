/** What the page asks of agents that are made over REST (docs/protocol.md). */

/**
 * @import { Api } from "../api.js"
 *
 * A value of an agent that may be changed; `default` is the one in force, null for what is usual.
 * @typedef {object} Field
 * @property {string} key
 * @property {string} type
 * @property {string} title
 * @property {string|null} description
 * @property {boolean} required
 * @property {unknown} default
 * @property {string[]|null} enum
 * @property {number|null} min
 * @property {number|null} max
 * @property {string|null} item_type
 *
 * An agent whole, as it is read and sent back; what the page does not show stays as it is.
 * @typedef {object} MadeAgent
 * @property {string} id
 * @property {string} name
 * @property {boolean} enabled
 * @property {string|null} class_path
 * @property {string} model
 * @property {string[]} further_models
 * @property {string[]} starters
 * @property {{role: string, description: string, tags: string[], fields: Field[], mcp_servers: {id: string}[]}} tuning
 * @property {Record<string, boolean>} chat_options
 *
 * @typedef {{class_path: string, name: string|null}} Kind
 * @typedef {{id: string, title: string, description?: string|null}} Model
 * @typedef {{agents: MadeAgent[], kinds: Kind[], models: Model[], mcp_servers: string[]}} Editable
 */

/** Each call rejects with ApiError; where a value was refused, its `field` says which. */
export class BuilderApi {
  #api;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
  }

  /** The agents that the person may change, and what they may be made of. @returns {Promise<Editable>} */
  editable() {
    return this.#api.call("GET", "agents/editable");
  }

  /** @param {string} name @param {string} kind @returns {Promise<MadeAgent>} */
  create(name, kind) {
    return this.#api.call("POST", "agents/create", { name, class_path: kind });
  }

  /** @param {MadeAgent} agent @returns {Promise<MadeAgent>} */
  update(agent) {
    return this.#api.call("PUT", "agents/update", agent);
  }

  /** @param {string} id */
  remove(id) {
    return this.#api.call("DELETE", `agents/${encodeURIComponent(id)}`);
  }
}
