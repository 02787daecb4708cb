/** Blocks of code: shown at once as plain text, and coloured when the browser has time, if the language is one of ours. */

import { copyButton, el } from "../dom.js";
import { catalogue } from "../i18n.js";
import { colour } from "./highlight.js";

const t = catalogue({
  en: { copy: "Copy code", text: "text" },
  fr: { copy: "Copier le code", text: "texte" },
});

/**
 * A block of code with its language and a copy button.
 * @param {string} code
 * @param {string} language
 * @param {boolean} whole whether the code has ended; one that still grows is not coloured
 */
export function codeBlock(code, language = "", whole = true) {
  const body = el("code", {}, code);
  if (whole) colour(body, language);
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || t("text")), copyButton(() => body.textContent, t("copy"))),
    el("pre", { tabindex: "0" }, body),
  );
}
