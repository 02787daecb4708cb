/**
 * The page's texts in the person's language: each module names its own, in every language, side by side.
 *
 *     const t = catalogue({ en: { greeting: "Hello, {name}" }, fr: { greeting: "Bonjour, {name}" } });
 *     t("greeting", { name });
 *
 * English says which texts there are; one that another language lacks, or has beside them, is a type error.
 */

/**
 * @typedef {"en"|"fr"} Language
 * @typedef {{one: string, other: string}} Counted a text by a number, `{count}`
 * @typedef {string|Counted} Text
 */

/** The languages of the page, by their names in themselves. @type {Record<Language, string>} */
export const LANGUAGES = { en: "English", fr: "Français" };

const LANGUAGE_KEY = "turnwise.language";

/** The language of this page; another one holds after the next load. @type {Language} */
export const language = chosen();

const plurals = new Intl.PluralRules(language);
const numbers = new Intl.NumberFormat(language);

/** @returns {Language} */
function chosen() {
  const kept = localStorage.getItem(LANGUAGE_KEY);
  const wanted = [...(kept === null ? [] : [kept]), ...navigator.languages].map((tag) => tag.split("-")[0]);
  return wanted.find(isLanguage) ?? "en";
}

/** @param {string} tag @returns {tag is Language} */
function isLanguage(tag) {
  return Object.hasOwn(LANGUAGES, tag);
}

/**
 * Keeps the person's choice, and shows the page in it.
 * @param {Language} next
 */
export function chooseLanguage(next) {
  localStorage.setItem(LANGUAGE_KEY, next);
  location.reload();
}

/**
 * What gives a module its texts: by name, with values for the places in braces. A counted text takes `count`.
 * @template {Record<string, Text>} T
 * @param {{en: T} & {[L in Exclude<Language, "en">]: {[K in keyof T]: T[K] extends string ? string : Counted}}} texts
 * @returns {(name: keyof T & string, values?: Record<string, string|number>) => string}
 */
export function catalogue(texts) {
  const own = texts[language];
  return (name, values = {}) => filled(/** @type {Text} */ (own[name]), values);
}

/** @param {Text} text @param {Record<string, string|number>} values */
function filled(text, values) {
  const one = typeof text !== "string" && plurals.select(Number(values.count)) === "one";
  const chosenText = typeof text === "string" ? text : text[one ? "one" : "other"];
  return chosenText.replace(/\{(\w+)\}/g, (place, name) => {
    const value = values[name];
    return typeof value === "number" ? numbers.format(value) : (value ?? place);
  });
}

/**
 * Puts texts into the nodes of index.html that name one: `data-text` in their words, `data-label` in their label and
 * `data-hint` in their placeholder.
 * @param {(name: any) => string} t
 */
export function translate(t) {
  document.documentElement.lang = language;
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-text]"))) {
    node.append(t(node.dataset.text));
  }
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-label]"))) {
    node.setAttribute("aria-label", t(node.dataset.label));
    if (node.title !== "") node.title = t(node.dataset.label);
  }
  for (const node of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("[data-hint]"))) {
    node.placeholder = t(node.dataset.hint);
  }
}
