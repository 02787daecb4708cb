/** The place of agents: those that the person may change at `#/agents`, one of them at `#/agents/{id}`. */

/**
 * @import { Page } from "../places.js"
 * @import { Editable, Kind, MadeAgent } from "./api.js"
 */
import { ApiError } from "../api.js";
import { confirmed } from "../confirm.js";
import { el, icon, markAgent } from "../dom.js";
import { errorText } from "../texts.js";
import { BuilderApi } from "./api.js";
import { agentForm, labelled, problemAt } from "./form.js";
import { t } from "./texts.js";

/**
 * What the views of this place share.
 * @typedef {object} Shown
 * @property {HTMLElement} host
 * @property {Page} page
 * @property {BuilderApi} builder
 * @property {AbortSignal} left when the person goes elsewhere
 */

const PLAIN = "agentic_backend.agent.plain";
const RAG = "agentic_backend.agent.rag";
const TOOLS = "agentic_backend.agent.tools";

/**
 * @param {HTMLElement} host
 * @param {Page} page
 * @param {string} rest the id of an agent, "" for all
 */
export function show(host, page, rest) {
  const leaving = new AbortController();
  const root = el("div", { class: "builder" });
  host.append(root);
  load({ host: root, page, builder: new BuilderApi(page.api), left: leaving.signal }, rest);
  return () => leaving.abort();
}

/** @param {Shown} shown @param {string} rest */
async function load(shown, rest) {
  const { host, builder, left } = shown;
  const state = el("p", { class: "hint", role: "status" }, t("loading"));
  host.replaceChildren(el("h2", {}, t("yours")), state);
  try {
    const editable = await builder.editable();
    if (left.aborted) return;
    const agent = editable.agents.find(({ id }) => encodeURIComponent(id) === rest);
    if (rest === "") showAll(shown, editable);
    else if (agent !== undefined) showOne(shown, editable, agent);
    else host.replaceChildren(allLink(), el("p", { class: "hint" }, t("gone")));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (left.aborted) return;
    if (error.status === 403) {
      state.textContent = t("off");
      return;
    }
    const again = el("button", { type: "button", class: "small", onclick: () => load(shown, rest) }, t("again"));
    state.replaceChildren(t("unread"), " ", again);
  }
}

function allLink() {
  return el("a", { class: "back", href: "#/agents" }, t("all"));
}

/** @param {Shown} shown @param {Editable} editable */
function showAll(shown, { agents, kinds }) {
  const state = el("p", { class: "hint", role: "status" }, agents.length === 0 ? t("none") : "");
  const list = el("ul", { class: "agent-list" }, agents.map(row));
  const made = kinds.length === 0 ? [] : [createSection(shown, kinds)];
  shown.host.replaceChildren(el("h2", {}, t("yours")), el("p", { class: "hint" }, t("about")), state, list, ...made);
}

/** @param {MadeAgent} agent */
function row({ id, name, enabled, tuning }) {
  const mark = el("span", { class: "agent-mark", "aria-hidden": "true" });
  markAgent(mark, id, name);
  const link = el("a", { href: `#/agents/${encodeURIComponent(id)}` }, el("bdi", {}, name));
  const words = [tuning.role || tuning.description, enabled ? "" : t("switchedOff")].filter(Boolean).join(" · ");
  const hint = words === "" ? [] : [el("p", { class: "hint", dir: "auto" }, words)];
  return el("li", {}, mark, el("div", {}, link, ...hint));
}

/** @param {Kind} kind */
function kindText({ class_path: path, name }) {
  if (path === PLAIN) return t("kindPlain");
  if (path === RAG) return t("kindRag");
  if (path === TOOLS) return t("kindTools");
  return name === null ? path : t("kindLike", { name });
}

