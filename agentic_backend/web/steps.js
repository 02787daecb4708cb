/** What an agent did on the way to its answer: reasoning, calls of tools, what the person decided, other steps. */

/**
 * @import { Item } from "./protocol.js"
 */

import { Clock, el, icon } from "./dom.js";
import { duration, fullMoment, moment, wholeSeconds } from "./format.js";
import { catalogue } from "./i18n.js";
import { codeBlock } from "./markdown/code.js";
import { safeLink } from "./markdown/links.js";
import { MarkdownView } from "./markdown/view.js";
import { Tail } from "./tail.js";
import { decisionText } from "./texts.js";

/**
 * @typedef {Frames.ToolCallPart} Call
 * @typedef {{part: Frames.ToolResultPart, item: Item}} Result
 * @typedef {{key: string, kind: "answer"|"thinking"|"step", item: Item}} PlainRow
 * @typedef {{key: string, kind: "decision", item: Item, names: string[]}} DecisionRow with the calls that waited for it
 * @typedef {{key: string, kind: "call", item: Item, call: Call, lead: boolean, result: Result|null}} CallRow
 * @typedef {PlainRow|DecisionRow|CallRow} Row one line of a turn; of a call, `lead` says that its message's text stands in it
 * @typedef {"running"|"waiting"|"over"} Phase of the turn: it runs, waits for the person, or is over
 */

const t = catalogue({
  en: {
    plan: "Plan",
    thought: "Thought",
    observation: "Observation",
    system_note: "Note",
    step: "Step",
    image: "Image: {name}",
    untitled: "untitled",
    reasoning: "Reasoning",
    thinkingFor: "Thinking… {time}",
    thoughtFor: "Thought for {time}",
    thoughtInAll: "Thought for {time} in all",
    tool: "Tool: ",
    toolState: "Tool {state}",
    calledWith: "called with",
    failedWith: "failed",
    answeredWith: "answered",
    running: "running",
    waiting: "waits for you",
    over: "without an answer",
    notCalled: "was not called",
    answered: "answered",
    answeredIn: "answered in {time}",
    failed: "failed",
    failedIn: "failed in {time}",
    yourAnswers: "your answers",
    changed: "{name}, as you changed it",
    decidedBy: "Decided by {name}, {when}",
    decided: "Decided {when}",
    showAll: "Show all {count} characters",
  },
  fr: {
    plan: "Plan",
    thought: "Réflexion",
    observation: "Observation",
    system_note: "Note",
    step: "Étape",
    image: "Image : {name}",
    untitled: "sans titre",
    reasoning: "Raisonnement",
    thinkingFor: "Réflexion… {time}",
    thoughtFor: "Réflexion pendant {time}",
    thoughtInAll: "Réflexion pendant {time} en tout",
    tool: "Outil : ",
    toolState: "Outil : {state}",
    calledWith: "appelé avec",
    failedWith: "échec",
    answeredWith: "réponse",
    running: "en cours",
    waiting: "vous attend",
    over: "sans réponse",
    notCalled: "n'a pas été appelé",
    answered: "a répondu",
    answeredIn: "a répondu en {time}",
    failed: "a échoué",
    failedIn: "a échoué en {time}",
    yourAnswers: "vos réponses",
    changed: "{name}, tel que vous l'avez modifié",
    decidedBy: "Décidé par {name}, {when}",
    decided: "Décidé {when}",
    showAll: "Afficher les {count} caractères",
  },
});

/** Channels that name their steps. */
const NAMED = /** @type {const} */ (["plan", "thought", "observation", "system_note"]);
/** What is longer is shown in part, until the person asks for all of it. */
const LONG_CHARS = 1_500;
const LONG_LINES = 24;
/** Longer texts are not read as JSON to be laid out. */
const MAX_LAID_OUT_CHARS = 200_000;
const PREVIEW_CHARS = 120;
const NEAR_END_PX = 24;

/**
 * The lines of a turn, in order. A result stands with its call, wherever it came: of several calls side by side each
 * has its own. One without a call is a line of its own.
 * @param {Item[]} items
 * @returns {Row[]}
 */
