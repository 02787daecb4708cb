/** How long answers of each agent take: the median of the last day, as the service measures it, read now and then. */

/** @import { Api } from "./api.js" */
import { ApiError } from "./api.js";

/** @typedef {{ms: number, count: number}} Pace the median of `count` answers */

/** A day's median does not change with every answer. */
const READ_AGAIN_MS = 60_000;

/** @type {Api|null} null before the person is in, and for strangers */
let service = null;
/** @type {Map<string, {at: number, pace: Promise<Pace|null>}>} by agent */
const read = new Map();

/** @param {Api} api */
export function readPacesFrom(api) {
  service = api;
}

/**
 * The pace of an agent, null where it is not known.
 * @param {string} agent
 * @returns {Promise<Pace|null>}
 */
export function paceOf(agent) {
  if (service === null || agent === "") return Promise.resolve(null);
  const known = read.get(agent);
  if (known !== undefined && performance.now() - known.at < READ_AGAIN_MS) return known.pace;
  const pace = asked(service, agent);
  read.set(agent, { at: performance.now(), pace });
  return pace;
}

/** @param {Api} api @param {string} agent @returns {Promise<Pace|null>} */
async function asked(api, agent) {
  try {
    const { turns, median_ms: ms } = await api.call("GET", `agents/${encodeURIComponent(agent)}/pace`);
    return turns === null ? null : { ms, count: turns };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return null; // the waterfall is whole without it
  }
}