/** @param {Shown} shown @param {Kind[]} kinds */
function createSection({ page, builder }, kinds) {
  const name = el("input", { type: "text", maxlength: 80, required: true, autocomplete: "off", dir: "auto" });
  const kind = el("select", {}, kinds.map((one) => el("option", { value: one.class_path }, kindText(one))));
  const button = el("button", { class: "primary" }, icon("plus"), t("create"));
  const fields = { name: labelled(t("name"), name), class_path: labelled(t("kind"), kind) };
  /** @param {SubmitEvent} event */
  const onsubmit = async (event) => {
    event.preventDefault();
    problemAt(fields, null, "");
    if (name.value.trim() === "") {
      problemAt(fields, "name", t("needed"));
      return;
    }
    button.disabled = true;
    try {
      const agent = await builder.create(name.value.trim(), kind.value);
      await page.agentsChanged();
      page.announce(t("made", { name: agent.name }));
      page.goTo(`#/agents/${encodeURIComponent(agent.id)}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!problemAt(fields, fieldOf(error), refusal(error))) page.notify(errorText(error.failure));
    } finally {
      button.disabled = false;
      if (document.activeElement === document.body) button.focus();
    }
  };
  const form = el("form", { novalidate: true, onsubmit }, fields.name.node, fields.class_path.node, button);
  return el("section", { "aria-labelledby": "agent-new" }, el("h3", { id: "agent-new" }, t("newAgent")), form);
}

/** Which value of an agent was refused. @param {ApiError} error */
function fieldOf({ code, field }) {
  return code === "conflict" ? "name" : field;
}

/** Why. @param {ApiError} error */
function refusal({ code, serverMessage }) {
  if (code === "conflict") return t("taken");
  if (code === "too_large") return t("tooLarge");
  return serverMessage ?? t("invalid");
}

/** @param {Shown} shown @param {Editable} editable @param {MadeAgent} agent */
function showOne(shown, editable, agent) {
  const { host, page, builder } = shown;
  const documents = agent.class_path !== PLAIN;
  const tools = agent.class_path !== PLAIN && agent.class_path !== RAG;
  const form = agentForm(agent, { ...editable, documents, tools });
  const heading = el("h2", { tabindex: -1 });
  const state = el("p", { class: "hint", role: "status" });
  const save = el("button", { class: "primary" }, icon("check"), t("save"));
  const tryIt = el("button", { type: "button" }, icon("send"), t("tryIt"));
  const remove = el("button", { type: "button", class: "danger" }, icon("trash"), t("remove"));
  let kept = agent;

  const showKept = () => {
    const mark = el("span", { class: "agent-mark", "aria-hidden": "true" });
    markAgent(mark, kept.id, kept.name);
    heading.replaceChildren(mark, el("bdi", {}, kept.name));
    tryIt.hidden = !kept.enabled;
  };
  /** @param {SubmitEvent} event */
  const onsubmit = async (event) => {
    event.preventDefault();
    problemAt(form.fields, null, "");
    const { values, at, problem } = form.read();
    if (at !== undefined) {
      problemAt(form.fields, at, problem ?? "");
      state.textContent = t("refused");
      return;
    }
    save.disabled = true;
    state.textContent = "";
    try {
      kept = await builder.update({ ...kept, ...values });
      showKept();
      state.textContent = t("saved");
      await page.agentsChanged();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (problemAt(form.fields, fieldOf(error), refusal(error))) state.textContent = t("refused");
      else if (error.code === "too_large" || error.code === "bad_request") state.textContent = refusal(error);
      else page.notify(errorText(error.failure));
    } finally {
      save.disabled = false;
      if (document.activeElement === document.body) save.focus();
    }
  };
  tryIt.addEventListener("click", () => page.askAgent(kept.id));
  remove.addEventListener("click", () => removed(shown, kept));
  const buttons = el("div", { class: "buttons" }, save, tryIt, remove);
  showKept();
  host.replaceChildren(allLink(), heading, el("form", { novalidate: true, onsubmit }, form.node, state, buttons));
  heading.focus();
}

/** @param {Shown} shown @param {MadeAgent} agent */
async function removed({ host, page, builder }, { id, name }) {
  const texts = { title: t("removeTitle"), text: t("removeText", { name }), keep: t("keep"), act: t("remove") };
  if (!(await confirmed(host, texts))) return;
  try {
    await builder.remove(id);
    await page.agentsChanged();
    page.announce(t("deleted", { name }));
    page.goTo("#/agents");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    page.notify(errorText(error.failure));
  }
}