export function rowsOf(items) {
  /** @type {Row[]} */
  const rows = [];
  /** @type {Map<string, CallRow>} the calls without a result so far */
  const open = new Map();
  let thinking = 0;
  for (const item of items) {
    if (item.thinking !== undefined) {
      // By its place among its like: it gets a rank, where ever, at its end.
      rows.push({ key: `thinking:${thinking}`, kind: "thinking", item });
      thinking += 1;
      continue;
    }
    const calls = callRows(item);
    for (const row of calls) open.set(row.call.call_id, row);
    rows.push(...calls);
    if (calls.length === 0 && !takeResults(item, open)) {
      const names = [...open.values()].map(({ call }) => call.name);
      const row = { key: `${item.rank}:${item.channel}`, item };
      rows.push(isDecision(item) ? { ...row, kind: "decision", names } : { ...row, kind: kindOf(item) });
    }
  }
  return rows;
}

/** @param {Item} item @returns {CallRow[]} */
function callRows(item) {
  const calls = item.message?.parts.filter((part) => part.type === "tool_call") ?? [];
  return calls.map((call, at) => {
    return { key: `${item.rank}:call:${at}`, kind: "call", item, call, lead: at === 0, result: null };
  });
}

/**
 * Gives the results of a message to their calls; false where one of them has none, or there are none.
 * @param {Item} item
 * @param {Map<string, CallRow>} open
 */
function takeResults(item, open) {
  const results = item.message?.parts.filter((part) => part.type === "tool_result") ?? [];
  const known = results.length > 0 && results.every((part) => open.has(part.call_id));
  if (!known) return false;
  for (const part of results) {
    const row = open.get(part.call_id);
    if (row !== undefined) row.result = { part, item };
    open.delete(part.call_id);
  }
  return true;
}

/** @param {Item} item @returns {PlainRow["kind"]} */
function kindOf({ role, channel }) {
  return role === "assistant" && channel === "final" ? "answer" : "step";
}

/** @param {Item} item */
function isDecision({ role, message }) {
  return role === "user" && message !== null;
}

/**
 * The parts of a message that are not its text. An image is a link: nothing in an answer loads automatically.
 * @param {Frames.Part} part
 * @returns {HTMLElement[]}
 */
export function renderPart(part) {
  switch (part.type) {
    case "code":
      return [codeBlock(String(part.code), part.language ?? "")];
    case "image_url":
      return [safeLink(part.url, [t("image", { name: part.alt || t("untitled") })])];
    case "link":
      return part.href ? [safeLink(part.href, [part.title || part.href])] : [];
    case "geo":
      return [codeBlock(JSON.stringify(part.geojson, null, 2), "geojson")];
    default:
      return [];
  }
}

/** What a model says while it reasons: one closed line with its seconds, which opens and follows what comes. */
export class ThinkingItem {
  #title = el("span", { class: "step-title" });
  #dots = dots();
  #text = el("div", { class: "markdown" });
  #stream = new MarkdownView(this.#text);
  #body = el("div", { class: "thinking", tabindex: "0", role: "group", "aria-label": t("reasoning") }, this.#text);
  #summary = el("summary", {}, icon("thought"), this.#title, this.#dots);
  #details = el("details", { class: "step step-thinking" }, this.#summary, this.#body);
  /** Of which nothing but the time is known. */
  #line = el("p", { class: "step step-line" });
  node = el("div", { class: "step-slot" });
  #clock = new Clock(this.node, () => this.#showTime());
  /** @type {Item|null} */
  #item = null;
  #tail = new Tail(this.#body, NEAR_END_PX);

  constructor() {
    this.#details.addEventListener("toggle", () => this.#showText());
  }

  /** @param {Item} item */
  update(item) {
    this.#item = item;
    const shown = item.text === "" ? this.#line : this.#details;
    if (this.node.firstChild !== shown) this.node.replaceChildren(shown);
    this.#showTime();
    this.#showText();
    const open = item.thinking !== undefined && item.thinking.since !== null;
    this.#dots.hidden = !open;
    if (open) this.#clock.start();
    else this.#clock.stop();
  }

