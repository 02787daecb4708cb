/** What the page knows of the service, for the modules that only read it: its limits and its currency. */

/**
 * @typedef {object} Limits of the service; 0 where there is none
 * @property {number} [max_message_chars]
 * @property {number} [asks_per_min]
 * @property {number} [turns_per_user]
 * @property {number} [turn_s]
 */

/** @type {{limits: Limits, currency: string|null}} */
export const serviceFacts = { limits: {}, currency: null };

/**
 * Keeps what `GET /config/frontend_settings` said.
 * @param {{limits?: Limits, currency?: string|null}} settings
 */
export function learn({ limits = {}, currency = null }) {
  serviceFacts.limits = limits;
  serviceFacts.currency = currency;
}
