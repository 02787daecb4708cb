/**
 * The versions of a conversation: a question may have been edited, and an answer made again. Nothing is overwritten, so
 * the turns of a conversation are a tree, of which one line at a time is on the screen (docs/protocol.md#branches).
 */

/** @import { Turn } from "./protocol.js" */

/** Where the versions of a question and its answer stand: this is number `at` of `of`. @typedef {{at: number, of: number}} Version */

/** The tree of turns that are known, in the order in which they began. Knows neither the server nor the page. */
export class Branches {
  #known;
  /** @type {Map<Turn, Turn|null>} the turn on which each one follows; null where it begins what is known */
  #parents;
  /** @type {Map<Turn|number, Turn[]>} those that follow on the same turn, or on a message of this rank */
  #versions;

  /** @param {Turn[]} known */
  constructor(known) {
    this.#known = known;
    this.#parents = parentsOf(known);
    this.#versions = Map.groupBy(known, (turn) => this.#placeOf(turn));
  }

  /** Two that begin the window that is known need not begin the conversation. @param {Turn} turn */
  #placeOf(turn) {
    return this.#parents.get(turn) ?? turn.parentRank ?? -1;
  }

  /**
   * Those that lead to a turn, which is the last of them; to the newest without one.
   * @param {string|null} tip its exchange
   * @returns {Turn[]}
   */
  line(tip) {
    const end = this.#known.find(({ exchangeId }) => exchangeId === tip) ?? this.#known.at(-1);
    return end === undefined ? [] : [...this.#ancestry(end)].reverse();
  }

  /** A turn, the one on which it follows, and so on. @param {Turn} turn */
  #ancestry(turn) {
    /** @type {Set<Turn>} */
    const line = new Set();
    for (let one = /** @type {Turn|null} */ (turn); one !== null && !line.has(one); one = this.#parents.get(one) ?? null) {
      line.add(one);
    }
    return line;
  }

  /**
   * All that follow on the same message as a turn: itself, and the other versions of it.
   * @param {Turn} turn
   * @returns {Turn[]}
   */
  versionsOf(turn) {
    return this.#versions.get(this.#placeOf(turn)) ?? [turn];
  }

  /**
   * The newest turn of those that follow on a turn, or itself.
   * @param {Turn} turn
   */
  newestFrom(turn) {
    return this.#known.findLast((other) => this.#ancestry(other).has(turn)) ?? turn;
  }
}

/** @param {Turn[]} known @returns {Map<Turn, Turn|null>} */
function parentsOf(known) {
  const byExchange = new Map(known.map((turn) => [turn.exchangeId, turn]));
  const stored = known.filter(({ rank }) => rank !== null).sort((a, b) => Number(a.rank) - Number(b.rank));
  const ranks = stored.map(({ rank }) => Number(rank));
  return new Map(
    known.map((turn, at) => {
      const behind = turn.behind === null ? undefined : byExchange.get(turn.behind);
      if (behind !== undefined) return [turn, behind];
      const before = turn.parentRank;
      // One that is not stored yet, and names no place, follows on what was there before it.
      if (before === null) return [turn, known[at - 1] ?? null];
      return [turn, stored[countUpTo(ranks, before) - 1] ?? null];
    }),
  );
}

/**
 * How many of ascending numbers are at most `most`.
 * @param {number[]} numbers
 * @param {number} most
 */
function countUpTo(numbers, most) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= most) low = middle + 1;
    else high = middle;
  }
  return low;
}
