/**
 * The versions of a conversation: a question may have been edited, and an answer made again. Nothing is overwritten, so
 * the turns of a conversation are a tree, of which one line at a time is on the screen (docs/protocol.md#branches).
 *
 * All functions take the turns that are known, in the order in which they began, and know neither the server nor the
 * page.
 */

/** @import { Turn } from "./protocol.js" */

/** Where the versions of a question and its answer stand: this is number `at` of `of`. @typedef {{at: number, of: number}} Version */

/**
 * The turn on which another one follows; null where it begins the conversation, or that turn is not known yet.
 * @param {Turn[]} known
 * @param {Turn} turn
 */
function parentOf(known, turn) {
  const behind = turn.behind === null ? undefined : known.find(({ exchangeId }) => exchangeId === turn.behind);
  if (behind !== undefined) return behind;
  const before = turn.parentRank;
  if (before !== null) return known.findLast(({ rank }) => rank !== null && rank <= before) ?? null;
  return known[known.indexOf(turn) - 1] ?? null;
}

/**
 * The turn on which each one follows.
 * @param {Turn[]} known
 * @returns {Map<Turn, Turn|null>}
 */
function parents(known) {
  return new Map(known.map((turn) => [turn, parentOf(known, turn)]));
}

/**
 * Those that lead to a turn, which is the last of them; to the newest without one.
 * @param {Turn[]} known
 * @param {string|null} tip its exchange
 * @returns {Turn[]}
 */
export function lineOf(known, tip) {
  const end = known.find(({ exchangeId }) => exchangeId === tip) ?? known.at(-1);
  const parent = parents(known);
  /** @type {Turn[]} */
  const line = [];
  for (let turn = end ?? null; turn !== null && !line.includes(turn); turn = parent.get(turn) ?? null) line.unshift(turn);
  return line;
}

/**
 * All that follow on the same message as a turn: itself, and the other versions of it.
 * @param {Turn[]} known
 * @param {Turn} turn
 * @returns {Turn[]}
 */
export function versionsOf(known, turn) {
  const parent = parents(known);
  const own = parent.get(turn) ?? null;
  return known.filter((other) => {
    if ((parent.get(other) ?? null) !== own) return false;
    // Two that begin the window that is known need not begin the conversation.
    return own !== null || (other.parentRank ?? -1) === (turn.parentRank ?? -1);
  });
}

/**
 * The newest turn of those that follow on a turn, or itself.
 * @param {Turn[]} known
 * @param {Turn} turn
 */
export function newestFrom(known, turn) {
  const parent = parents(known);
  /** @param {Turn} other */
  const follows = (other) => {
    const seen = new Set();
    for (let one = /** @type {Turn|null} */ (other); one !== null && !seen.has(one); one = parent.get(one) ?? null) {
      if (one === turn) return true;
      seen.add(one);
    }
    return false;
  };
  return known.findLast(follows) ?? turn;
}
