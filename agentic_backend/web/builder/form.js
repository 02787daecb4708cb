/** The form of an agent: a control for each of its values, and a place for why one was refused. */

/**
 * @import { Child } from "../dom.js"
 * @import { Editable, Field, MadeAgent } from "./api.js"
 */
import { el } from "../dom.js";
import { t } from "./texts.js";

const MOST_STARTERS = 6;
const STARTER_CHARS = 200;
const WORDS_CHARS = 2000;
/** @type {("attach_files"|"libraries_selection"|"documents_selection"|"search_policy_selection"|"search_rag_scoping"|"include_corpus_in_search")[]} */
const CONTROLS = [
  "attach_files",
  "libraries_selection",
  "documents_selection",
  "search_policy_selection",
  "search_rag_scoping",
  "include_corpus_in_search",
];
const LONG = new Set(["prompt", "text", "text-multiline"]);

/**
 * A labelled control. `refuse` shows why its value is not taken, "" for nothing.
 * @typedef {object} Labelled
 * @property {HTMLElement} node
 * @property {HTMLElement} control
 * @property {(problem: string) => void} refuse
 *
 * What is wrong with a value, before the service is asked.
 * @typedef {{at: string, problem: string}} Wrong
 * @typedef {{label: Labelled, read: () => unknown}} Value reading may throw `Refusal`
 */

/** A value that the page itself does not send. */
class Refusal extends Error {}

let count = 0;

/**
 * @param {string} words
 * @param {HTMLInputElement|HTMLTextAreaElement|HTMLSelectElement} control
 * @param {string} hint
 * @returns {Labelled}
 */
export function labelled(words, control, hint = "") {
  count += 1;
  const [id, hintId, problemId] = [`agent-value-${count}`, `agent-hint-${count}`, `agent-problem-${count}`];
  control.id = id;
  const note = hint === "" ? [] : [el("p", { class: "hint", id: hintId, dir: "auto" }, hint)];
  const problem = el("p", { class: "problem", id: problemId });
  control.setAttribute("aria-describedby", hint === "" ? problemId : `${hintId} ${problemId}`);
  const label = el("label", { for: id, dir: "auto" }, words);
  return { node: el("div", { class: "value" }, label, control, ...note, problem), control, refuse: refusing(control, problem) };
}

/**
 * @param {string} legend
 * @param {{value: string, words: string, checked: boolean}[]} options
 * @returns {{label: Labelled, read: () => string[]}}
 */
function checks(legend, options) {
  const boxes = options.map(({ value, checked }) => el("input", { type: "checkbox", value, checked }));
  const rows = options.map(({ words }, at) => el("label", { class: "way" }, boxes[at], el("bdi", {}, words)));
  const problem = el("p", { class: "problem" });
  const ways = el("div", { class: "ways" }, ...rows);
  const node = el("fieldset", { class: "value" }, el("legend", {}, legend), ways, problem);
  const label = { node, control: boxes[0] ?? node, refuse: refusing(boxes[0] ?? node, problem) };
  return { label, read: () => boxes.filter(({ checked }) => checked).map(({ value }) => value) };
}

/** @param {HTMLElement} control @param {HTMLElement} problem */
function refusing(control, problem) {
  return (/** @type {string} */ text) => {
    problem.textContent = text;
    if (text === "") control.removeAttribute("aria-invalid");
    else control.setAttribute("aria-invalid", "true");
  };
}

/**
 * Shows why a value was refused at its control, which gets the focus; whether there is one. No name clears all.
 * @param {Record<string, Labelled>} fields by the names that the service has for them
 * @param {string|null} name
 * @param {string} problem
 */
