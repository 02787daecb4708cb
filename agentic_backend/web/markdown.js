/**
 * Markdown of a model's answer, as DOM nodes.
 *
 * The text is untrusted: it may have been steered by a document that the model read. Nothing of it is ever parsed as
 * HTML, nothing of it loads by itself (an image becomes a link), and a link leads to http, https or a relative address
 * or is shown as text. Every reader is linear in its input or bounded, because a page that hangs is a failure too.
 *
 * `parse` is pure and returns plain objects; `render` makes nodes of them; `MarkdownStream` does both for a text that
 * grows, and touches only the last block. Not supported, on purpose: raw HTML, reference links, footnotes, math.
 */

/** @import { Child } from "./dom.js" */
import { copyButton, el, fill } from "./dom.js";

/**
 * What `parse` makes of a text. `depth` is how deep the children of an inline node nest.
 *
 * @typedef {{type: "text"|"code", value: string, depth: number}} Words
 * @typedef {{type: "break", depth: number}} Break
 * @typedef {{type: "em"|"strong"|"del", children: Inline[], depth: number}} Emphasis
 * @typedef {{type: "link", href: string, title: string, children: Inline[], depth: number}} Link
 * @typedef {{type: "image", href: string, title: string, alt: string, depth: number}} Image
 * @typedef {{type: "citation", value: string, numbers: number[], depth: number}} Citation
 * @typedef {Words|Break|Emphasis|Link|Image|Citation} Inline
 *
 * @typedef {{checked: boolean|null, children: Block[]}} Item
 * @typedef {{type: "list", ordered: boolean, start: number|null, loose: boolean, items: Item[]}} List
 * @typedef {{type: "table", alignments: string[], header: Inline[][], rows: Inline[][][]}} Table
 * @typedef {{type: "code", language: string, text: string}|{type: "heading", level: number, children: Inline[]}
 *   |{type: "rule"}|{type: "quote", children: Block[]}|List|Table|{type: "paragraph", children: Inline[]}} Shape
 * @typedef {Shape & {line: number}} Block with the index of its first line
 *
 * @typedef {(number: number) => Node|null} Cite the marker of a source, null where there is no source of that number
 *
 * While it reads: the marker of a list's item; a run of emphasis marks, and a bracket, of which nobody knows yet what they
 * will be; an opening run with its place in the output; the runs of backticks of one length.
 *
 * @typedef {{kind: string, ordered: boolean, start: number|null, indent: number, offset: number, empty: boolean}}
 *   Marker
 * @typedef {{canOpen: boolean, canClose: boolean}} Flanks
 * @typedef {{type: "run", char: string, length: number, original: number, depth: number} & Flanks} Run
 * @typedef {{type: "bracket", value: string, depth: number}} Bracket
 * @typedef {Inline|Run|Bracket} Token
 * @typedef {{run: Run, index: number, text: Words}} Opener
 * @typedef {{starts: number[], next: number}} Backticks
 */

const MAX_BLOCK_DEPTH = 12;
const MAX_INLINE_DEPTH = 20;
const MAX_URL_CHARS = 2048;
const MAX_TITLE_CHARS = 512;
const MAX_TABLE_COLUMNS = 64;
const MAX_PAREN_DEPTH = 32;
const MAX_ALT_CHARS = 200;

const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BULLET = /^( {0,3})([-+*]|\d{1,9}[.)])([ \t]+(?=\S)|(?=\s*$))/;
/** `[2]`, `[1, 3]`: source numbers, as the service reads them too. Not the label of a link. */
const CITATION = /\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?!\()/y;
const BARE_URL = new RegExp(`https?://[^\\s<>"'\`[\\]|]{1,${MAX_URL_CHARS}}`, "iy");
const ANGLE_URL = new RegExp(`<(https?://[^\\s<>]{1,${MAX_URL_CHARS}})>`, "iy");
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/y;
/** @type {Record<string, string>} */
const NAMED_ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/**
 * Parses a text into blocks. Each block of the top level has `line`, the index of its first line.
 * @param {string} text
 */
export function parse(text) {
  return parseBlocks(toLines(text), 0);
}

/**
 * Renders blocks as nodes.
 * @param {Block[]} blocks
 * @param {Cite} cite where there is no source of a number, what the text says stays text
 * @returns {HTMLElement[]} one node a block
 */
export function render(blocks, cite = noSource) {
  return blocks.map((block) => renderBlock(block, cite));
}

function noSource() {
  return null;
}

/**
 * The address as it may stand in a link, or null where it may not: only http, https and relative addresses, and none
 * that carries a user name (`https://bank.example@evil.example/` reads like another host).
 * @param {unknown} address
 * @param {string} base
 */
