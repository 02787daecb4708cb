/**
 * The grammar of answers: CommonMark with tables and strikethrough by markdown-it, and what we add to it: markers of
 * sources, bare addresses, footnotes and maths. It only makes tokens; markdown.js makes nodes of them.
 *
 * Left out: raw HTML, which stays text, and reference links: `[1]` is a source here, and a definition further down would
 * change what has been shown. A text that grows changes its last block only, so no rule looks beyond its own block.
 */

/** @import { Token, StateBlock, StateInline, MarkdownIt } from "/web/vendor/markdown-it/markdown-it.min.js" */
import "/web/vendor/markdown-it/markdown-it.min.js";
import { MAX_URL_CHARS } from "./links.js";

/** Deeper nesting is shown as text: the engine's own bound would leave it out. */
const MAX_BLOCK_LEVEL = 24;
const MAX_NESTING = 30;
const MAX_MATHS_CHARS = 4000;
const MAX_LABEL_CHARS = 40;

/** `[2]`, `[1, 3]`: source numbers, as the service reads them too. Not the label of a link. */
const CITATION = /\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?!\()/y;
const NOTE = new RegExp(`\\[\\^([^\\s[\\]]{1,${MAX_LABEL_CHARS}})\\](?!\\()`, "y");
const NOTE_TEXT = new RegExp(`^\\[\\^([^\\s[\\]]{1,${MAX_LABEL_CHARS}})\\]:[ \\t]*`);
const BARE_URL = new RegExp(`https?://[^\\s<>"'\`[\\]|]{1,${MAX_URL_CHARS}}`, "iy");
/** What says that text between two dollar signs is a formula although it has words in it. */
const FORMULA = /[\\^_={}<>+|]/;

const markdown = engine();

/** @returns {MarkdownIt} */
function engine() {
  const made = globalThis.markdownit({ html: false, linkify: false, typographer: false, maxNesting: MAX_NESTING });
  // Addresses are judged where links are made, and shown as they are written.
  made.validateLink = () => true;
  made.normalizeLink = (url) => url;
  made.normalizeLinkText = (url) => url;
  made.disable(["reference", "html_block", "html_inline"]);
  made.block.ruler.before("table", "deep", deep);
  made.block.ruler.before("fence", "maths_block", mathsBlock, { alt: ["paragraph", "blockquote", "list"] });
  made.block.ruler.before("fence", "note", note, { alt: ["paragraph", "blockquote", "list"] });
  made.inline.ruler.before("escape", "maths", maths);
  made.inline.ruler.before("link", "citation", citation);
  made.inline.ruler.before("link", "note_marker", noteMarker);
  made.inline.ruler.before("escape", "bare_url", bareUrl);
  return made;
}

/**
 * The tokens of a text; those of the top level say in `map` which lines they are made of.
 * @param {string} text without carriage returns
 * @returns {Token[]}
 */
export function tokens(text) {
  return markdown.parse(text, {});
}

// ---- blocks ------------------------------------------------------------------------------------------------------

/** @param {StateBlock} state @param {number} line */
function lineOf(state, line) {
  return state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
}

/** @param {StateBlock} state @param {number} line */
function isIndented(state, line) {
  return state.sCount[line] - state.blkIndent >= 4;
}

/** @param {StateBlock} state @param {number} start @param {number} end @param {boolean} silent */
function deep(state, start, end, silent) {
  if (state.level < MAX_BLOCK_LEVEL || silent) return false;
  let next = start + 1;
  while (next < end && !state.isEmpty(next) && state.sCount[next] >= state.blkIndent) next += 1;
  state.push("paragraph_open", "p", 1).map = [start, next];
  const inline = state.push("inline", "", 0);
  inline.content = state.getLines(start, next, state.blkIndent, false).trim();
  inline.map = [start, next];
  inline.children = [];
  state.push("paragraph_close", "p", -1);
  state.line = next;
  return true;
}

