/**
 * Colours for code by highlight.js, which is fetched with the first block of a language that it knows here. It only says
 * which part of the text is what: the nodes are made here, and its HTML is not used.
 */

import { el } from "../dom.js";
import { whenIdle } from "./idle.js";

/**
 * @typedef {{scope?: string, children: (string|Scope)[]}} Scope what highlight.js finds: a part of the text, of one kind
 * @typedef {{highlight: (code: string, options: {language: string, ignoreIllegals: boolean}) => {_emitter: {rootNode: Scope}},
 *   registerLanguage: (name: string, grammar: unknown) => void, getLanguage: (name: string) => unknown}} Highlighter
 */

/** What is longer stays plain. */
const MAX_CHARS = 50 * 1024;
const MAX_LINE_CHARS = 1000;
/** How much is coloured at first, and for how long that and each double of it may take. */
const FIRST_CHARS = 1024;
const SLOW_MS = 50;
const VENDOR = "/web/vendor/highlight";

/** The languages that are served, by the names that people give them. @type {Record<string, string>} */
const ALIASES = {
  ...{ sh: "bash", shell: "bash", zsh: "bash", console: "bash", "c++": "cpp", h: "c", hpp: "cpp", cc: "cpp" },
  ...{ cs: "csharp", "c#": "csharp", docker: "dockerfile", golang: "go", toml: "ini", jsx: "javascript" },
  ...{ js: "javascript", mjs: "javascript", node: "javascript", json5: "json", jsonc: "json", kt: "kotlin" },
  ...{ tex: "latex", make: "makefile", md: "markdown", patch: "diff", ps1: "powershell", pwsh: "powershell" },
  ...{ py: "python", python3: "python", rb: "ruby", rs: "rust", postgresql: "sql", ts: "typescript" },
  ...{ tsx: "typescript", html: "xml", svg: "xml", xhtml: "xml", yml: "yaml" },
};
const LANGUAGES = new Set([
  ...["bash", "c", "cpp", "csharp", "css", "diff", "dockerfile", "go", "ini", "java", "javascript", "json", "kotlin"],
  ...["latex", "lua", "makefile", "markdown", "nginx", "php", "powershell", "python", "r", "ruby", "rust", "scala"],
  ...["sql", "swift", "typescript", "xml", "yaml"],
]);

/** @type {Promise<Highlighter>|null} */
let core = null;
/** @type {Map<string, Promise<void>>} */
const grammars = new Map();

/**
 * Colours the text of a node when the browser is idle. Leaves it as it is where the language is none of ours, the text
 * is too long, or something else has changed the node meanwhile.
 * @param {HTMLElement} node holds one text node
 * @param {string} name the language as the text names it
 */
export function colour(node, name) {
  const language = languageOf(name);
  const code = node.textContent;
  if (language === null || code.length > MAX_CHARS || longestLine(code) > MAX_LINE_CHARS) return;
  whenIdle(async () => {
    if (!node.isConnected) return;
    const highlighter = await withLanguage(language);
    if (highlighter !== null) tryOut({ node, code, language, highlighter }, FIRST_CHARS);
  });
}

/**
 * Colours the code when its beginning took little time, and the double of that, and so on: some grammars take seconds for
 * texts that nobody has written, and cannot be interrupted.
 * @param {{node: HTMLElement, code: string, language: string, highlighter: Highlighter}} work
 * @param {number} chars of its beginning
 */
function tryOut(work, chars) {
  const { node, code, language, highlighter } = work;
  whenIdle(() => {
    const only = node.childNodes.length === 1 && node.firstChild instanceof Text;
    if (!node.isConnected || !only || node.textContent !== code) return;
    const start = performance.now();
    const { _emitter: found } = highlighter.highlight(code.slice(0, chars), { language, ignoreIllegals: true });
    if (chars >= code.length) node.replaceChildren(...nodesOf(found.rootNode));
    else if (performance.now() - start < SLOW_MS) tryOut(work, 2 * chars);
  });
}

/** @param {string} name */
function languageOf(name) {
  const lower = name.toLowerCase();
  const language = Object.hasOwn(ALIASES, lower) ? ALIASES[lower] : lower;
  return LANGUAGES.has(language) ? language : null;
}

/** @param {string} code */
function longestLine(code) {
  let longest = 0;
  for (let from = 0, to = 0; to !== -1; from = to + 1) {
    to = code.indexOf("\n", from);
    longest = Math.max(longest, (to === -1 ? code.length : to) - from);
  }
  return longest;
}

/**
 * The highlighter, knowing the language, or null where it cannot be fetched: then code stays plain.
 * @param {string} language
 * @returns {Promise<Highlighter|null>}
 */
async function withLanguage(language) {
  try {
    core ??= import(`${VENDOR}/core.min.js`).then((module) => module.default);
    const highlighter = await core;
    let grammar = grammars.get(language);
    if (grammar === undefined) {
      grammar = import(`${VENDOR}/languages/${language}.min.js`).then((module) => {
        highlighter.registerLanguage(language, module.default);
      });
      grammars.set(language, grammar);
    }
    await grammar;
    return highlighter;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // a module that cannot be fetched
    core = null;
    grammars.delete(language);
    return null;
  }
}

/** @param {Scope} scope @returns {(Node|string)[]} */
function nodesOf({ children }) {
  return children.map((child) => {
    if (typeof child === "string") return child;
    const kind = /^[a-z]+/.exec(child.scope ?? "")?.[0];
    return el("span", { class: kind === undefined ? null : `hl-${kind}` }, nodesOf(child));
  });
}
