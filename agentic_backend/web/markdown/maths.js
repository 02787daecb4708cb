/**
 * Formulas as MathML by Temml, which is fetched with the first formula; until then, and where it finds a mistake, the
 * formula stands there as it was written. The tree that Temml makes is not trusted: nodes are made here, of the elements,
 * attributes and styles that formulas need.
 */

import { el } from "../dom.js";
import { whenIdle } from "./idle.js";

/**
 * @typedef {{type?: string, text?: string, attributes?: Record<string, unknown>, classes?: string[],
 *   style?: Record<string, unknown>, children?: Tree[]}} Tree
 * @typedef {{node: HTMLElement, source: string, display: boolean}} Waiting
 * @typedef {{__renderToMathMLTree: (source: string, options: object) => Tree}} Engine
 */

const MATHML = "http://www.w3.org/1998/Math/MathML";
/** A text, so that the types of the module are not those of its whole source. */
const ENGINE = "/web/vendor/temml/temml.mjs";
const MAX_CHARS = 1500;
const MAX_NODES = 4000;
const SLICE_MS = 8;
const MAX_DEPTH = 60;
const MAX_KEPT = 300;
/** Without `trust`, what leads elsewhere is refused; sizes are bounded in em and points, macros by their number. */
const LIMITS = { throwOnError: true, trust: false, strict: false, maxSize: [20, 200], maxExpand: 200 };

/** A few custom macros can expand to a text of any length; answers have no use for them. */
const DEFINES = /\\(?:[gex]?def|let|futurelet|global|long|(?:new|renew|provide)command|DeclareMathOperator)(?![a-z])/i;

const ELEMENTS = new Set([
  ...["math", "maction", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom"],
  ...["mprescripts", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd"],
  ...["mtext", "mtr", "munder", "munderover", "none"],
]);
const ATTRIBUTES = new Set([
  ...["accent", "columnalign", "depth", "display", "displaystyle", "fence", "form", "height", "largeop", "linethickness"],
  ...["lspace", "mathbackground", "mathcolor", "mathsize", "mathvariant", "maxsize", "minsize", "movablelimits"],
  ...["notation", "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width"],
]);
const STYLES = new Set([
  ...["border", "borderBottom", "borderLeft", "borderRight", "borderTop", "color", "fontWeight", "font-style", "height"],
  ...["font-weight", "marginLeft", "math-depth", "mathDepth", "padding", "paddingBottom", "paddingLeft", "paddingRight"],
  ...["paddingTop", "textAlign", "width"],
]);
const CLASS = /^[a-z][a-z0-9-]{0,30}$/;

/** @type {Engine|null} */
let engine = null;
/** @type {Promise<void>|null} */
let loading = null;
/** @type {Waiting[]} */
const waiting = [];
/** @type {Map<string, Element|null>} what formulas became, for the next time; null: a mistake */
const kept = new Map();

/**
 * The node of a formula.
 * @param {string} source in TeX
 * @param {string} written the same with what stands around it, which is shown until it is drawn, or if it cannot be
 * @param {boolean} display on a line of its own
 */
export function formula(source, written, display) {
  const node = el("span", { class: display ? "maths maths-display" : "maths", tabindex: display ? "0" : null }, written);
  const refused = source.length > MAX_CHARS || DEFINES.test(source);
  const drawn = refused ? null : kept.get(keyOf(source, display));
  if (drawn !== undefined) put(node, drawn);
  else wait({ node, source, display });
  return node;
}

/** @param {string} source @param {boolean} display */
function keyOf(source, display) {
  return `${display} ${source}`;
}

/** @param {HTMLElement} node @param {Element|null} drawn */
function put(node, drawn) {
  if (drawn === null) node.classList.add("maths-mistake");
  else node.replaceChildren(drawn.cloneNode(true));
}

/** Formulas are drawn between other work, a few at a time: one may take long. @param {Waiting} one */
function wait(one) {
  waiting.push(one);
  if (waiting.length === 1) load().then(() => whenIdle(drawSome));
}

function drawSome() {
  const until = performance.now() + SLICE_MS;
  /** @type {Set<Element>} */
  const grown = new Set();
  while (waiting.length > 0 && performance.now() < until) {
    const one = /** @type {Waiting} */ (waiting.pop()); // what was written last is what is looked at
    if (engine === null || !one.node.isConnected) continue;
    const key = keyOf(one.source, one.display);
    if (!kept.has(key)) {
      if (kept.size >= MAX_KEPT) kept.clear();
      kept.set(key, drawnBy(engine, one.source, one.display));
    }
    put(one.node, kept.get(key) ?? null);
    const text = one.node.parentElement;
    if (text !== null) grown.add(text);
  }
  for (const text of grown) text.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
  if (waiting.length > 0) whenIdle(drawSome);
}

/** Fetches the engine; where that fails, formulas stay as they are written, and a later one tries again. */
function load() {
  loading ??= import(ENGINE).then(
    (module) => {
      engine = module.default;
    },
    () => {
      loading = null;
    },
  );
  return loading;
}

/**
 * The formula's element, or null where it has a mistake or is too large.
 * @param {Engine} by
 * @param {string} source
 * @param {boolean} display
 */
function drawnBy(by, source, display) {
  try {
    const made = build(by.__renderToMathMLTree(source, { ...LIMITS, displayMode: display }), { nodes: MAX_NODES }, 0);
    return made instanceof Element ? made : null;
  } catch {
    return null; // whatever its parser stumbled over, the source says more than its message
  }
}

/** @param {Tree} tree @param {{nodes: number}} left @param {number} depth @returns {Node} */
function build(tree, left, depth) {
  left.nodes -= 1;
  if (left.nodes < 0 || depth > MAX_DEPTH) throw new RangeError("a formula too large");
  if (typeof tree.text === "string") return document.createTextNode(tree.text);
  const known = tree.type !== undefined && ELEMENTS.has(tree.type);
  const node = document.createElementNS(MATHML, known ? String(tree.type) : "mrow");
  for (const [name, value] of Object.entries(tree.attributes ?? {})) {
    if (ATTRIBUTES.has(name)) node.setAttribute(name, String(value));
  }
  for (const [name, value] of Object.entries(tree.style ?? {})) {
    const css = name.replace(/[A-Z]/g, (capital) => `-${capital.toLowerCase()}`);
    if (STYLES.has(name) && !String(value).includes("(")) node.style.setProperty(css, String(value));
  }
  const classes = (tree.classes ?? []).filter((name) => CLASS.test(name));
  if (classes.length > 0) node.setAttribute("class", classes.join(" "));
  for (const child of tree.children ?? []) node.append(build(child, left, depth + 1));
  return node;
}
