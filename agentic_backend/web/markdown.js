/**
 * Markdown of a model's answer, as DOM nodes.
 *
 * The text is untrusted: it may have been steered by a document that the model read. Nothing of it is ever parsed as
 * HTML, nothing of it loads from another place (such an image becomes a link), and a link leads to http, https or a
 * relative address or is shown as text. Every step is linear in its input or bounded, because a page that hangs is a
 * failure too.
 *
 * `parse` is pure and returns plain objects; `render` makes nodes of them; `MarkdownStream` does both for a text that
 * grows, and touches only the last blocks. The grammar is in markdown/grammar.js.
 */

/** @import { Token } from "/web/vendor/markdown-it/markdown-it.min.js" */
import { el, fill } from "./dom.js";
import { catalogue } from "./i18n.js";
import { codeBlock } from "./markdown/code.js";
import { tokens as tokensOf } from "./markdown/grammar.js";
import { safeHref, safeLink } from "./markdown/links.js";
import { formula } from "./markdown/maths.js";
import { noteBox, noteMarker, Notes } from "./markdown/notes.js";

export { codeBlock, safeHref, safeLink };

/**
 * @typedef {{line: number, tokens: Token[]}} Block of the top level, with the index of its first line
 * @typedef {(number: number) => Node|null} Cite the marker of a source, null where there is no source of that number
 */

const t = catalogue({
  en: { table: "Table", done: "Done", open: "To do", image: "Image: {alt}", untitled: "untitled" },
  fr: { table: "Tableau", done: "Fait", open: "À faire", image: "Image : {alt}", untitled: "sans titre" },
});

const MAX_INLINE_DEPTH = 20;
const MAX_ALT_CHARS = 200;
/** Below the page's own headings. */
const HEADINGS = /** @type {const} */ (["h3", "h4", "h5", "h6"]);
const TASK = /^\[([ xX])\] +(?=\S)/;
const IMAGE = /\.(?:png|jpe?g|gif|webp|avif|svg)$/i;

/**
 * Parses a text into blocks.
 * @param {string} text
 * @returns {Block[]}
 */
export function parse(text) {
  /** @type {Block[]} */
  const blocks = [];
  let depth = 0;
  for (const token of tokensOf(text.replaceAll("\r", ""))) {
    if (depth === 0) blocks.push({ line: token.map?.[0] ?? 0, tokens: [] });
    blocks[blocks.length - 1].tokens.push(token);
    depth += token.nesting;
  }
  return blocks;
}

/**
 * Renders blocks as nodes.
 * @param {Block[]} blocks
 * @param {Cite} cite where there is no source of a number, what the text says stays text
 * @returns {HTMLElement[]} one node a block
 */
export function render(blocks, cite = noSource) {
  const nodes = blocks.map((block) => renderBlock(block, cite));
  const notes = new Notes();
  for (const node of nodes) notes.add(node);
  return nodes;
}

function noSource() {
  return null;
}

/** @param {Block} block @param {Cite} cite @returns {HTMLElement} */
function renderBlock(block, cite) {
  return new Renderer(cite).render(block.tokens);
}

/**
 * Markdown that grows at its end, in a container of its own.
 *
 * Appended text can change the last block and, while that one has no two whole lines, the block before it (`#` may be
 * a heading now and `#tag`, part of the paragraph above, after the next token): all before them are parsed once. Of
 * those, only what has changed is rendered again. The result is node for node what `render(parse(text))` gives.
 */
