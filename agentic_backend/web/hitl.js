/**
 * The card of an agent that waits for a person: what it asks, what it is about, and the ways to answer.
 *
 * One question with choices is answered by a press on one of them. Calls of tools that are to be decided on, and
 * several questions at once, are a form with one button: each part says in place what is missing in it.
 */

import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";
import { codeBlock } from "./markdown/code.js";
import { argumentsProblem, MISSING } from "./texts.js";

/**
 * What the person says, as docs/protocol.md has it.
 * @typedef {{type: "approve"}|{type: "edit", edited_action: {name: string, args?: object, arguments?: object}}
 *   |{type: "reject", message?: string}|{type: "respond", message: string}} Decision
 * @typedef {{choice_id: string}|{text: string}|{decisions: Decision[]}} Answer to one question
 * @typedef {Answer|{answers: Record<string, Answer>}} Said
 *
 * @typedef {object} Call that waits for a decision
 * @property {string} name
 * @property {object} args
 * @property {"args"|"arguments"} key under which the agent has its arguments, and expects them back
 * @property {string} description
 * @property {Decision["type"][]} allowed
 *
 * @typedef {object} Question
 * @property {string} id
 * @property {string} title
 * @property {string} words
 * @property {Choice[]} choices
 * @property {boolean} freeText
 * @property {{text: string, language: string}|null} about what a tool would be called with, or a value as it stands
 * @property {Call[]} calls
 * @typedef {{id: string, label: string, description?: string, default?: boolean}} Choice
 *
 * @typedef {object} Field a part of the form
 * @property {HTMLElement} node
 * @property {() => Answer|null} read null if something is missing, which is then shown in place
 * @typedef {object} Card
 * @property {HTMLElement} node
 * @property {() => void} unlock lets the person answer once more, from what they had said
 */

/** @type {Decision["type"][]} */
const DECISIONS = ["approve", "edit", "reject", "respond"];
/** Of a call whose request comes with configurations, but without its own.
 * @type {Decision["type"][]} */
const WITHOUT_CONFIG = ["approve", "reject"];
const t = catalogue({
  en: {
    approve: "Approve",
    edit: "Edit",
    editButton: "Approve with these changes",
    reject: "Reject",
    respond: "Answer instead",
    respondButton: "Answer in its place",
    asks: "The agent asks you",
    asksSome: { one: "The agent asks you {count} question", other: "The agent asks you {count} questions" },
    unnamed: "unnamed",
    yourAnswer: "Your answer to the agent",
    answer: "Answer",
    sendDecisions: "Send decisions",
    sendAnswers: "Send answers",
    otherWords: "In other words",
    answerTo: "Your answer: {heading}",
    whyNot: "Why not {name}",
    reason: "Reason, if you like",
    instead: "instead of {name}",
    decision: "Decision about {name}",
    call: "Call of {name}",
    argumentsOf: "Arguments of {name}, as JSON",
  },
  fr: {
    approve: "Approuver",
    edit: "Modifier",
    editButton: "Approuver avec ces modifications",
    reject: "Refuser",
    respond: "Répondre soi-même",
    respondButton: "Répondre à sa place",
    asks: "L'agent vous interroge",
    asksSome: { one: "L'agent vous pose {count} question", other: "L'agent vous pose {count} questions" },
    unnamed: "sans nom",
    yourAnswer: "Votre réponse à l'agent",
    answer: "Répondre",
    sendDecisions: "Envoyer les décisions",
    sendAnswers: "Envoyer les réponses",
    otherWords: "En d'autres termes",
    answerTo: "Votre réponse : {heading}",
    whyNot: "Pourquoi pas {name}",
    reason: "Raison, si vous le souhaitez",
    instead: "à la place de {name}",
    decision: "Décision sur {name}",
    call: "Appel de {name}",
    argumentsOf: "Arguments de {name}, en JSON",
  },
});
/** @type {Record<Decision["type"], {label: string, button: string}>} */
const DECISION_WORDS = {
  approve: { label: t("approve"), button: t("approve") },
  edit: { label: t("edit"), button: t("editButton") },
  reject: { label: t("reject"), button: t("reject") },
  respond: { label: t("respond"), button: t("respondButton") },
};
/** `stage` of a question that shows a value of the agent's own as it stands. */
const VALUE = "value";
const MAX_EDITOR_ROWS = 16;
/** What it takes for a label or a description of a group to be found by its id. */
let lastId = 0;