export function safeHref(address, base = document.baseURI) {
  if (typeof address !== "string" || address.length > MAX_URL_CHARS || !URL.canParse(address, base)) return null;
  const url = new URL(address, base);
  const web = url.protocol === "http:" || url.protocol === "https:";
  return web && url.username === "" && url.password === "" ? url.href : null;
}

/**
 * A link that opens elsewhere and tells that place nothing, or the plain label where the address is not allowed.
 * @param {unknown} address
 * @param {Child[]} children
 * @param {string} title
 */
export function safeLink(address, children, title = "") {
  const href = safeHref(address);
  if (href === null) return el("span", { class: "dead-link", title: "This address is not opened." }, children);
  const hover = title ? `${title}\n${href}` : href;
  const attributes = { href, title: hover, target: "_blank", rel: "noopener noreferrer nofollow" };
  return el("a", { ...attributes, referrerpolicy: "no-referrer" }, children);
}

/**
 * A block of code with its language and a copy button.
 * @param {string} code
 * @param {string} language
 */
export function codeBlock(code, language = "") {
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copyButton(() => code, "Copy code")),
    el("pre", { tabindex: "0" }, el("code", {}, code)),
  );
}

/**
 * Markdown that grows at its end, in a container of its own.
 *
 * Appended text can change the last block only, so all blocks before it are rendered once. A block counts as closed
 * when the one after it has begun with a whole line: `#` may be a heading now and `#tag`, part of the paragraph above,
 * after the next token. The result is node for node what `render(parse(text))` gives.
 */
export class MarkdownStream {
  #container;
  #text = "";
  #tailStart = 0;
  /** @type {HTMLElement[]} */
  #tailNodes = [];
  #cite;

  /**
   * @param {HTMLElement} container emptied and filled by `update`
   * @param {Cite} cite as in `render`; call `reset` when its answers change
   */
  constructor(container, cite = noSource) {
    this.#container = container;
    this.#cite = cite;
    container.replaceChildren();
  }

  /** Forgets what is shown: the next `update` renders all of its text. */
  reset() {
    this.#text = "";
    this.#container.replaceChildren();
    this.#tailStart = 0;
    this.#tailNodes = [];
  }

