/** A search in a library, whose scores say where they come from. */

/** @import { Hit, Library, Policy } from "./api.js" */
/** @import { Shown } from "./place.js" */
import { el, icon } from "../dom.js";
import { scoreText, t } from "./texts.js";

const HITS = 10;
/** Hits of each half of a search that are looked through for a passage: as many as the service itself compares. */
const COMPARED = 50;
const MOST_QUESTION = 32_000;
const MOST_SHOWN = 700;
const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });
/** @type {Policy[]} */
const POLICIES = ["hybrid", "semantic", "strict"];
const REASONS = /** @type {const} */ ({ hybrid: "hybridWhy", semantic: "semanticWhy", strict: "strictWhy" });

/** @typedef {{words: Hit[], meaning: Hit[]}} Halves what a search finds by one of them alone */

/** @param {Shown} shown @param {Library} found */
export function searchSection(shown, found) {
  const { library, left, guarded } = shown;
  const input = el("input", { type: "search", required: true, maxlength: MOST_QUESTION, autocomplete: "off", dir: "auto" });
  const policy = el("select", {});
  for (const name of POLICIES) policy.append(el("option", { value: name }, t(name)));
  const button = el("button", { type: "submit" }, icon("find"), t("find"));
  const form = el(
    "form",
    { class: "search-form", role: "search", "aria-label": t("search") },
    el("label", { class: "question-field" }, el("span", {}, t("question")), input),
    el("label", {}, el("span", {}, t("policy")), policy),
    button,
  );
  const status = el("p", { class: "hint", role: "status" });
  const list = el("ol", { class: "hits" });
  let searches = 0;
  const search = () =>
    guarded(async () => {
      searches += 1;
      const number = searches;
      const question = input.value.trim();
      const by = /** @type {Policy} */ (policy.value);
      if (question === "") return;
      list.replaceChildren();
      status.textContent = t("searching");
      try {
        const hits = await library.search(found.id, question, by, HITS);
        if (left.aborted || number !== searches) return;
        status.textContent = hits.length === 0 ? t("nothingFound") : t("found", { count: hits.length });
        const halves = halvesOf(shown, found, question);
        const best = Math.max(...hits.map(({ score }) => score));
        list.replaceChildren(...hits.map((hit, at) => hitRow(shown, { hit, at, best, by, question, halves })));
      } catch (error) {
        if (number === searches) status.textContent = "";
        throw error;
      }
    }, search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  const heading = el("h3", { id: "library-search" }, t("search"));
  return el("section", { "aria-labelledby": "library-search" }, heading, form, status, list);
}

/** Asks for them once, when the first score is asked about. @param {Shown} shown @param {Library} found @param {string} question */
function halvesOf({ library }, found, question) {
  /** @type {Promise<Halves>|null} */
  let asked = null;
  return () => {
    asked ??= Promise.all([
      library.search(found.id, question, "strict", COMPARED),
      library.search(found.id, question, "semantic", COMPARED),
    ]).then(([words, meaning]) => ({ words, meaning }));
    return asked;
  };
}

/**
 * @param {Shown} shown
 * @param {{hit: Hit, at: number, best: number, by: Policy, question: string, halves: () => Promise<Halves>}} found
 */
function hitRow(shown, { hit, at, best, by, question, halves }) {
  const share = best > 0 ? Math.max(0, hit.score / best) : 0;
  const mark = hit.viewer_fragment ? `#${hit.viewer_fragment}` : "";
  const link = el("a", { href: `/documents/${encodeURIComponent(hit.uid)}${mark}` }, el("bdi", {}, hit.title));
  const where = [hit.section ?? "", hit.page ? t("page", { page: hit.page }) : ""].filter(Boolean).join(" · ");
  const score = el("p", { class: "hit-score" }, el("span", {}, t("score", { score: scoreText(hit.score) })));
  if (at > 0) score.append(el("span", { class: "hint" }, t("ofBest", { percent: Math.round(100 * share) })));
  const why = el("details", { class: "why" }, el("summary", {}, t("why")));
  const text = el("div", {});
  why.append(text);
  why.addEventListener("toggle", () => {
    if (why.open && text.childElementCount === 0) explain(shown, text, { hit, by, question, halves });
  });
  return el(
    "li",
    {},
    el("div", { class: "hit-head" }, link, el("bdi", { class: "hint" }, where)),
    score,
    el("p", { class: "hit-text", dir: "auto" }, marked(hit.content, question)),
    why,
  );
}

/**
 * @param {Shown} shown
 * @param {HTMLElement} text
 * @param {{hit: Hit, by: Policy, question: string, halves: () => Promise<Halves>}} found
 */
function explain({ guarded, left }, text, { hit, by, question, halves }) {
  const words = wordsOf(question).filter((word) => wordsOf(hit.content).includes(word));
  const inIt = words.length === 0 ? t("noWordsIn") : t("wordsIn", { words: [...new Set(words)].join(", ") });
  text.append(el("p", {}, t(REASONS[by])), el("p", { dir: "auto" }, inIt));
  if (by !== "hybrid") return;
  const status = el("p", { role: "status" }, t("searching"));
  text.append(status);
  guarded(async () => {
    try {
      const both = await halves();
      if (left.aborted) return;
      text.append(el("p", {}, placeText(both.words, hit, "byWords", "notByWords")));
      text.append(el("p", {}, placeText(both.meaning, hit, "byMeaning", "notByMeaning")));
    } finally {
      status.remove();
    }
  });
}

/** @param {Hit[]} half @param {Hit} hit @param {"byWords"|"byMeaning"} there @param {"notByWords"|"notByMeaning"} missing */
function placeText(half, hit, there, missing) {
  const at = half.findIndex((one) => one.uid === hit.uid && one.viewer_fragment === hit.viewer_fragment);
  return at < 0 ? t(missing, { count: COMPARED }) : t(there, { rank: at + 1, score: scoreText(half[at].score) });
}

/** Its words but short ones, most of which say nothing of what is asked. @param {string} text */
function wordsOf(text) {
  const all = [...WORDS.segment(text)].filter(({ isWordLike }) => isWordLike).map(({ segment }) => segment);
  return all.filter((word) => word.length > 3 || /\d/.test(word)).map((word) => word.toLowerCase());
}

/** A passage with the question's words marked. @param {string} content @param {string} question */
function marked(content, question) {
  const wanted = new Set(wordsOf(question));
  const short = content.length > MOST_SHOWN ? `${content.slice(0, MOST_SHOWN)}…` : content;
  return [...WORDS.segment(short)].map(({ segment, isWordLike }) =>
    isWordLike && wanted.has(segment.toLowerCase()) ? el("mark", {}, segment) : segment,
  );
}