export class MarkdownStream {
  #container;
  #text = "";
  #tailStart = 0;
  /** @type {{text: string, node: HTMLElement}[]} the blocks that may still change */
  #tail = [];
  #notes = new Notes();
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
    this.#tail = [];
    this.#notes = new Notes();
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
    const tail = clean.slice(this.#tailStart);
    const blocks = parse(tail);
    const starts = lineStarts(tail, blocks.map(({ line }) => line));
    const texts = starts.map((start, at) => tail.slice(start, starts[at + 1]));
    let same = 0;
    while (same < this.#tail.length && this.#tail[same].text === texts[same]) same += 1;
    const fresh = blocks.slice(same).map((block) => renderBlock(block, this.#cite));
    for (const node of fresh) this.#notes.add(node);
    for (const { node } of this.#tail.slice(same)) {
      this.#notes.remove(node);
      node.remove();
    }
    fill(this.#container, fresh);
    const shown = [...this.#tail.slice(0, same).map(({ node }) => node), ...fresh];
    const open = firstOpen(tail, starts);
    this.#tail = shown.slice(open).map((node, at) => ({ text: texts[open + at], node }));
    this.#tailStart += starts[open] ?? 0;
  }
}

/**
 * Where lines begin, of which the numbers are given in ascending order.
 * @param {string} text
 * @param {number[]} lines
 */
function lineStarts(text, lines) {
  let line = 0;
  let start = 0;
  return lines.map((wanted) => {
    for (; line < wanted; line += 1) start = text.indexOf("\n", start) + 1;
    return start;
  });
}

/** @param {string} text @param {number[]} starts */
function firstOpen(text, starts) {
  const last = starts.length - 1;
  if (last < 1) return 0;
  const secondLine = text.indexOf("\n", starts[last]) + 1;
  const settled = secondLine > 0 && text.includes("\n", secondLine);
  return settled ? last : last - 1;
}

// ---- nodes -------------------------------------------------------------------------------------------------------

/** What stands open while tokens are read: the node that takes what comes, and what is to be said of it. */
class Renderer {
  #cite;
  /** @type {Element[]} */
  #open = [];
  /** @type {Element[]} */
  #texts = [];
  #inLink = 0;
  #emphasis = 0;
  /** @type {string} of the task whose first words are still to come */
  #taskMark = "";

  /** @param {Cite} cite */
  constructor(cite) {
    this.#cite = cite;
  }

  /** @param {Token[]} tokens of one block */
  render(tokens) {
    const root = el("div");
    this.#open = [root];
    for (const [at, token] of tokens.entries()) this.#block(token, tokens, at);
    // Only now: with each child that is added a browser looks through all of them for the direction.
    for (const node of this.#texts.reverse()) node.setAttribute("dir", "auto");
    return /** @type {HTMLElement} */ (root.firstElementChild ?? el("p"));
  }

  /** @param {Node|string} node */
  #add(node) {
    this.#open[this.#open.length - 1].append(node);
  }

  /** @param {Element} node @param {Element} inner the part of it that takes what comes */
  #enter(node, inner = node) {
    this.#add(node);
    this.#open.push(inner);
  }

  /** @param {Token} token @param {Token[]} tokens @param {number} at */
  #block(token, tokens, at) {
    if (token.type === "inline") this.#inline(token.children ?? []);
    else if (token.nesting === 0) this.#add(leaf(token));
    // A paragraph of a list without gaps is hidden: its words stand in the item itself.
    else if (token.nesting === 1 && !token.hidden) this.#openBlock(token, tokens, at);
    else if (!token.hidden) this.#open.pop();
  }

  /** @param {Token} token @param {Token[]} tokens @param {number} at */
  #openBlock(token, tokens, at) {
    switch (token.type) {
      case "heading_open":
        return this.#enterText(el(HEADINGS[Math.min(Number(token.tag[1]), HEADINGS.length) - 1]));
      case "ordered_list_open":
        return this.#enterText(el("ol", { start: token.attrGet("start") }));
      case "bullet_list_open":
        return this.#enterText(el("ul"));
      case "list_item_open":
        return this.#enter(this.#item(tokens, at));
      case "blockquote_open":
        return this.#enter(el("blockquote"));
      case "table_open":
        return this.#table();
      case "thead_open":
      case "tbody_open":
      case "tr_open":
        return this.#enter(el(/** @type {"tr"} */ (token.tag)));
      case "th_open":
      case "td_open":
        return this.#enterText(cell(token));
      case "note_open":
        return this.#enter(...noteBox(token.info));
      default:
        return this.#inItem() ? this.#enter(el("p")) : this.#enterText(el("p"));
    }
  }

  /** A list has one direction, that of its first item, for its marks stand on one side. */
  #inItem() {
    return this.#open[this.#open.length - 1].localName === "li";
  }

  /** A block whose direction is that of its text. @param {Element} node */
  #enterText(node) {
    this.#texts.push(node);
    this.#enter(node);
  }