  /**
   * Shows `text`; cheap where it is the text of the last call with something appended.
   * @param {string} text
   */
  update(text) {
    const clean = text.replaceAll("\r", "");
    if (clean === this.#text) return;
    if (!clean.startsWith(this.#text)) this.reset();
    this.#text = clean;
    for (const node of this.#tailNodes) node.remove();
    const lines = toLines(clean.slice(this.#tailStart));
    const blocks = parseBlocks(lines, 0);
    const nodes = render(blocks, this.#cite);
    fill(this.#container, nodes);
    const open = firstOpenBlock(blocks, lines.length);
    this.#tailNodes = nodes.slice(open);
    for (let line = 0; open < blocks.length && line < blocks[open].line; line += 1) {
      this.#tailStart += lines[line].length + 1;
    }
  }
}

/** @param {Block[]} blocks @param {number} lineCount */
function firstOpenBlock(blocks, lineCount) {
  const last = blocks.length - 1;
  if (last < 1) return 0;
  return blocks[last].line < lineCount - 1 ? last : last - 1;
}

/** @param {string} text @returns {string[]} */
function toLines(text) {
  return text.replaceAll("\r", "").replaceAll("\0", "\ufffd").split("\n");
}

// ---- blocks ------------------------------------------------------------------------------------------------------

/** @param {string[]} lines @param {number} depth @returns {Block[]} */
function parseBlocks(lines, depth) {
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    blocks.push(Object.assign(block, { line: at }));
    at = next;
  }
  return blocks;
}

/**
 * Each reader returns [block, index of the line after it], or null where another kind of block stands.
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[Shape, number]}
 */
function readBlock(lines, at, depth) {
  const nested = depth < MAX_BLOCK_DEPTH;
  return (
    readFence(lines, at) ??
    readHeading(lines, at) ??
    readRule(lines, at) ??
    (nested ? readQuote(lines, at, depth) : null) ??
    (nested ? readList(lines, at, depth) : null) ??
    readIndented(lines, at) ??
    readTable(lines, at) ??
    readParagraph(lines, at)
  );
}

/** @param {string} line */
function isBlank(line) {
  return line.trim() === "";
}

/**
 * Width of the leading white space, a tab counting to the next multiple of four.
 * @param {string} line
 */
function indentOf(line) {
  let width = 0;
  for (const char of line) {
    if (char === " ") width += 1;
    else if (char === "\t") width += 4 - (width % 4);
    else break;
  }
  return width;
}

/**
 * The line without its first `width` columns of white space.
 * @param {string} line
 * @param {number} width
 */
function outdent(line, width) {
  let column = 0;
  let at = 0;
  while (at < line.length && column < width && (line[at] === " " || line[at] === "\t")) {
    column += line[at] === "\t" ? 4 - (column % 4) : 1;
    at += 1;
  }
  return " ".repeat(Math.max(0, column - width)) + line.slice(at);
}

/** @param {string} line */
function fenceOf(line) {
  const indent = indentOf(line);
  const body = line.trimStart();
  const mark = body[0];
  if (indent > 3 || (mark !== "`" && mark !== "~")) return null;
  let length = 0;
  while (body[length] === mark) length += 1;
  const info = body.slice(length).trim();
  return length < 3 || (mark === "`" && info.includes("`")) ? null : { indent, mark, length, info };
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]|null} */
function readFence(lines, at) {
  const fence = fenceOf(lines[at]);
  if (fence === null) return null;
  const body = [];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const end = fenceOf(lines[next]);
    if (end !== null && end.mark === fence.mark && end.length >= fence.length && end.info === "") {
      next += 1;
      break;
    }
    body.push(outdent(lines[next], fence.indent));
  }
  return [{ type: "code", language: fence.info.split(/\s/, 1)[0].slice(0, 40), text: body.join("\n") }, next];
}

/** @param {string} line */
function headingLevel(line) {
  if (indentOf(line) > 3) return 0;
  const body = line.trimStart();
  let level = 0;
  while (body[level] === "#") level += 1;
  const after = body[level];
  return level <= 6 && (after === undefined || after === " " || after === "\t") ? level : 0;
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]|null} */
function readHeading(lines, at) {
  const level = headingLevel(lines[at]);
  if (level === 0) return null;
  const body = lines[at].trim().slice(level).trim();
  let end = body.length;
  while (end > 0 && body[end - 1] === "#") end -= 1;
  const closed = end === 0 || body[end - 1] === " " || body[end - 1] === "\t";
  return [{ type: "heading", level, children: parseInline(closed ? body.slice(0, end).trim() : body) }, at + 1];
}

/** @param {string} line */
function isRule(line) {
  if (indentOf(line) > 3) return false;
  const marks = line.replaceAll(/[ \t]/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]|null} */
function readRule(lines, at) {
  return isRule(lines[at]) ? [{ type: "rule" }, at + 1] : null;
}

/** @param {string} line */
function isQuote(line) {
  return indentOf(line) <= 3 && line.trimStart().startsWith(">");
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Shape, number]|null} */
function readQuote(lines, at, depth) {
  const inner = [];
  let next = at;
  for (; next < lines.length && isQuote(lines[next]); next += 1) {
    const body = lines[next].trimStart().slice(1);
    inner.push(body.startsWith(" ") ? body.slice(1) : body);
  }
  return next === at ? null : [{ type: "quote", children: parseBlocks(inner, depth + 1) }, next];
}

/**
 * The list marker that a line begins with, or null. `kind` tells lists apart, `offset` is where the content begins.
 * @param {string} line
 * @returns {Marker|null}
 */
function markerOf(line) {
  const match = isRule(line) ? null : BULLET.exec(line);
  if (match === null) return null;
  const [whole, indent, mark, gap] = match;
  const ordered = mark.length > 1;
  const spaces = gap.length === 0 || gap.length > 4 ? 1 : gap.length;
  return {
    kind: mark.slice(-1),
    ordered,
    start: ordered ? Number.parseInt(mark, 10) : null,
    indent: indent.length,
    offset: indent.length + mark.length + spaces,
    empty: line.length === whole.length || isBlank(line.slice(whole.length)),
  };
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Shape, number]|null} */
function readList(lines, at, depth) {
  const first = markerOf(lines[at]);
  if (first === null) return null;
  const items = [];
  let loose = false;
  let next = at;
  while (next < lines.length) {
    const marker = markerOf(lines[next]);
    if (marker === null || marker.kind !== first.kind) break;
    const item = readItem(lines, next, marker);
    items.push(parseItem(item.lines, depth));
    const following = item.next < lines.length ? markerOf(lines[item.next]) : null;
    loose ||= item.innerGap || (item.trailingGap && following?.kind === first.kind);
    next = item.next;
  }
  return [{ type: "list", ordered: first.ordered, start: first.start, loose, items }, next];
}

/**
 * The lines of one item without their indentation, and where the next item or block begins.
 * @param {string[]} lines
 * @param {number} at
 * @param {Marker} marker
 */
function readItem(lines, at, marker) {
  const body = [outdent(lines[at].slice(Math.min(marker.offset, lines[at].length)), 0)];
  let gap = false;
  let innerGap = false;
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) {
      gap = true;
      body.push("");
      continue;
    }
    if (!belongsToItem(line, marker, gap)) break;
    innerGap ||= gap && indentOf(line) < marker.offset + 2;
    gap = false;
    body.push(outdent(line, marker.offset));
  }
  return { lines: body, next, innerGap, trailingGap: gap };
}

