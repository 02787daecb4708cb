/** The card of an agent that waits for a person: what it asks, what it is about, and the ways to answer. */

import { el, icon } from "./dom.js";
import { codeBlock } from "./markdown.js";

/** @typedef {{choice_id: string}|{text: string}} Said what the person says, as docs/protocol.md has it */

/**
 * The card of a question. `answer` is called once, with what the person said: {choice_id} or {text}, and the question's
 * `checkpoint_id`, so that it can never be an answer to another question.
 * @param {Frames.HitlPayload} payload
 * @param {(said: Said & {checkpoint_id: string}) => void} answer
 */
export function humanCard(payload, answer) {
  const card = el("section", { class: "human", role: "group", "aria-label": payload.title || "The agent asks you" });
  /** @param {Said} said */
  const say = (said) => {
    for (const control of [...card.querySelectorAll("button"), ...card.querySelectorAll("textarea")]) control.disabled = true;
    answer({ ...said, checkpoint_id: payload.checkpoint_id });
  };
  const about = aboutOf(payload);
  card.append(
    el("h3", {}, icon("alert"), payload.title || "The agent asks you"),
    ...(payload.question ? [el("p", {}, payload.question)] : []),
    ...(about === null ? [] : [codeBlock(JSON.stringify(about, null, 2), "json")]),
    el("div", { class: "buttons" }, (payload.choices ?? []).map((choice) => choiceButton(choice, say))),
  );
  // A question without choices can only be answered in words.
  if (payload.free_text || !payload.choices?.length) card.append(wordsForm(say));
  return card;
}

/**
 * What a tool would be called with; of other questions nothing but their words is shown.
 * @param {Frames.HitlPayload} payload
 */
function aboutOf(payload) {
  return payload.stage === "tool_approval" ? (payload.metadata?.arguments ?? null) : null;
}

/** @param {NonNullable<Frames.HitlPayload["choices"]>[number]} choice @param {(said: Said) => void} say */
function choiceButton({ id, label, description }, say) {
  return el("button", { type: "button", title: description, onclick: () => say({ choice_id: id }) }, label);
}

/** @param {(said: Said) => void} say */
function wordsForm(say) {
  const words = el("textarea", { rows: 2, "aria-label": "Your answer to the agent" });
  /** @param {SubmitEvent} event */
  const send = (event) => {
    event.preventDefault();
    const text = words.value.trim();
    if (text !== "") say({ text });
  };
  return el("form", { onsubmit: send }, words, el("button", { class: "small" }, "Answer"));
}