  #showTime() {
    const title = thinkingTitle(this.#item, performance.now());
    if (this.#title.textContent === title) return;
    this.#title.textContent = title;
    this.#line.replaceChildren(icon("thought"), title);
  }

  /** Only what is looked at is drawn: it may be longer than any answer. */
  #showText() {
    if (!this.#details.open || this.#item === null) return;
    this.#stream.update(this.#item.text);
    if (this.#tail.following) this.#tail.toEnd();
  }
}

/** @param {Item|null} item @param {number} now */
function thinkingTitle(item, now) {
  const { ms = null, since = null } = item?.thinking ?? {};
  if (since !== null) {
    return t("thinkingFor", { time: wholeSeconds(Math.floor(((ms ?? 0) + now - since) / 1000) * 1000) });
  }
  if (ms === null || ms <= 0) return t("thought");
  return t(item?.thinking?.inAll === true ? "thoughtInAll" : "thoughtFor", { time: wholeSeconds(ms) });
}

/** A call of a tool and what came of it: one closed line that opens. */
export class CallItem {
  #state = el("span", { class: "call-state" });
  #body = el("div", { class: "step-body" });
  #key = "";

  /** @param {CallRow} row */
  constructor({ call }) {
    const name = el("span", { class: "step-title" }, t("tool"), el("code", {}, call.name));
    const preview = el("span", { class: "call-preview" }, previewOf(call.args));
    const summary = el("summary", {}, icon("tool"), name, preview, this.#state);
    this.node = el("details", { class: "step step-call" }, summary, this.#body);
  }

  /** @param {CallRow} row @param {Phase} phase */
  update({ call, item, lead, result }, phase) {
    const state = result === null ? t(phase) : resultTitle(result.part);
    const key = `${state} ${item.message === null} ${result?.item.rank}`;
    if (key === this.#key) return;
    this.#key = key;
    const failed = result?.part.ok === false;
    this.node.classList.toggle("failed", failed);
    this.#state.replaceChildren(callMark(result?.part ?? null, phase), state);
    this.#body.replaceChildren(
      ...(lead ? textBlocks(item) : []),
      longBlock(JSON.stringify(call.args, null, 2), t("calledWith")),
      ...(result === null ? [] : resultBlocks(result)),
    );
  }
}

/**
 * What a call's state looks like, beside its words.
 * @param {Frames.ToolResultPart|null} result
 * @param {Phase} phase
 */
function callMark(result, phase) {
  if (result !== null) return icon(result.ok === false ? "alert" : "check");
  if (phase === "running") return dots();
  return icon(phase === "waiting" ? "person" : "alert");
}

/**
 * A text in a block of its own: of a long one its beginning, and a button for the rest.
 * @param {string} text
 * @param {string} label
 */
function longBlock(text, label) {
  const block = codeBlock(text, label);
  const code = block.querySelector("pre code");
  const beginning = text.slice(0, LONG_CHARS).split("\n").slice(0, LONG_LINES).join("\n");
  if (beginning.length === text.length || code === null) return block;
  code.textContent = `${beginning}…`;
  const all = el("button", { type: "button", class: "small show-all" }, t("showAll", { count: text.length }));
  all.addEventListener("click", () => {
    code.textContent = text;
    all.remove();
    block.querySelector("pre")?.focus();
  });
  block.append(all);
  return block;
}

/**
 * JSON on lines of its own, anything else as it is.
 * @param {string} text
 */
function laidOut(text) {
  if (text.length > MAX_LAID_OUT_CHARS || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
}

/** @param {Result} result */
function resultBlocks({ part, item }) {
  const content = String(part.content ?? "");
  const label = t(part.ok === false ? "failedWith" : "answeredWith");
  const answer = content === "" ? [] : [longBlock(laidOut(content), label)];
  const more = item.message?.parts ?? [];
  return [...answer, ...textBlocks(item), ...more.flatMap(renderPart)];
}

/**
 * The arguments in one line, so that calls of the same tool can be told apart.
 * @param {Record<string, unknown>} args
 */
function previewOf(args) {
  const words = Object.entries(args ?? {}).map(([name, value]) => {
    return `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`;
  });
  const line = words.join(", ").replace(/\s+/g, " ");
  return line.length > PREVIEW_CHARS ? `${line.slice(0, PREVIEW_CHARS)}…` : line;
}

/** @param {Frames.ToolResultPart} part */
function resultTitle({ ok, latency_ms: ms = null }) {
  if (ms === null) return t(ok === false ? "notCalled" : "answered");
  return t(ok === false ? "failedIn" : "answeredIn", { time: duration(ms) });
}

/** A thought, a result whose call is not known, another step: one closed line that opens. */
export class StepItem {
  #body = el("div", { class: "step-body" });
  /** @type {Frames.ChatMessage|string|null} */
  #shown = null;

  /** @param {Item} item */
  constructor(item) {
    const summary = el("summary", {}, icon("tool"), el("span", { class: "step-title" }, stepTitle(item)));
    this.node = el("details", { class: `step step-${item.channel}` }, summary, this.#body);
  }

  /** @param {Item} item */
  update(item) {
    const shown = item.message ?? item.text;
    if (shown === this.#shown) return;
    this.#shown = shown;
    const blocks = textBlocks(item);
    for (const part of item.message?.parts ?? []) {
      if (part.type === "tool_result") {
        blocks.push(longBlock(laidOut(String(part.content ?? "")), part.ok ? "" : t("failedWith")));
      }
      else blocks.push(...renderPart(part));
    }
    this.#body.replaceChildren(...blocks);
  }
}

/** @param {Item} item @returns {HTMLElement[]} */
function textBlocks({ text }) {
  return text === "" ? [] : [el("p", { class: "plain" }, text)];
}

/** @param {Item} item */
function stepTitle(item) {
  const part = item.message?.parts.find(({ type }) => type === "tool_result");
  if (part?.type === "tool_result") return t("toolState", { state: resultTitle(part) });
  return t(NAMED.find((one) => one === item.channel) ?? "step");
}

/** What a person told the agent in the middle of the turn: a quiet line, behind which stands who it was, and when. */
export class DecisionItem {
  /** @param {DecisionRow} row */
  constructor({ item, names }) {
    const { answer, at, by } = decisionOf(item);
    const title = el("span", { class: "step-title" }, decisionText(answer, item.text, names));
    const time = el("time", { class: "call-state", datetime: at, title: fullMoment(at) }, moment(at));
    const when = fullMoment(at);
    const who = el("p", { class: "plain", dir: "auto" }, by === "" ? t("decided", { when }) : t("decidedBy", { name: by, when }));
    this.node = el(
      "details",
      { class: "step step-decision" },
      el("summary", {}, icon("person"), title, time),
      el("div", { class: "step-body" }, who, decisionBlocks(answer)),
    );
  }
}

/** @param {Item} item */
function decisionOf({ message }) {
  const decision = /** @type {Record<string, unknown>} */ (message?.metadata.extras?.decision ?? {});
  const { answer, at, by } = decision;
  const when = typeof at === "string" ? at : (message?.timestamp ?? "");
  return { answer, at: when, by: typeof by === "string" ? by : "" };
}

/**
 * What an answer has beyond its line: arguments that were changed, answers to several questions.
 * @param {unknown} answer
 * @returns {HTMLElement[]}
 */
function decisionBlocks(answer) {
  const { decisions, answers } = /** @type {Record<string, unknown>} */ (answer ?? {});
  if (answers !== undefined) return [longBlock(JSON.stringify(answers, null, 2), t("yourAnswers"))];
  if (!Array.isArray(decisions)) return [];
  return decisions.flatMap((decision) => {
    const { name, args, arguments: given } = decision?.edited_action ?? {};
    const changed = args ?? given;
    return changed === undefined ? [] : [longBlock(JSON.stringify(changed, null, 2), t("changed", { name }))];
  });
}

/** Three points that pulse. */
export function dots() {
  return el("span", { class: "dots", "aria-hidden": "true" }, el("i"), el("i"), el("i"));
}
