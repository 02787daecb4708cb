/** How long answers of each agent took, as far as this page has shown them: nothing is asked of the service. */

/** The newest answers of an agent say how it is now. */
const KEPT = 50;

/** @type {Map<string, Map<string, number>>} ms by exchange, by agent */
const times = new Map();

/**
 * Notes an answer; one that is shown again counts once.
 * @param {string} agent
 * @param {string} exchangeId
 * @param {number} ms
 */
export function noteTime(agent, exchangeId, ms) {
  const own = times.get(agent) ?? new Map();
  times.set(agent, own);
  own.delete(exchangeId);
  own.set(exchangeId, ms);
  const [oldest] = own.keys();
  if (own.size > KEPT) own.delete(oldest);
}

/**
 * The median of an agent's answers, in ms, and of how many; 0 of none.
 * @param {string} agent
 */
export function medianOf(agent) {
  const sorted = [...(times.get(agent)?.values() ?? [])].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const ms = sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { count: sorted.length, ms: sorted.length === 0 ? 0 : ms };
}