/**
 * `answer` is called once for each time that the card may be answered, with what the person said and the question's
 * `checkpoint_id`, so that it can never be an answer to another question.
 * @param {Frames.HitlPayload} payload
 * @param {(said: Said & {checkpoint_id: string}) => void} answer
 * @returns {Card}
 */
export function humanCard(payload, answer) {
  const several = severalOf(payload);
  const questions = several.length > 0 ? several : [questionOf({ ...payload }, 0)];
  // Of several, the payload itself repeats the first.
  const title = several.length > 0 ? t("asksSome", { count: several.length }) : payload.title || t("asks");
  const node = el("section", { class: "human", role: "group", "aria-label": title });
  /** @param {boolean} locked */
  const lock = (locked) => {
    for (const control of controlsOf(node)) control.disabled = locked;
  };
  /** @param {Said} said */
  const say = (said) => {
    lock(true);
    answer({ ...said, checkpoint_id: payload.checkpoint_id });
  };
  node.append(el("h3", {}, icon("alert"), el("span", {}, title)));
  const [question] = questions;
  if (several.length === 0 && question.calls.length === 0) node.append(...simpleQuestion(question, say));
  else if (several.length === 0) node.append(...wordsOf(question.words), callsForm(question, say));
  else node.append(severalForm(several, say));
  return { node, unlock: () => lock(false) };
}

/** @param {HTMLElement} node */
function controlsOf(node) {
  return [...node.querySelectorAll("button"), ...node.querySelectorAll("textarea"), ...node.querySelectorAll("input")];
}

// ---- what is asked ----

/**
 * The questions of a payload that asks several at once. What does not have their form is left out.
 * @param {Frames.HitlPayload} payload
 */
function severalOf({ questions }) {
  if (!Array.isArray(questions)) return [];
  return questions.filter((one) => isObject(one) && typeof one.id === "string").map(questionOf);
}

/** @param {Record<string, unknown>} asked @param {number} at @returns {Question} */
function questionOf(asked, at) {
  const { id, title, question, choices, free_text: freeText, stage } = asked;
  const calls = callsOf(asked);
  // The words about calls are those of the calls, where they have any.
  const told = stage === VALUE || calls.some(({ description }) => description !== "");
  return {
    id: typeof id === "string" ? id : String(at),
    title: textOf(title),
    words: told ? "" : textOf(question),
    choices: Array.isArray(choices) ? choices.filter(isChoice) : [],
    freeText: freeText === true,
    about: aboutOf(asked),
    calls,
  };
}

/** @param {Record<string, unknown>} asked @returns {Question["about"]} */
function aboutOf({ stage, question, metadata }) {
  if (stage === VALUE) return { text: textOf(question), language: "json" };
  const given = isObject(metadata) ? metadata.arguments : null;
  // Of other questions nothing but their words is shown.
  const shown = stage === "tool_approval" && isObject(given);
  return shown ? { text: JSON.stringify(given, null, 2), language: "json" } : null;
}

/**
 * The calls that LangChain's middleware asks about. Where it allows nothing that the page knows there are none: the
 * question is then shown by its choices, or takes words.
 * @param {Record<string, unknown>} asked
 * @returns {Call[]}
 */
function callsOf({ action_requests: requests, review_configs: configs }) {
  if (!Array.isArray(requests) || requests.length === 0) return [];
  const known = Array.isArray(configs) ? configs.filter(isObject) : null;
  const calls = requests.map((request) => callOf(isObject(request) ? request : {}, known));
  return calls.every(({ allowed }) => allowed.length > 0) ? calls : [];
}