  /** @param {Token[]} tokens @param {number} at */
  #item(tokens, at) {
    const task = tokens[at + 1]?.type === "paragraph_open" ? TASK.exec(tokens[at + 2].content) : null;
    if (task === null) return el("li");
    const checked = task[1] !== " ";
    const box = { type: "checkbox", disabled: true, checked, "aria-label": t(checked ? "done" : "open") };
    this.#taskMark = task[0];
    return el("li", { class: "task" }, el("input", box), " ");
  }

  #table() {
    const table = el("table");
    this.#enter(el("div", { class: "table", tabindex: "0", role: "group", "aria-label": t("table") }, table), table);
  }

  /** @param {Token[]} tokens */
  #inline(tokens) {
    const depth = this.#open.length;
    for (const token of tokens) {
      if (token.nesting === 0) this.#word(token);
      else if (token.type.startsWith("link_")) this.#link(token);
      else this.#emphasise(token);
    }
    this.#open.length = depth;
    this.#inLink = 0;
    this.#emphasis = 0;
  }

  /** @param {Token} token */
  #link(token) {
    this.#inLink += token.nesting;
    if (token.nesting === 1) this.#enter(safeLink(token.attrGet("href") ?? "", [], token.attrGet("title") ?? ""));
    else this.#open.pop();
  }

  /** What would nest deeper than an engine bears is left as text. @param {Token} token */
  #emphasise(token) {
    if (token.nesting === -1) this.#emphasis -= 1;
    if (this.#emphasis >= MAX_INLINE_DEPTH) this.#add(token.markup);
    else if (token.nesting === 1) this.#enter(el(token.tag === "s" ? "del" : /** @type {"em"|"strong"} */ (token.tag)));
    else this.#open.pop();
    if (token.nesting === 1) this.#emphasis += 1;
  }

  /** @param {Token} token */
  #word(token) {
    switch (token.type) {
      case "code_inline":
        return this.#add(el("code", {}, token.content));
      case "softbreak":
        return this.#add("\n");
      case "hardbreak":
        return this.#add(el("br"));
      case "image":
        return this.#add(image(token, this.#inLink > 0));
      case "maths":
        return this.#add(formula(token.content, token.markup, token.info === "display"));
      case "note_marker":
        return this.#add(noteMarker(token.info));
      case "citation":
        return this.#citation(token);
      default:
        return this.#add(this.#withoutTask(token.content));
    }
  }

  /** Markers for the numbers that are sources; a bracket that names none of them is text. @param {Token} token */
  #citation(token) {
    const numbers = token.info.split(/[,;]/).map((number) => Number.parseInt(number, 10));
    const markers = numbers.map(this.#cite).filter((marker) => marker !== null);
    for (const marker of markers) this.#add(marker);
    if (markers.length === 0) this.#add(token.content);
  }

  /** @param {string} text */
  #withoutTask(text) {
    const mark = this.#taskMark;
    this.#taskMark = "";
    return mark !== "" && text.startsWith(mark.trimEnd()) ? text.slice(mark.length) : text;
  }
}

/** A block that holds no other. @param {Token} token @returns {HTMLElement} */
function leaf(token) {
  switch (token.type) {
    case "fence":
      return codeBlock(withoutEnd(token.content), token.info.trim().split(/\s/, 1)[0].slice(0, 40), isClosed(token));
    case "code_block":
      return codeBlock(withoutEnd(token.content));
    case "hr":
      return el("hr");
    case "maths_block":
      return el("p", { class: "formula" }, formula(token.content, token.markup.replace(" ", token.content), true));
    default:
      return el("p", { class: "plain", dir: "auto" }, token.content);
  }
}

/** @param {string} code */
function withoutEnd(code) {
  return code.endsWith("\n") ? code.slice(0, -1) : code;
}

/** Whether the text has the line that ends a block of code: it counts the two lines around it. @param {Token} token */
function isClosed(token) {
  const [from, to] = token.map ?? [0, 0];
  const lines = token.content === "" ? 0 : withoutEnd(token.content).split("\n").length;
  return to - from >= lines + 2;
}

/** @param {Token} token */
function cell(token) {
  const alignment = /(center|right)$/.exec(token.attrGet("style") ?? "")?.[0] ?? "left";
  const scope = token.tag === "th" ? "col" : null;
  return el(/** @type {"td"} */ (token.tag), { class: `align-${alignment}`, scope });
}

/**
 * An image that this service serves as a file. Any other is never fetched: its address could carry the conversation to
 * whoever wrote the text, and one of the interface would ask it for something. Nor is a relative one: it means a place
 * beside the document that the model read, not beside this page.
 * @param {Token} token
 * @param {boolean} inLink
 * @returns {Node|string}
 */
function image(token, inLink) {
  const address = token.attrGet("src") ?? "";
  const title = token.attrGet("title") ?? "";
  const alt = plainText(token.children ?? []).slice(0, MAX_ALT_CHARS);
  const absolute = address.startsWith("/") || /^https?:/i.test(address);
  const href = absolute ? safeHref(address) : null;
  if (href !== null) {
    const { origin, pathname, search } = new URL(href);
    const own = origin === location.origin && search === "" && IMAGE.test(pathname);
    if (own) return el("img", { src: pathname, alt: alt || t("untitled"), title: title || null, loading: "lazy" });
  }
  const label = t("image", { alt: alt || t("untitled") });
  return inLink ? label : safeLink(address, [label], title);
}

/** @param {Token[]} tokens @returns {string} */
function plainText(tokens) {
  return tokens.map((token) => (token.type === "image" ? plainText(token.children ?? []) : token.content)).join("");
}
