/**
 * Which sentences of a passage a claim rests on, told by the words that they share, whatever the language: words are
 * compared without accents and endings, numbers count most, and what stands in every sentence counts least.
 */

/**
 * @typedef {{from: number, to: number}} Span from the one to before the other, in UTF-16 units
 * @typedef {{word: string} & Span} Word as it is compared
 * @typedef {{at: number, common: string[], alike: number}} Candidate a sentence, the words it shares, and how alike it is
 * @typedef {Map<string, Set<string>>} Bag the forms of words, by what they are compared by
 */

/** How alike a sentence and a claim must be, 0 to 1, for the one to be what the other rests on. */
const ALIKE = 0.36;
/** The same where a number and other words are shared: so it is where the two are in different languages. */
const ALIKE_BY_NUMBER = 0.24;
const LEAST_BY_NUMBER = 3;
/** The share of the claim that a further sentence must add to those chosen already. */
const GAIN = 0.22;
const MOST_SENTENCES = 3;
/** What is left of a long word without its ending, in scripts that have some. */
const STEM_CHARS = 5;
const STEMMED = /^[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}]+$/u;
const NUMBER = /^\p{N}/u;
const WORD = /[\p{L}\p{N}]+(?:[.,'’][\p{L}\p{N}]+)*/gu;
const SENTENCE = /[^.!?…。！？]+(?:[.!?…。！？]+["'»”’)\]]*\s*|$)|[.!?…。！？]+\s*/gu;
/** Another form of a word is a weaker sign than the word. */
const OTHER_FORM = 0.85;
/** After these a dot does not end a sentence. */
const ABBREVIATIONS = new Set(
  "abb abs art bzw ca cf chap dr ed etc ex fig inkl max min mme mr mrs nr no núm p pp prof resp sec st usw vgl vol vs".split(" "),
);

const sentences = segmenter("sentence");
const words = segmenter("word");

/** Not every browser has one. @param {"sentence"|"word"} granularity */
function segmenter(granularity) {
  return "Segmenter" in Intl ? new Intl.Segmenter("und", { granularity }) : null;
}

/**
 * The sentences of a text, without the space between them.
 * @param {string} text
 * @returns {Span[]}
 */
export function sentencesIn(text) {
  /** @type {Span[]} */
  const found = [];
  let at = 0;
  for (const whole of partsOf(text)) {
    const last = found.at(-1);
    // « Vraiment ? » is closed behind a space.
    const closing = last === undefined ? "" : (/^[»”]\s+/u.exec(whole)?.[0] ?? "");
    if (last !== undefined && closing !== "") last.to = at + 1;
    at += closing.length;
    const part = whole.slice(closing.length);
    const end = at + part.trimEnd().length;
    if (last !== undefined && goesOn(text.slice(last.from, last.to), part)) last.to = end;
    else if (part.trim() !== "") found.push({ from: at + part.length - part.trimStart().length, to: end });
    at += part.length;
  }
  return found;
}

/** @param {string} text */
function partsOf(text) {
  if (sentences === null) return [...text.matchAll(SENTENCE)].map(([part]) => part);
  return [...sentences.segment(text)].map(({ segment }) => segment);
}

/**
 * Whether what was taken for a sentence is only the beginning of one: "z. B.", "M. Dupont", "Art. 12".
 * @param {string} before
 * @param {string} after
 */
function goesOn(before, after) {
  const ending = /(?:^|[^\p{L}\p{N}])(\p{L}{1,4})\.$/u.exec(before.slice(-8));
  if (ending === null) return false;
  const [, word] = ending;
  return [...word].length === 1 || ABBREVIATIONS.has(word.toLowerCase()) || /^\s*\p{Ll}/u.test(after);
}

/**
 * The words of a text.
 * @param {string} text
 * @returns {Word[]}
 */
export function wordsIn(text) {
  if (words === null) {
    return [...text.matchAll(WORD)].map(({ 0: word, index }) => ({ word: plain(word), from: index, to: index + word.length }));
  }
  return [...words.segment(text)]
    .filter(({ isWordLike }) => isWordLike)
    .map(({ segment, index }) => ({ word: plain(segment), from: index, to: index + segment.length }));
}

/** @param {string} word */
function plain(word) {
  const bare = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replaceAll("ß", "ss").replaceAll("’", "'");
  // « l'archive » and "archive" are one word; 3,5 and 3.5 one number.
  return NUMBER.test(bare) ? bare.replaceAll(",", ".") : (bare.split("'").findLast((part) => part.length > 1) ?? bare);
}

/** @param {string} word */
function keyOf(word) {
  return STEMMED.test(word) ? word.slice(0, STEM_CHARS) : word;
}

/** @param {string} text @returns {Bag} */
function bagOf(text) {
  /** @type {Bag} */
  const bag = new Map();
  for (const { word } of wordsIn(text)) {
    const key = keyOf(word);
    const forms = bag.get(key);
    if (forms === undefined) bag.set(key, new Set([word]));
    else forms.add(word);
  }
  return bag;
}

/**
 * The indices of the sentences of a passage that support a claim best, in their order; [] where none is alike enough.
 * Of two that are equally alike it is the first.
 * @param {string[]} passage its sentences
 * @param {string} claim
 * @returns {number[]}
 */
export function supporting(passage, claim) {
  const wanted = bagOf(claim);
  const bags = passage.map(bagOf);
  const weigh = weights(bags);
  const whole = sum([...wanted.keys()], weigh);
  /** @type {Candidate[]} */
  const candidates = bags.map((bag, at) => {
    const common = [...bag.keys()].filter((key) => wanted.has(key));
    const weight = sum(common, (key) => weigh(key) * (meets(bag.get(key), wanted.get(key)) ? 1 : OTHER_FORM));
    const own = sum([...bag.keys()], weigh);
    return { at, common, alike: own === 0 || whole === 0 ? 0 : weight / Math.sqrt(own * whole) };
  });
  const best = highest(candidates, ({ alike }) => alike);
  if (best === undefined || !supports(best)) return [];
  const chosen = [best];
  const covered = new Set(best.common);
  /** @param {Candidate} candidate */
  const gain = ({ common }) => sum(common.filter((key) => !covered.has(key)), weigh) / whole;
  while (chosen.length < MOST_SENTENCES) {
    const next = highest(candidates, gain);
    if (next === undefined || gain(next) < GAIN || next.alike < ALIKE) break;
    chosen.push(next);
    for (const key of next.common) covered.add(key);
  }
  return chosen.map(({ at }) => at).sort((a, b) => a - b);
}

/** @param {Candidate} candidate */
function supports({ common, alike }) {
  if (common.length >= LEAST_BY_NUMBER && common.some((key) => NUMBER.test(key))) return alike >= ALIKE_BY_NUMBER;
  // One word in common, however rare, is no support, unless it is all that is said.
  return alike >= (common.length < 2 ? 2 * ALIKE : ALIKE);
}

/**
 * The first of those that measure most; undefined where there are none.
 * @template T
 * @param {T[]} some
 * @param {(one: T) => number} measure
 * @returns {T|undefined}
 */
function highest(some, measure) {
  let best = some[0];
  for (const one of some) if (measure(one) > measure(best) + Number.EPSILON) best = one;
  return best;
}

/** @param {Set<string>|undefined} some @param {Set<string>|undefined} others */
function meets(some = new Set(), others = new Set()) {
  return [...some].some((form) => others.has(form));
}

/** @param {string[]} keys @param {(key: string) => number} weigh */
function sum(keys, weigh) {
  return keys.reduce((total, key) => total + weigh(key), 0);
}

/**
 * What a word says: the less the more sentences have it, and little where it is short, as articles are.
 * @param {Bag[]} bags
 */
function weights(bags) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const bag of bags) for (const key of bag.keys()) counts.set(key, (counts.get(key) ?? 0) + 1);
  /** @param {string} key */
  return (key) => Math.log(1 + bags.length / (counts.get(key) ?? 1)) * substance(key);
}

/** @param {string} key */
function substance(key) {
  if (NUMBER.test(key)) return 2;
  if (!STEMMED.test(key) || key.length > 3) return 1;
  return key.length === 3 ? 0.3 : 0.15;
}