/**
 * A formula on lines of its own: `$$` or `\[` alone, to the line that closes it, or all on one line. An empty line ends it
 * too: one that is not closed is shown as it is written, and swallows no more than its own lines.
 * @param {StateBlock} state
 * @param {number} start
 * @param {number} end
 * @param {boolean} silent
 */
function mathsBlock(state, start, end, silent) {
  if (isIndented(state, start)) return false;
  const first = lineOf(state, start).trim();
  const close = first.startsWith("$$") ? "$$" : first.startsWith("\\[") ? "\\]" : null;
  if (close === null) return false;
  const inOne = first.length > 4 && first.indexOf(close, 2) === first.length - 2;
  if (first.length > 2 && !inOne) return false;
  if (silent) return true;
  const lines = [first.slice(2, inOne ? -2 : undefined)];
  let closed = inOne;
  let next = start + 1;
  for (; !closed && next < end && !state.isEmpty(next) && state.sCount[next] >= state.blkIndent; next += 1) {
    const line = lineOf(state, next).trimEnd();
    closed = line.endsWith(close);
    lines.push(closed ? line.slice(0, -2) : line);
  }
  const content = lines.join("\n").trim();
  const token = state.push(closed && content !== "" ? "maths_block" : "source", "", 0);
  token.content = token.type === "source" ? state.getLines(start, next, state.blkIndent, false).trim() : content;
  token.markup = `${first.slice(0, 2)} ${close}`;
  token.map = [start, next];
  state.line = next;
  return true;
}

/**
 * The text of a footnote, `[^name]: …`, with the indented lines below it. Only at the top level: it holds no other.
 * @param {StateBlock} state
 * @param {number} start
 * @param {number} end
 * @param {boolean} silent
 */
function note(state, start, end, silent) {
  if (state.level > 0 || state.env.inNote || isIndented(state, start)) return false;
  const match = NOTE_TEXT.exec(lineOf(state, start));
  if (match === null) return false;
  if (silent) return true;
  let next = start + 1;
  for (let ahead = next; ahead < end; ahead += 1) {
    if (state.isEmpty(ahead)) continue;
    const joined = ahead === next && !interrupts(state, ahead, end);
    if (!joined && state.sCount[ahead] < 4) break;
    next = ahead + 1;
  }
  const below = state.getLines(start + 1, next, 4, false);
  state.push("note_open", "", 1).map = [start, next];
  state.tokens[state.tokens.length - 1].info = match[1];
  const text = `${lineOf(state, start).slice(match[0].length)}\n${below}`;
  state.md.block.parse(text, state.md, Object.assign(state.env, { inNote: true }), state.tokens);
  state.env.inNote = false;
  state.push("note_close", "", -1);
  state.line = next;
  return true;
}

/** @param {StateBlock} state @param {number} line @param {number} end */
function interrupts(state, line, end) {
  return state.md.block.ruler.getRules("paragraph").some((rule) => rule(state, line, end, true));
}

// ---- in a line ---------------------------------------------------------------------------------------------------

/**
 * The markers of sources and notes are text within a link, which is why they are not seen while its end is looked for.
 * @param {StateInline} state
 * @param {boolean} silent
 */
function citation(state, silent) {
  return marker(state, silent, CITATION, "citation");
}

/** @param {StateInline} state @param {boolean} silent */
function noteMarker(state, silent) {
  return marker(state, silent, NOTE, "note_marker");
}

/** @param {StateInline} state @param {boolean} silent @param {RegExp} pattern @param {string} type */
function marker(state, silent, pattern, type) {
  if (silent || state.linkLevel > 0 || state.src[state.pos] !== "[") return false;
  const match = matchAt(pattern, state);
  if (match === null) return false;
  const token = state.push(type, "", 0);
  token.content = match[0];
  token.info = match[1];
  state.pos += match[0].length;
  return true;
}

