/** What an agent did on the way to its answer: reasoning, calls of tools, what the person decided, other steps. */

/**
 * @import { Item } from "./protocol.js"
 */

import { el, icon } from "./dom.js";
import { duration, fullMoment, moment, wholeSeconds } from "./format.js";
import { codeBlock } from "./markdown/code.js";
import { safeLink } from "./markdown/links.js";
import { MarkdownView } from "./markdown/view.js";
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

/** @type {Partial<Record<Frames.Channel, string>>} */
const STEP_NAMES = { plan: "Plan", thought: "Thought", observation: "Observation", system_note: "Note" };
const PREVIEW_CHARS = 120;
const NEAR_END_PX = 24;
const TICK_MS = 250;

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
 * The parts of a message that are not its text. An image is a link: nothing of an answer loads by itself.
 * @param {Frames.Part} part
 * @returns {HTMLElement[]}
 */
export function renderPart(part) {
  switch (part.type) {
    case "code":
      return [codeBlock(String(part.code), part.language ?? "")];
    case "image_url":
      return [safeLink(part.url, [`Image: ${part.alt || "untitled"}`])];
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
  #body = el("div", { class: "thinking", tabindex: "0", role: "region", "aria-label": "Reasoning" }, this.#text);
  #summary = el("summary", {}, icon("thought"), this.#title, this.#dots);
  #details = el("details", { class: "step step-thinking" }, this.#summary, this.#body);
  /** Of which nothing but the time is known. */
  #line = el("p", { class: "step step-line" });
  node = el("div", { class: "step-slot" });
  /** @type {Item|null} */
  #item = null;
  /** @type {number|undefined} */
  #timer;
  #following = true;

  constructor() {
    this.#details.addEventListener("toggle", () => this.#showText());
    this.#body.addEventListener("scroll", () => {
      this.#following = this.#body.scrollHeight - this.#body.scrollTop - this.#body.clientHeight < NEAR_END_PX;
    });
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
    if (open) this.#timer ??= setInterval(() => this.#tick(), TICK_MS);
    else this.#stop();
  }

  /** What nobody sees needs no clock: the next words start it again. */
  #tick() {
    if (this.node.isConnected) this.#showTime();
    else this.#stop();
  }

  #stop() {
    clearInterval(this.#timer);
    this.#timer = undefined;
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
    if (this.#following) this.#body.scrollTop = this.#body.scrollHeight;
  }
}

/** @param {Item|null} item @param {number} now */
function thinkingTitle(item, now) {
  const { ms = null, since = null } = item?.thinking ?? {};
  if (since !== null) return `Thinking… ${wholeSeconds(Math.floor(((ms ?? 0) + now - since) / 1000) * 1000)}`;
  if (ms === null || ms <= 0) return "Thought";
  return `Thought for ${wholeSeconds(ms)}${item?.thinking?.inAll === true ? " in all" : ""}`;
}

/** A call of a tool and what came of it: one closed line that opens. */
export class CallItem {
  #state = el("span", { class: "call-state" });
  #body = el("div", { class: "step-body" });
  #key = "";

  /** @param {CallRow} row */
  constructor({ call }) {
    const name = el("span", { class: "step-title" }, "Tool: ", el("code", {}, call.name));
    const preview = el("span", { class: "call-preview" }, previewOf(call.args));
    const summary = el("summary", {}, icon("tool"), name, preview, this.#state);
    this.node = el("details", { class: "step step-call" }, summary, this.#body);
  }

  /** @param {CallRow} row @param {Phase} phase */
  update({ call, item, lead, result }, phase) {
    const state = result === null ? CALL_STATES[phase] : resultTitle(result.part);
    const key = `${state} ${item.message === null} ${result?.item.rank}`;
    if (key === this.#key) return;
    this.#key = key;
    const failed = result?.part.ok === false;
    this.node.classList.toggle("failed", failed);
    this.#state.replaceChildren(...(result === null && phase === "running" ? [dots()] : []), state);
    this.#body.replaceChildren(
      ...(lead ? textBlocks(item) : []),
      codeBlock(JSON.stringify(call.args, null, 2), "called with"),
      ...(result === null ? [] : resultBlocks(result)),
    );
  }
}

/** @type {Record<Phase, string>} */
const CALL_STATES = { running: "running", waiting: "waits for you", over: "without an answer" };

/** @param {Result} result */
function resultBlocks({ part, item }) {
  const content = String(part.content ?? "");
  const answer = content === "" ? [] : [codeBlock(content, part.ok === false ? "failed" : "answered")];
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
  if (ok === false && ms === null) return "was not called";
  return `${ok === false ? "failed" : "answered"}${ms === null ? "" : ` in ${duration(ms)}`}`;
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
      if (part.type === "tool_result") blocks.push(codeBlock(String(part.content ?? ""), part.ok ? "" : "failed"));
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
  return part?.type === "tool_result" ? `Tool ${resultTitle(part)}` : (STEP_NAMES[item.channel] ?? "Step");
}

/** What the person told the agent in the middle of the turn: a quiet line, which opens where there is more to see. */
export class DecisionItem {
  /** @param {DecisionRow} row */
  constructor({ item, names }) {
    const { answer, at } = decisionOf(item);
    const title = el("span", { class: "step-title" }, decisionText(answer, item.text, names));
    const time = el("time", { class: "call-state", datetime: at, title: fullMoment(at) }, moment(at));
    const blocks = decisionBlocks(answer);
    const line = [icon("person"), title, time];
    this.node =
      blocks.length === 0
        ? el("p", { class: "step step-line step-decision" }, line)
        : el("details", { class: "step step-decision" }, el("summary", {}, line), el("div", { class: "step-body" }, blocks));
  }
}

/** @param {Item} item */
function decisionOf({ message }) {
  const decision = /** @type {Record<string, unknown>} */ (message?.metadata.extras?.decision ?? {});
  const { answer, at } = decision;
  return { answer, at: typeof at === "string" ? at : (message?.timestamp ?? "") };
}

/**
 * What an answer has beyond its line: arguments that were changed, answers to several questions.
 * @param {unknown} answer
 * @returns {HTMLElement[]}
 */
function decisionBlocks(answer) {
  const { decisions, answers } = /** @type {Record<string, unknown>} */ (answer ?? {});
  if (answers !== undefined) return [codeBlock(JSON.stringify(answers, null, 2), "your answers")];
  if (!Array.isArray(decisions)) return [];
  return decisions.flatMap((decision) => {
    const { name, args, arguments: given } = decision?.edited_action ?? {};
    const changed = args ?? given;
    return changed === undefined ? [] : [codeBlock(JSON.stringify(changed, null, 2), `${name}, as you changed it`)];
  });
}

/** Three points that pulse. */
export function dots() {
  return el("span", { class: "dots", "aria-hidden": "true" }, el("i"), el("i"), el("i"));
}