/** @param {string} line @param {Marker} marker @param {boolean} afterGap */
function belongsToItem(line, marker, afterGap) {
  const indent = indentOf(line);
  if (indent >= marker.offset) return true;
  const nested = markerOf(line);
  // Models indent a bullet under `1. ` by two columns where the rule wants three.
  if (nested !== null) return marker.ordered && !nested.ordered && indent >= marker.indent + 2;
  return !afterGap && !interruptsParagraph(line);
}

/** @param {string[]} lines @param {number} depth @returns {Item} */
function parseItem(lines, depth) {
  const task = /^\[([ xX])\] +(?=\S)/.exec(lines[0]);
  const body = task === null ? lines : [lines[0].slice(task[0].length), ...lines.slice(1)];
  return { checked: task === null ? null : task[1] !== " ", children: parseBlocks(body, depth + 1) };
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]|null} */
function readIndented(lines, at) {
  if (indentOf(lines[at]) < 4) return null;
  let next = at;
  while (next < lines.length && (isBlank(lines[next]) || indentOf(lines[next]) >= 4)) next += 1;
  let end = next;
  while (isBlank(lines[end - 1])) end -= 1;
  const text = lines.slice(at, end).map((line) => outdent(line, 4));
  return [{ type: "code", language: "", text: text.join("\n") }, next];
}

/**
 * The cells of a table row, split at pipes that are not escaped.
 * @param {string} line
 */
function cellsOf(line) {
  const row = line.trim();
  const cells = [];
  let cell = "";
  for (let at = row.startsWith("|") ? 1 : 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += row[at];
    }
  }
  if (cell.trim() !== "" || !row.endsWith("|")) cells.push(cell.trim());
  return cells;
}

/**
 * The alignments that a delimiter row (`|---|:-:|`) gives for the header above it, or null.
 * @param {string} header
 * @param {string|undefined} delimiter
 * @returns {string[]|null}
 */
function alignmentsOf(header, delimiter) {
  if (delimiter === undefined || !header.includes("|") || !/^[ \t|:-]+$/.test(delimiter)) return null;
  const marks = cellsOf(delimiter);
  if (marks.length > MAX_TABLE_COLUMNS || !delimiter.includes("-")) return null;
  if (marks.length !== cellsOf(header).length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  return marks.map((mark) => {
    if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "right";
    return "left";
  });
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]|null} */
function readTable(lines, at) {
  const alignments = alignmentsOf(lines[at], lines[at + 1]);
  if (alignments === null) return null;
  // Short rows are not filled up: 64 columns times many one-character rows would be a bomb.
  /** @param {string} line */
  const fit = (line) => cellsOf(line).slice(0, alignments.length).map(parseInline);
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && !isBlank(lines[next]) && !interruptsParagraph(lines[next]); next += 1) {
    rows.push(fit(lines[next]));
  }
  return [{ type: "table", alignments, header: fit(lines[at]), rows }, next];
}

/** @param {string} line */
function interruptsParagraph(line) {
  if (fenceOf(line) !== null || headingLevel(line) > 0 || isRule(line) || isQuote(line)) return true;
  const marker = markerOf(line);
  return marker !== null && !marker.empty && (!marker.ordered || marker.start === 1);
}

/** @param {string} line */
function setextLevel(line) {
  const body = indentOf(line) > 3 ? "" : line.trim();
  if (body === "") return 0;
  if (body === "=".repeat(body.length)) return 1;
  return body === "-".repeat(body.length) ? 2 : 0;
}

/** @param {string[]} lines @param {number} at @returns {[Shape, number]} */
function readParagraph(lines, at) {
  const body = [lines[at]];
  let next = at + 1;
  for (; next < lines.length && !isBlank(lines[next]); next += 1) {
    const level = setextLevel(lines[next]);
    if (level > 0) return [{ type: "heading", level, children: parseInline(joinLines(body)) }, next + 1];
    if (interruptsParagraph(lines[next]) || alignmentsOf(lines[next], lines[next + 1]) !== null) break;
    body.push(lines[next]);
  }
  return [{ type: "paragraph", children: parseInline(joinLines(body)) }, next];
}

/** @param {string[]} lines */
function joinLines(lines) {
  return lines
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
}

// ---- inline ------------------------------------------------------------------------------------------------------

/**
 * Parses the text of one paragraph. Returns nodes: {type: text|code|break|em|strong|del|link|image|citation, …}.
 * One pass makes tokens; runs of `*`, `_` and `~~` stay tokens until `resolveEmphasis` pairs them.
 * @param {string} text
 * @returns {Inline[]}
 */
function parseInline(text) {
  return new InlineReader(text).read();
}

class InlineReader {
  #text;
  #at = 0;
  /** @type {Token[]} */
  #tokens = [];
  /** @type {{image: boolean, token: number}[]} */
  #brackets = [];
  #linkFloor = 0;
  /** @type {Map<number, Backticks>|null} */
  #backticks = null;