/** @param {RegExp} pattern @param {StateInline} state */
function matchAt(pattern, state, at = state.pos) {
  const sticky = pattern;
  sticky.lastIndex = at;
  const match = sticky.exec(state.src);
  return match === null || at + match[0].length > state.posMax ? null : match;
}

/**
 * An address in the text, from its colon on: what stands before it is taken back.
 * @param {StateInline} state
 * @param {boolean} silent
 */
function bareUrl(state, silent) {
  if (state.src[state.pos] !== ":" || state.linkLevel > 0) return false;
  const scheme = /https?$/i.exec(state.src.slice(Math.max(0, state.pos - 5), state.pos))?.[0];
  if (scheme === undefined) return false;
  const start = state.pos - scheme.length;
  if (/\w/.test(state.src[start - 1] ?? " ")) return false;
  BARE_URL.lastIndex = start;
  const url = trimUrl((BARE_URL.exec(state.src)?.[0] ?? "").slice(0, state.posMax - start));
  if (!/^https?:\/\/./i.test(url)) return false;
  if (!silent) {
    if (!state.pending.endsWith(scheme)) return false;
    state.pending = state.pending.slice(0, -scheme.length);
    state.push("link_open", "a", 1).attrs = [["href", url]];
    state.push("text", "", 0).content = url;
    state.push("link_close", "a", -1);
  }
  state.pos = start + url.length;
  return true;
}

/**
 * Address without the punctuation of the sentence around it, and without a parenthesis that it did not open.
 * @param {string} url
 */
function trimUrl(url) {
  let end = url.length;
  let open = 0;
  for (const char of url) open += Number(char === "(") - Number(char === ")");
  while (end > 0) {
    const last = url[end - 1];
    if (last === ")" && open < 0) open += 1;
    else if (!".,;:!?*_~".includes(last)) break;
    end -= 1;
  }
  return url.slice(0, end);
}

/**
 * A formula in a line: `\(…\)`, `\[…\]`, `$$…$$` and `$…$`.
 * @param {StateInline} state
 * @param {boolean} silent
 */
function maths(state, silent) {
  const { src, pos } = state;
  const two = src.slice(pos, pos + 2);
  const found = two === "\\(" ? between(state, "\\)") : two === "\\[" ? between(state, "\\]") : dollars(state, two);
  // `\[1\]` is an escaped bracket more often than it is a formula.
  if (found === null || (two === "\\[" && !FORMULA.test(found.content))) return false;
  if (!silent) {
    const token = state.push("maths", "", 0);
    token.content = found.content.trim();
    token.markup = src.slice(pos, found.end);
    token.info = two === "$$" || two === "\\[" ? "display" : "";
  }
  state.pos = found.end;
  return true;
}

/** @param {StateInline} state @param {string} close */
function between({ src, pos, posMax }, close) {
  const ahead = src.slice(pos + 2, Math.min(posMax, pos + MAX_MATHS_CHARS));
  const length = ahead.indexOf(close);
  const content = ahead.slice(0, Math.max(0, length));
  return content.trim() === "" ? null : { content, end: pos + 4 + length };
}

/** @param {StateInline} state @param {string} two */
function dollars(state, two) {
  if (two[0] !== "$") return null;
  if (two === "$$") return between(state, "$$");
  const { src, pos, posMax } = state;
  const ahead = src.slice(pos + 1, Math.min(posMax, pos + MAX_MATHS_CHARS));
  const content = /^(?:[^$\\]|\\[^])*/.exec(ahead)?.[0] ?? "";
  const end = pos + 2 + content.length;
  const after = ahead.slice(content.length);
  // Prices and variables of shells are no formulas: `$5 and $10`, `$HOME/$USER`.
  const inside = after[0] === "$" && /^\S(?:[^]*\S)?$/.test(content) && !/^\$[\w$]/.test(after);
  const words = /\s/.test(content) && /\p{L}{2}/u.test(content) && !FORMULA.test(content);
  return inside && !words && !/[\w$]/.test(src[pos - 1] ?? " ") ? { content, end } : null;
}
