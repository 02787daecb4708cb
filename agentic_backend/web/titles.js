/** The title of a conversation until the service has given it one. */

const MOST_CHARS = 60;

/**
 * The first line of a question, cut at a word, as the service does it.
 * @param {string} question
 */
export function titleFrom(question) {
  const line = question.trim().split("\n", 1)[0].split(/\s+/).filter(Boolean).join(" ");
  if (line.length <= MOST_CHARS) return line;
  const cut = line.slice(0, MOST_CHARS);
  const space = cut.lastIndexOf(" ");
  return `${space > 0 ? cut.slice(0, space) : cut}…`;
}