  /** @param {string} text */
  constructor(text) {
    this.#text = text;
  }

  /** @returns {Inline[]} */
  read() {
    while (this.#at < this.#text.length) {
      if (!this.#readSpecial(this.#text[this.#at])) this.#readText();
    }
    return resolveEmphasis(this.#tokens);
  }

  /** @param {string} char */
  #readSpecial(char) {
    switch (char) {
      case "\\":
        return this.#readEscape();
      case "`":
        return this.#readCode();
      case "*":
      case "_":
      case "~":
        return this.#readRun(char);
      case "!":
        return this.#text[this.#at + 1] === "[" && this.#openBracket(true);
      case "[":
        return this.#readCitation() || this.#openBracket(false);
      case "]":
        return this.#closeBracket();
      case "<":
        return this.#readAngleUrl();
      case "&":
        return this.#readEntity();
      case "\n":
        return this.#readNewline();
      case "h":
      case "H":
        return this.#readBareUrl();
      default:
        return false;
    }
  }

  /** Plain text up to the next character that may mean something. */
  #readText() {
    const start = this.#at;
    this.#at += 1;
    while (this.#at < this.#text.length && !"\\`*_~![]<&\nhH".includes(this.#text[this.#at])) this.#at += 1;
    this.#push(this.#text.slice(start, this.#at));
  }

  /** @param {string} value @returns {true} */
  #push(value) {
    const last = this.#tokens.at(-1);
    if (last?.type === "text") last.value += value;
    else this.#tokens.push({ type: "text", value, depth: 0 });
    return true;
  }

  #readEscape() {
    const next = this.#text[this.#at + 1];
    if (next === "\n") {
      this.#at += 2;
      this.#tokens.push({ type: "break", depth: 0 });
      return true;
    }
    if (next === undefined || !ESCAPABLE.test(next)) return false;
    this.#at += 2;
    return this.#push(next);
  }

  #readNewline() {
    this.#at += 1;
    const last = this.#tokens.at(-1);
    const hard = last?.type === "text" && last.value.endsWith("  ");
    if (last?.type === "text") last.value = last.value.trimEnd();
    if (!hard) return this.#push("\n");
    this.#tokens.push({ type: "break", depth: 0 });
    return true;
  }

  #readCode() {
    const start = this.#at;
    let length = 1;
    while (this.#text[start + length] === "`") length += 1;
    this.#backticks ??= backtickRuns(this.#text);
    const runs = this.#backticks.get(length) ?? { starts: [], next: 0 };
    while (runs.starts[runs.next] <= start) runs.next += 1;
    const end = runs.starts[runs.next];
    this.#at = start + length;
    if (end === undefined) return this.#push("`".repeat(length));
    const raw = this.#text.slice(this.#at, end).replaceAll("\n", " ");
    const padded = raw.startsWith(" ") && raw.endsWith(" ") && raw.trim() !== "";
    this.#tokens.push({ type: "code", value: padded ? raw.slice(1, -1) : raw, depth: 0 });
    this.#at = end + length;
    return true;
  }

  /** @param {string} char */
  #readRun(char) {
    const start = this.#at;
    let end = start;
    while (this.#text[end] === char) end += 1;
    this.#at = end;
    const length = end - start;
    if (char === "~" && length !== 2) return this.#push(char.repeat(length));
    const before = start === 0 ? " " : previousChar(this.#text, start);
    const [after = " "] = this.#text.slice(end, end + 2); // by code points
    this.#tokens.push({ type: "run", char, length, original: length, depth: 0, ...flanks(char, before, after) });
    return true;
  }

  #readCitation() {
    CITATION.lastIndex = this.#at;
    const match = CITATION.exec(this.#text);
    if (match === null) return false;
    this.#at += match[0].length;
    const numbers = match[1].split(/[,;]/).map((number) => Number.parseInt(number, 10));
    this.#tokens.push({ type: "citation", value: match[0], numbers, depth: 0 });
    return true;
  }

  /** @param {boolean} image */
  #openBracket(image) {
    this.#brackets.push({ image, token: this.#tokens.length });
    this.#at += image ? 2 : 1;
    this.#tokens.push({ type: "bracket", value: image ? "![" : "[", depth: 0 });
    return true;
  }

  #closeBracket() {
    const opener = this.#brackets.pop();
    const height = this.#brackets.length;
    // A link holds no other link: what was opened before one can only become an image.
    const usable = opener !== undefined && (opener.image || height >= this.#linkFloor);
    this.#linkFloor = Math.min(this.#linkFloor, height);
    const target = usable ? readTarget(this.#text, this.#at + 1) : null;
    if (opener === undefined || target === null) {
      this.#at += 1;
      return this.#push("]");
    }
    this.#at = target.end;
    const children = resolveEmphasis(this.#tokens.splice(opener.token).slice(1));
    const { href, title } = target;
    if (opener.image) {
      this.#tokens.push({ type: "image", href, title, alt: plainText(children).slice(0, MAX_ALT_CHARS), depth: 0 });
    } else {
      this.#tokens.push({ type: "link", href, title, children: withoutLinks(children), depth: depthOf(children) });
      this.#linkFloor = height;
    }
    return true;
  }

  #readAngleUrl() {
    ANGLE_URL.lastIndex = this.#at;
    const match = ANGLE_URL.exec(this.#text);
    if (match === null) return false;
    this.#at += match[0].length;
    return this.#pushUrl(match[1]);
  }

  #readBareUrl() {
    const before = this.#at === 0 ? "" : this.#text[this.#at - 1];
    BARE_URL.lastIndex = this.#at;
    const match = /\w/.test(before) ? null : BARE_URL.exec(this.#text);
    if (match === null) return false;
    const url = trimUrl(match[0]);
    if (!/^https?:\/\/./i.test(url)) return false;
    this.#at += url.length;
    return this.#pushUrl(url);
  }

  /** @param {string} url */
  #pushUrl(url) {
    /** @type {Inline[]} */
    const children = [{ type: "text", value: url, depth: 0 }];
    this.#tokens.push({ type: "link", href: url, title: "", children, depth: 1 });
    return true;
  }

  #readEntity() {
    const entity = entityAt(this.#text, this.#at);
    if (entity === null) return false;
    this.#at += entity.length;
    return this.#push(entity.value);
  }
}

