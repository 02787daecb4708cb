/** The title of a conversation until the service has given it one. */

const MOST_CHARS = 60;
const SENTENCE_CHARS = 15;
const SENTENCE_ENDS = [". ", "? ", "! "];

/**
 * The first line of a question; of a long one its first sentence, or it is cut at a word. As the service does it.
 * @param {string} question
 */
export function titleFrom(question) {
  const line = question.trim().split("\n", 1)[0].split(/\s+/).filter(Boolean).join(" ");
  if (line.length <= MOST_CHARS) return line;
  const cut = line.slice(0, MOST_CHARS);
  const ends = SENTENCE_ENDS.map((end) => cut.indexOf(end, SENTENCE_CHARS)).filter((at) => at >= 0);
  if (ends.length > 0) return line.slice(0, Math.min(...ends) + 1);
  const space = cut.lastIndexOf(" ");
  return `${space > 0 ? cut.slice(0, space) : cut}…`;
}