/** @param {Record<string, unknown>} request @param {Record<string, unknown>[]|null} configs @returns {Call} */
function callOf({ name, args, arguments: given, description }, configs) {
  return {
    name: textOf(name) || t("unnamed"),
    args: [args, given].find(isObject) ?? {},
    key: args === undefined && given !== undefined ? "arguments" : "args",
    // By default it ends with the call itself, which stands below.
    description: textOf(description).split(`\n\nTool: ${name}\nArgs: `)[0],
    allowed: allowedOf(name, configs),
  };
}

/** @param {unknown} name @param {Record<string, unknown>[]|null} configs @returns {Decision["type"][]} */
function allowedOf(name, configs) {
  if (configs === null) return DECISIONS;
  const allowed = configs.find(({ action_name: named }) => named === name)?.allowed_decisions;
  return Array.isArray(allowed) ? DECISIONS.filter((one) => allowed.includes(one)) : WITHOUT_CONFIG;
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** @param {unknown} value @returns {value is Choice} */
function isChoice(value) {
  return isObject(value) && typeof value.id === "string" && typeof value.label === "string";
}

/** @param {unknown} value */
function textOf(value) {
  return typeof value === "string" ? value : "";
}

// ---- one question ----

/** @param {string} text @returns {HTMLElement[]} */
function wordsOf(text) {
  return text === "" ? [] : [el("p", { class: "plain" }, text)];
}

/** @param {Question} question @param {(said: Said) => void} say */
function simpleQuestion({ words, about, choices, freeText }, say) {
  const nodes = [
    ...wordsOf(words),
    ...(about === null ? [] : [codeBlock(about.text, about.language)]),
    el("div", { class: "buttons" }, choices.map((choice) => choiceButton(choice, say))),
  ];
  // A question without choices can only be answered in words.
  if (freeText || choices.length === 0) nodes.push(wordsForm(say));
  return nodes;
}

/** @param {Choice} choice @param {(said: Said) => void} say */
function choiceButton({ id, label, description }, say) {
  return el("button", { type: "button", title: description, onclick: () => say({ choice_id: id }) }, label);
}

/** @param {(said: Said) => void} say */
function wordsForm(say) {
  const words = el("textarea", { rows: 2, "aria-label": t("yourAnswer") });
  /** @param {SubmitEvent} event */
  const send = (event) => {
    event.preventDefault();
    const text = words.value.trim();
    if (text !== "") say({ text });
  };
  return el("form", { class: "words", onsubmit: send }, words, el("button", { class: "small" }, t("answer")));
}

// ---- forms ----

/**
 * A form that says `read()` once nothing is missing.
 * @param {HTMLElement[]} nodes
 * @param {HTMLButtonElement} button
 * @param {() => Said|null} read
 * @param {(said: Said) => void} say
 */
function formOf(nodes, button, read, say) {
  /** @type {HTMLFormElement} */
  const form = el("form", {
    novalidate: true,
    /** @param {SubmitEvent} event */
    onsubmit: (event) => {
      event.preventDefault();
      const said = read();
      if (said !== null) say(said);
      else /** @type {HTMLElement|null} */ (form.querySelector("[aria-invalid]"))?.focus();
    },
  });
  form.append(...nodes, el("div", { class: "buttons" }, button));
  return form;
}

/**
 * One call is approved by one press; of several each needs a decision of its own.
 * @param {Question} question
 * @param {(said: Said) => void} say
 */
function callsForm({ calls }, say) {
  const button = el("button", { class: "primary" }, t("sendDecisions"));
  /** @param {Decision["type"]} type */
  const name = (type) => {
    if (calls.length > 1) return;
    button.textContent = DECISION_WORDS[type].button;
    button.classList.toggle("danger", type === "reject");
    button.scrollIntoView({ block: "nearest" });
  };
  const field = callsField(calls, "h4", name);
  return formOf([field.node], button, field.read, say);
}

/** @param {Question[]} questions @param {(said: Said) => void} say */
function severalForm(questions, say) {
  const fields = questions.map((question, at) => ({ id: question.id, field: questionField(question, at, questions.length) }));
  const read = () => {
    // All are read, so that all say what is missing.
    const answers = fields.map(({ id, field }) => ({ id, answer: field.read() }));
    /** @type {Record<string, Answer>} */
    const said = {};
    for (const { id, answer } of answers) {
      if (answer === null) return null;
      said[id] = answer;
    }
    return { answers: said };
  };
  const nodes = fields.map(({ field }) => field.node);
  return formOf(nodes, el("button", { class: "primary" }, t("sendAnswers")), read, say);
}

/** @param {Question} question @param {number} at @param {number} count @returns {Field} */
function questionField(question, at, count) {
  const { title, words, about, choices, freeText, calls } = question;
  const heading = title || words || t("asks");
  const id = newId("question");
  const node = el("section", { class: "asked", role: "group", "aria-labelledby": id });
  node.append(
    el("h4", { id }, el("span", { class: "number" }, `${at + 1}/${count}`), el("span", {}, heading)),
    ...(heading === words ? [] : wordsOf(words)),
    ...(about === null ? [] : [codeBlock(about.text, about.language)]),
  );
  if (calls.length > 0) {
    const field = callsField(calls, "h5", null);
    node.append(field.node);
    return { node, read: field.read };
  }
  const field = choices.length > 0 ? choicesField(choices, freeText, heading) : wordsField(heading);
  node.append(field.node);
  return { node, read: field.read };
}

/**
 * One of several ways, each with what belongs to it below.
 * @param {string} legend
 * @param {{value: string, label: string, description?: string, panel?: HTMLElement}[]} ways
 * @param {string|null} preset
 * @param {(value: string) => void} chosen
 */
function waysField(legend, ways, preset, chosen) {
  const name = newId("way");
  const problem = problemOf();
  const group = el("fieldset", { class: "ways", "aria-describedby": problem.node.id });
  const panels = ways.flatMap(({ panel }) => (panel === undefined ? [] : [panel]));
  let value = preset;
  const show = () => {
    for (const way of ways) if (way.panel !== undefined) way.panel.hidden = way.value !== value;
  };
  const options = ways.map((way) => {
    const onchange = () => {
      ({ value } = way);
      problem.say("", radios());
      show();
      chosen(way.value);
      way.panel?.scrollIntoView({ block: "nearest" });
    };
    const radio = el("input", { type: "radio", name, value: way.value, checked: way.value === preset, onchange });
    return el("label", { class: "way", title: way.description }, radio, el("span", {}, way.label));
  });
  const radios = () => options.flatMap((option) => [...option.querySelectorAll("input")]);
  group.append(el("legend", { class: "visually-hidden" }, legend), ...options);
  show();
  const read = () => {
    problem.say(value === null ? MISSING.choice : "", radios().slice(0, 1));
    return value;
  };
  return { nodes: [group, problem.node, ...panels], read };
}

/** @param {Choice[]} choices @param {boolean} freeText @param {string} heading @returns {Field} */
function choicesField(choices, freeText, heading) {
  const words = wordsField(heading);
  const OWN = "\0own"; // no id of a choice can be this: NUL is refused by the service
  const ways = choices.map(({ id, label, description }) => ({ value: id, label, description }));
  const all = freeText ? [...ways, { value: OWN, label: t("otherWords"), panel: words.node }] : ways;
  const preset = choices.find((choice) => choice.default === true)?.id ?? null;
  const field = waysField(heading, all, preset, () => {});
  const read = () => {
    const value = field.read();
    if (value === OWN) return words.read();
    return value === null ? null : { choice_id: value };
  };
  return { node: el("div", { class: "field" }, field.nodes), read };
}

/** @param {string} heading @returns {{node: HTMLElement, read: () => {text: string}|null}} */
function wordsField(heading) {
  const problem = problemOf();
  const attributes = { rows: 2, "aria-label": t("answerTo", { heading }), "aria-describedby": problem.node.id };
  const words = el("textarea", { ...attributes, oninput: () => problem.say("", [words]) });
  const read = () => {
    const text = words.value.trim();
    problem.say(text === "" ? MISSING.words : "", [words]);
    return text === "" ? null : { text };
  };
  return { node: el("div", { class: "field" }, words, problem.node), read };
}

// ---- decisions about calls ----

/**
 * @param {Call[]} calls
 * @param {"h4"|"h5"} level of the heading of each, below what it stands in
 * @param {((type: Decision["type"]) => void)|null} chosen what the decision on the only call is; null among others
 * @returns {Field}
 */
function callsField(calls, level, chosen) {
  const alone = calls.length === 1 && chosen !== null;
  const fields = calls.map((call) => callField(call, level, alone ? chosen : null));
  const read = () => {
    const decisions = fields.map((field) => field.read());
    return decisions.every((decision) => decision !== null) ? { decisions } : null;
  };
  return { node: el("div", { class: "calls" }, fields.map(({ node }) => node)), read };
}

/**
 * @param {Call} call
 * @param {"h4"|"h5"} level
 * @param {((type: Decision["type"]) => void)|null} chosen where it is the only one: then the first way is the preset
 * @returns {{node: HTMLElement, read: () => Decision|null}}
 */
function callField({ name, args, key, description, allowed }, level, chosen) {
  const shown = codeBlock(JSON.stringify(args, null, 2), "json");
  const editor = argumentsEditor(name, args);
  const reason = el("textarea", { rows: 2, "aria-label": t("whyNot", { name }), placeholder: t("reason") });
  const response = wordsField(t("instead", { name }));
  /** @type {Partial<Record<Decision["type"], HTMLElement>>} the editor has a place of its own */
  const panels = { reject: el("div", { class: "field" }, reason), respond: response.node };
  const ways = allowed.map((type) => ({ value: type, label: DECISION_WORDS[type].label, panel: panels[type] }));
  /** @param {string|null} type */
  const choose = (type) => {
    shown.hidden = type === "edit";
    editor.node.hidden = type !== "edit";
    if (type !== null) chosen?.(/** @type {Decision["type"]} */ (type));
  };
  const preset = chosen === null ? null : allowed[0];
  const field = waysField(t("decision", { name }), ways, preset, choose);
  choose(preset);
  const node = el(
    "div",
    { class: "call", role: "group", "aria-label": t("call", { name }) },
    el(level, {}, icon("tool"), el("code", {}, name)),
    ...wordsOf(description),
    shown,
    editor.node,
    ...field.nodes,
  );
  /** @returns {Decision|null} */
  const read = () => {
    const type = field.read();
    switch (type) {
      case "edit": {
        const edited = editor.read();
        return edited === null ? null : { type, edited_action: { name, [key]: edited } };
      }
      case "reject": {
        const message = reason.value.trim();
        return message === "" ? { type } : { type, message };
      }
      case "respond": {
        const said = response.read();
        return said === null ? null : { type, message: said.text };
      }
      default:
        return type === null ? null : { type: "approve" };
    }
  };
  return { node, read };
}

/** @param {string} name @param {object} args */
function argumentsEditor(name, args) {
  const text = JSON.stringify(args, null, 2);
  const problem = problemOf();
  const check = () => {
    const { value, problem: wrong } = parsed(area.value);
    problem.say(wrong, [area]);
    return value;
  };
  const area = el("textarea", {
    class: "json",
    rows: Math.min(MAX_EDITOR_ROWS, text.split("\n").length + 1),
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    "aria-label": t("argumentsOf", { name }),
    "aria-describedby": problem.node.id,
    oninput: check,
  });
  area.value = text;
  return { node: el("div", { class: "field" }, area, problem.node), read: check };
}

/** @param {string} text @returns {{value: object|null, problem: string}} */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return isObject(value) ? { value, problem: "" } : { value: null, problem: argumentsProblem(null) };
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return { value: null, problem: argumentsProblem(error.message) };
  }
}

/** The place below a control for what is wrong with its value. */
function problemOf() {
  const node = el("p", { class: "problem", id: newId("problem"), role: "alert" });
  /** @param {string} text "" for nothing @param {HTMLElement[]} controls */
  const say = (text, controls) => {
    if (node.textContent !== text) node.textContent = text;
    for (const control of controls) {
      if (text === "") control.removeAttribute("aria-invalid");
      else control.setAttribute("aria-invalid", "true");
    }
  };
  return { node, say };
}

/** @param {string} name */
function newId(name) {
  lastId += 1;
  return `${name}-${lastId}`;
}