/**
 * Where runs of backticks begin, by their length. Made once a text, so that unpaired runs cost no second search.
 * @param {string} text
 * @returns {Map<number, Backticks>}
 */
function backtickRuns(text) {
  const runs = new Map();
  for (const match of text.matchAll(/`+/g)) {
    const known = runs.get(match[0].length);
    if (known === undefined) runs.set(match[0].length, { starts: [match.index], next: 0 });
    else known.starts.push(match.index);
  }
  return runs;
}

/** @param {string} text @param {number} at */
function previousChar(text, at) {
  const low = text.charCodeAt(at - 1);
  const pair = low >= 0xdc00 && low <= 0xdfff && at > 1;
  return pair ? text.slice(at - 2, at) : text[at - 1];
}

/**
 * Whether a run between two characters may open and close emphasis (the flanking rules of CommonMark).
 * @param {string} char
 * @param {string} before
 * @param {string} after
 */
function flanks(char, before, after) {
  const spaceBefore = SPACE.test(before);
  const spaceAfter = SPACE.test(after);
  const punctuationBefore = PUNCTUATION.test(before);
  const punctuationAfter = PUNCTUATION.test(after);
  const left = !spaceAfter && (!punctuationAfter || spaceBefore || punctuationBefore);
  const right = !spaceBefore && (!punctuationBefore || spaceAfter || punctuationAfter);
  if (char !== "_") return { canOpen: left, canClose: right };
  return { canOpen: left && (!right || punctuationBefore), canClose: right && (!left || punctuationAfter) };
}

/** @param {string} text @param {number} at */
function entityAt(text, at) {
  ENTITY.lastIndex = at;
  const match = ENTITY.exec(text);
  if (match === null) return null;
  const [whole, decimal, hexadecimal, name] = match;
  if (name !== undefined) {
    return Object.hasOwn(NAMED_ENTITIES, name) ? { length: whole.length, value: NAMED_ENTITIES[name] } : null;
  }
  const code = decimal === undefined ? Number.parseInt(hexadecimal, 16) : Number.parseInt(decimal, 10);
  const valid = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return { length: whole.length, value: valid ? String.fromCodePoint(code) : "\ufffd" };
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
 * Reads `(address "title")` at `at`: {href, title, end} or null. Escapes and entities are decoded.
 * @param {string} text
 * @param {number} at
 */
function readTarget(text, at) {
  if (text[at] !== "(") return null;
  let cursor = skipSpace(text, at + 1);
  const angle = text[cursor] === "<";
  const addressEnd = angle ? angleEnd(text, cursor + 1) : plainEnd(text, cursor);
  if (addressEnd === null) return null;
  const href = decode(text.slice(angle ? cursor + 1 : cursor, addressEnd));
  cursor = skipSpace(text, angle ? addressEnd + 1 : addressEnd);
  const title = readTitle(text, cursor);
  if (title !== null) cursor = skipSpace(text, title.end);
  return text[cursor] === ")" ? { href, title: title?.value ?? "", end: cursor + 1 } : null;
}

/** @param {string} text @param {number} at */
function skipSpace(text, at) {
  let end = at;
  while (end < at + MAX_TITLE_CHARS && (text[end] === " " || text[end] === "\n" || text[end] === "\t")) end += 1;
  return end;
}

/** @param {string} text @param {number} at */
function angleEnd(text, at) {
  for (let end = at; end < at + MAX_URL_CHARS && end < text.length; end += 1) {
    if (text[end] === ">") return end;
    if (text[end] === "\n" || text[end] === "<") return null;
  }
  return null;
}

/** @param {string} text @param {number} at */
function plainEnd(text, at) {
  let depth = 0;
  for (let end = at; end <= at + MAX_URL_CHARS && end < text.length; end += 1) {
    const char = text[end];
    if (char === "\\" && end + 1 < text.length) end += 1;
    else if (char === " " || char === "\n" || char === "\t") return end;
    else if (char === ")" && depth === 0) return end;
    else if (char === ")") depth -= 1;
    else if (char === "(" && (depth += 1) > MAX_PAREN_DEPTH) return null;
  }
  return null;
}

const CLOSES = new Map([['"', '"'], ["'", "'"], ["(", ")"]]);

/** @param {string} text @param {number} at */
function readTitle(text, at) {
  const close = CLOSES.get(text[at]);
  if (close === undefined) return null;
  for (let end = at + 1; end < at + MAX_TITLE_CHARS && end < text.length; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === close) return { value: decode(text.slice(at + 1, end)), end: end + 1 };
  }
  return null;
}

/** @param {string} raw */
function decode(raw) {
  let value = "";
  for (let at = 0; at < raw.length; at += 1) {
    const entity = raw[at] === "&" ? entityAt(raw, at) : null;
    if (entity !== null) {
      value += entity.value;
      at += entity.length - 1;
    } else if (raw[at] === "\\" && at + 1 < raw.length && ESCAPABLE.test(raw[at + 1])) {
      at += 1;
      value += raw[at];
    } else {
      value += raw[at];
    }
  }
  return value;
}

/** @param {Inline[]} nodes @returns {Inline[]} */
function withoutLinks(nodes) {
  return nodes.flatMap((node) => {
    if (node.type === "link") return node.children;
    if (node.type === "citation") return [{ type: "text", value: node.value, depth: 0 }];
    return ["children" in node ? { ...node, children: withoutLinks(node.children) } : node];
  });
}

/** @param {Inline[]} children */
function depthOf(children) {
  let depth = 0;
  for (const child of children) depth = Math.max(depth, child.depth);
  return depth + 1;
}

/**
 * Pairs the runs of emphasis marks: openers wait on a stack with their place in the output, a closer takes the nearest
 * one that fits. `bottoms` remembers below which height a kind of closer has already found nothing, so that the search
 * stays linear. A pair that would nest deeper than MAX_INLINE_DEPTH is left as text.
 * @param {Token[]} tokens
 * @returns {Inline[]}
 */
function resolveEmphasis(tokens) {
  /** @type {Inline[]} */
  const output = [];
  /** @type {Opener[]} */
  const stack = [];
  const bottoms = new Map();
  for (const token of tokens) {
    if (token.type === "run") resolveRun(token, output, stack, bottoms);
    else output.push(token.type === "bracket" ? { ...token, type: "text" } : token);
  }
  return output;
}

/** @param {Run} closer @param {Inline[]} output @param {Opener[]} stack @param {Map<string, number>} bottoms */
function resolveRun(closer, output, stack, bottoms) {
  while (closer.canClose && closer.length > 0) {
    const height = findOpener(closer, stack, bottoms);
    if (height === -1 || !wrapPair(closer, output, stack, height, bottoms)) break;
  }
  if (closer.length === 0) return;
  /** @type {Words} */
  const text = { type: "text", value: closer.char.repeat(closer.length), depth: 0 };
  if (closer.canOpen) stack.push({ run: closer, index: output.length, text });
  output.push(text);
}

/** @param {Run} closer @param {Opener[]} stack @param {Map<string, number>} bottoms */
function findOpener(closer, stack, bottoms) {
  const key = `${closer.char}${closer.canOpen}${closer.original % 3}`;
  const bottom = bottoms.get(key) ?? 0;
  for (let height = stack.length - 1; height >= bottom; height -= 1) {
    const { run } = stack[height];
    if (run.char !== closer.char) continue;
    const mixed = run.canClose || closer.canOpen;
    const clash = mixed && (run.original + closer.original) % 3 === 0 && run.original % 3 !== 0;
    if (!clash || closer.char === "~") return height;
  }
  bottoms.set(key, stack.length);
  return -1;
}

/**
 * @param {Run} closer
 * @param {Inline[]} output
 * @param {Opener[]} stack
 * @param {number} height
 * @param {Map<string, number>} bottoms
 */
function wrapPair(closer, output, stack, height, bottoms) {
  const opener = stack[height];
  const children = output.slice(opener.index + 1);
  const depth = depthOf(children);
  if (depth > MAX_INLINE_DEPTH) {
    // Every opener that still waits encloses these children too: none of them can become a pair any more.
    truncate(stack, 0, bottoms);
    return false;
  }
  const length = Math.min(opener.run.length, closer.length, 2);
  const type = closer.char === "~" ? "del" : length === 2 ? "strong" : "em";
  opener.run.length -= length;
  closer.length -= length;
  opener.text.value = opener.run.char.repeat(opener.run.length);
  const emptied = opener.run.length === 0;
  output.length = emptied ? opener.index : opener.index + 1;
  truncate(stack, emptied ? height : height + 1, bottoms);
  output.push({ type, children, depth });
  return true;
}

/** @param {Opener[]} stack @param {number} height @param {Map<string, number>} bottoms */
function truncate(stack, height, bottoms) {
  stack.length = height;
  for (const [key, bottom] of bottoms) bottoms.set(key, Math.min(bottom, height));
}

/** @param {Inline} node */
function plainTextOf(node) {
  if ("value" in node) return node.value;
  if ("alt" in node) return node.alt;
  return "children" in node ? plainText(node.children) : "";
}

/** @param {Inline[]} nodes @returns {string} */
function plainText(nodes) {
  return nodes.map(plainTextOf).join("");
}

// ---- nodes -------------------------------------------------------------------------------------------------------

/** Below the page's own headings. */
const HEADINGS = /** @type {const} */ (["h3", "h4", "h5", "h6"]);

/** @param {Shape} block @param {Cite} cite @returns {HTMLElement} */
function renderBlock(block, cite) {
  switch (block.type) {
    case "code":
      return codeBlock(block.text, block.language);
    case "heading":
      return el(HEADINGS[Math.min(block.level, HEADINGS.length) - 1], {}, renderInline(block.children, cite));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, render(block.children, cite));
    case "list":
      return renderList(block, cite);
    case "table":
      return renderTable(block, cite);
    case "paragraph":
      return el("p", {}, renderInline(block.children, cite));
  }
}

/** @param {List} list @param {Cite} cite */
function renderList(list, cite) {
  const start = list.ordered && list.start !== 1 ? list.start : null;
  return el(list.ordered ? "ol" : "ul", { start }, list.items.map((item) => renderItem(item, list.loose, cite)));
}

/** @param {Item} item @param {boolean} loose @param {Cite} cite */
function renderItem(item, loose, cite) {
  const children = item.children.flatMap((block) =>
    !loose && block.type === "paragraph" ? renderInline(block.children, cite) : [renderBlock(block, cite)],
  );
  if (item.checked === null) return el("li", {}, children);
  const box = el("input", {
    type: "checkbox",
    disabled: true,
    checked: item.checked,
    "aria-label": item.checked ? "Done" : "To do",
  });
  return el("li", { class: "task" }, box, " ", children);
}

/** @param {Table} table @param {Cite} cite */
function renderTable(table, cite) {
  /** @param {"th"|"td"} tag @returns {(nodes: Inline[], column: number) => HTMLElement} */
  const cell = (tag) => (nodes, column) =>
    el(tag, { class: `align-${table.alignments[column]}`, scope: tag === "th" ? "col" : null }, renderInline(nodes, cite));
  const head = el("thead", {}, el("tr", {}, table.header.map(cell("th"))));
  const body = el("tbody", {}, table.rows.map((row) => el("tr", {}, row.map(cell("td")))));
  const region = { class: "table", tabindex: "0", role: "group", "aria-label": "Table" };
  return el("div", region, el("table", {}, head, body));
}

/** @param {Inline[]} nodes @param {Cite} cite @returns {(Node|string)[]} */
function renderInline(nodes, cite) {
  return nodes.flatMap((node) => renderInlineNode(node, cite));
}

/** @param {Inline} node @param {Cite} cite @returns {Node|string|(Node|string)[]} */
function renderInlineNode(node, cite) {
  switch (node.type) {
    case "text":
      return node.value;
    case "code":
      return el("code", {}, node.value);
    case "break":
      return el("br");
    case "link":
      return safeLink(node.href, renderInline(node.children, cite), node.title);
    case "image":
      return renderImage(node);
    case "citation":
      return renderCitation(node, cite);
    default:
      return el(node.type, {}, renderInline(node.children, cite));
  }
}

/**
 * Markers for the numbers that are sources; a bracket that names none of them is text.
 * @param {Citation} node
 * @param {Cite} cite
 * @returns {string|Node[]}
 */
function renderCitation(node, cite) {
  const markers = node.numbers.map(cite).filter((marker) => marker !== null);
  return markers.length === 0 ? node.value : markers;
}

/**
 * An image is never fetched: its address could carry the conversation to whoever wrote the text.
 * @param {Image} node
 */
function renderImage(node) {
  return safeLink(node.href, [`Image: ${node.alt || "untitled"}`], node.title);
}