export function problemAt(fields, name, problem) {
  for (const field of Object.values(fields)) field.refuse("");
  if (name === null) return false;
  // Of a list the service names the entry: starters[2].
  const found = fields[name] ?? fields[name.replace(/\[.*$/, "")];
  if (found === undefined) return false;
  found.refuse(problem);
  found.control.focus();
  return true;
}

/**
 * @param {MadeAgent} agent
 * @param {Editable & {documents: boolean, tools: boolean}} known `documents`, `tools`: what its kind has to do with
 */
export function agentForm(agent, known) {
  /** @type {Record<string, Labelled>} */
  const fields = {};
  const who = whoSection(agent, fields);
  const answers = answersSection(agent, known, fields);
  const controls = checks(
    t("controls"),
    CONTROLS.map((value) => ({ value, words: t(value), checked: agent.chat_options[value] === true })),
  );
  if (known.documents) fields.chat_options = controls.label;

  /** @returns {Partial<MadeAgent>} */
  const values = () => {
    const { role, description, ...own } = who.read();
    const { values: tuned, mcp_servers, ...models } = answers.read();
    const chosen = new Set(controls.read());
    const options = Object.fromEntries(CONTROLS.map((name) => [name, chosen.has(name)]));
    const chat_options = known.documents ? { ...agent.chat_options, ...options } : agent.chat_options;
    return { ...own, ...models, chat_options, tuning: { ...agent.tuning, role, description, fields: tuned, mcp_servers } };
  };
  /** What the form holds, or where it cannot be sent. @returns {{values?: Partial<MadeAgent>} & Partial<Wrong>} */
  const read = () => {
    try {
      return { values: values() };
    } catch (error) {
      if (!(error instanceof Wronged)) throw error;
      return error.wrong;
    }
  };
  const shown = known.documents ? [controls.label.node] : [];
  return { node: el("div", { class: "agent-form" }, who.node, answers.node, ...shown), fields, read };
}

/** A value of the form that cannot be sent, with its place. */
class Wronged extends Error {
  /** @param {Wrong} wrong */
  constructor(wrong) {
    super(wrong.problem);
    this.wrong = wrong;
  }
}

/** @param {string} heading @param {...Child} content */
function section(heading, ...content) {
  count += 1;
  const id = `agent-section-${count}`;
  return el("section", { "aria-labelledby": id }, el("h3", { id }, heading), ...content);
}

/** @param {string} value @param {Record<string, unknown>} attributes */
function input(value, attributes) {
  const control = el("input", { type: "text", autocomplete: "off", dir: "auto", ...attributes });
  control.value = value;
  return control;
}

/** @param {string} value @param {Record<string, unknown>} attributes */
function area(value, attributes) {
  const control = el("textarea", { dir: "auto", ...attributes });
  control.value = value;
  return control;
}

/** @param {MadeAgent} agent @param {Record<string, Labelled>} fields */
function whoSection(agent, fields) {
  const name = input(agent.name, { maxlength: 80, required: true });
  const role = input(agent.tuning.role, { maxlength: WORDS_CHARS });
  const description = area(agent.tuning.description, { rows: 3, maxlength: WORDS_CHARS });
  const starters = area(agent.starters.join("\n"), { rows: 4 });
  const enabled = el("input", { type: "checkbox", checked: agent.enabled });
  fields.name = labelled(t("name"), name);
  fields["tuning.role"] = labelled(t("role"), role);
  fields["tuning.description"] = labelled(t("description"), description);
  fields.starters = labelled(t("starters"), starters, t("startersHint"));
  const read = () => {
    const asked = linesOf(starters.value);
    if (name.value.trim() === "") throw new Wronged({ at: "name", problem: t("needed") });
    if (asked.length > MOST_STARTERS || new Set(asked).size < asked.length)
      throw new Wronged({ at: "starters", problem: t("tooMany", { most: MOST_STARTERS }) });
    if (asked.some((one) => [...one].length > STARTER_CHARS))
      throw new Wronged({ at: "starters", problem: t("tooLong", { most: STARTER_CHARS }) });
    const own = { name: name.value.trim(), enabled: enabled.checked, starters: asked };
    return { ...own, role: role.value.trim(), description: description.value.trim() };
  };
  const shown = [fields.name, fields["tuning.role"], fields["tuning.description"], fields.starters];
  const way = el("label", { class: "way" }, enabled, el("span", {}, t("enabled")));
  return { node: section(t("who"), ...shown.map(({ node }) => node), way), read };
}

/**
 * @param {MadeAgent} agent
 * @param {Editable & {tools: boolean}} known
 * @param {Record<string, Labelled>} fields
 */
function answersSection(agent, known, fields) {
  const tuned = agent.tuning.fields.map((field) => ({ field, at: `tuning.fields.${field.key}`, value: valueOf(field) }));
  for (const { at, value } of tuned) fields[at] = value.label;
  const model = el("select", {}, known.models.map(({ id, title }) => el("option", { value: id }, title)));
  model.value = agent.model;
  fields.model = labelled(t("model"), model);
  const further = checks(
    t("further"),
    known.models.map(({ id, title }) => ({ value: id, words: title, checked: agent.further_models.includes(id) })),
  );
  const named = agent.tuning.mcp_servers.map(({ id }) => id);
  const servers = checks(
    t("tools"),
    known.mcp_servers.map((id) => ({ value: id, words: id, checked: named.includes(id) })),
  );
  const several = known.models.length > 1;
  const tools = known.tools && known.mcp_servers.length > 0;
  if (several) fields.further_models = further.label;
  if (tools) fields["tuning.mcp_servers"] = servers.label;
  const read = () => ({
    values: tuned.map(({ field, at, value }) => ({ ...field, default: sent(at, value) })),
    model: model.value,
    further_models: several ? withHidden(agent.further_models, known.models, further.read()) : agent.further_models,
    mcp_servers: tools ? servers.read().map((id) => ({ id })) : agent.tuning.mcp_servers,
  });
  const shown = [...tuned.map(({ value }) => value.label.node), fields.model.node];
  if (several) shown.push(further.label.node);
  if (tools) shown.push(servers.label.node);
  return { node: section(t("answers"), ...shown), read };
}

/** Those of before that no box stands for, as "*" for all of them, stay. @param {string[]} before @param {{id: string}[]} models @param {string[]} chosen */
function withHidden(before, models, chosen) {
  const known = new Set(models.map(({ id }) => id));
  return [...before.filter((id) => !known.has(id)), ...chosen];
}

/** @param {string} at @param {Value} value */
function sent(at, value) {
  try {
    return value.read();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    throw new Wronged({ at, problem: error.message });
  }
}

/** @param {Field} field @returns {Value} */
function valueOf(field) {
  const words = field.title || field.key;
  const hints = field.description ?? "";
  const now = field.default;
  if (field.type === "boolean" || field.enum !== null) return chosenOf(field, words, hints);
  if (field.type === "integer" || field.type === "number") {
    const step = field.type === "integer" ? 1 : "any";
    const control = input(String(now ?? ""), { type: "number", min: field.min, max: field.max, step, dir: null });
    const read = () => (control.value === "" && !control.validity.badInput ? null : Number(control.value));
    return { label: labelled(words, control, hints), read };
  }
  if (field.type === "array" && (field.item_type ?? "string") === "string") {
    const lines = Array.isArray(now) ? now.join("\n") : "";
    const control = area(lines, { rows: 4 });
    const read = () => (control.value.trim() === "" ? null : linesOf(control.value));
    return { label: labelled(words, control, [hints, t("lines")].filter(Boolean).join(" ")), read };
  }
  if (field.type === "array" || field.type === "object") {
    const control = area(now === null ? "" : JSON.stringify(now, null, 2), { rows: 4, spellcheck: "false", dir: "ltr" });
    return { label: labelled(words, control, [hints, t("json")].filter(Boolean).join(" ")), read: () => jsonOf(control.value) };
  }
  return textOf(field, words, hints);
}

/** @param {Field} field @param {string} words @param {string} hints @returns {Value} */
function textOf(field, words, hints) {
  const now = field.default;
  const long = LONG.has(field.type);
  const control = long ? area(String(now ?? ""), { rows: field.type === "prompt" ? 6 : 3 }) : input(String(now ?? ""), {});
  const hint = [hints, long && !field.required ? t("emptyIsUsual") : ""].filter(Boolean).join(" ");
  return { label: labelled(words, control, hint), read: () => (control.value.trim() === "" ? null : control.value) };
}

/** One of a few values, or what is usual. @param {Field} field @param {string} words @param {string} hint @returns {Value} */
function chosenOf(field, words, hint) {
  const boolean = field.type === "boolean";
  const options = boolean ? [["true", t("yes")], ["false", t("no")]] : (field.enum ?? []).map((one) => [one, one]);
  const control = el("select", {}, options.map(([value, text]) => el("option", { value }, text)));
  if (!field.required) control.prepend(el("option", { value: "" }, t("usual")));
  control.value = field.default === null ? "" : String(field.default);
  const read = () => {
    if (control.value === "") return null;
    return boolean ? control.value === "true" : control.value;
  };
  return { label: labelled(words, control, hint), read };
}

/** @param {string} text */
function jsonOf(text) {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new Refusal(t("badJson"));
  }
}

/** @param {string} text */
function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}
