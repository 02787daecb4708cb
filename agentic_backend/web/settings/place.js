/** Settings: how the page looks and behaves for this person, their API keys, and all that is theirs. */

/**
 * @import { Page } from "../places.js"
 * @import { Enter, Theme } from "../choices.js"
 * @import { Language } from "../i18n.js"
 */
import { chooseEnter, chooseTheme, enter, theme } from "../choices.js";
import { el } from "../dom.js";
import { catalogue, chooseLanguage, language, LANGUAGES } from "../i18n.js";
import { dataSection } from "./data.js";
import { keysSection } from "./keys.js";

const t = catalogue({
  en: {
    page: "This page",
    kept: "Kept in this browser.",
    language: "Language",
    theme: "Appearance",
    system: "As the system",
    light: "Light",
    dark: "Dark",
    enter: "In the message box",
    sends: "Enter sends, Shift + Enter starts a new line",
    breaks: "Enter starts a new line, Ctrl + Enter sends",
  },
  fr: {
    page: "Cette page",
    kept: "Conservé dans ce navigateur.",
    language: "Langue",
    theme: "Apparence",
    system: "Comme le système",
    light: "Clair",
    dark: "Sombre",
    enter: "Dans la zone de message",
    sends: "Entrée envoie, Maj + Entrée passe à la ligne",
    breaks: "Entrée passe à la ligne, Ctrl + Entrée envoie",
  },
});

/**
 * @param {HTMLElement} host
 * @param {Page} page
 */
export function show(host, page) {
  const ended = new AbortController();
  const column = el("div", { class: "settings" }, pageSection());
  column.append(keysSection(page, ended.signal), dataSection(page, ended.signal));
  host.append(column);
  return () => ended.abort();
}

function pageSection() {
  return el(
    "section",
    { "aria-labelledby": "settings-page" },
    el("h2", { id: "settings-page" }, t("page")),
    el("p", { class: "hint" }, t("kept")),
    choice(t("language"), LANGUAGES, language, (next) => chooseLanguage(/** @type {Language} */ (next))),
    choice(t("theme"), { system: t("system"), light: t("light"), dark: t("dark") }, theme(), (next) =>
      chooseTheme(/** @type {Theme} */ (next)),
    ),
    choice(t("enter"), { sends: t("sends"), breaks: t("breaks") }, enter(), (next) =>
      chooseEnter(/** @type {Enter} */ (next)),
    ),
  );
}

/**
 * A labelled list of which one is chosen.
 * @param {string} label
 * @param {Record<string, string>} options by their values
 * @param {string} chosen
 * @param {(next: string) => void} onChange
 */
function choice(label, options, chosen, onChange) {
  const select = el("select", {}, Object.entries(options).map(([value, words]) => el("option", { value }, words)));
  select.value = chosen;
  select.addEventListener("change", () => onChange(select.value));
  return el("label", { class: "setting" }, el("span", {}, label), select);
}
