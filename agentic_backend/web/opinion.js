/** What a person says of an answer: a rating, why, and a comment. */

/**
 * @import { Feedback } from "./api.js"
 * @import { IconName } from "./dom.js"
 */

import { el, icon } from "./dom.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: {
    good: "Good answer",
    bad: "Bad answer",
    middle: "Rated {rating} of 5",
    why: "Say why",
    change: "Change what you said",
    whyGood: "What is good about this answer?",
    whyBad: "What is wrong with this answer?",
    comment: "Comment",
    hint: "At most {most} characters. Those who run this service read it.",
    send: "Send",
    close: "Close",
    thanks: "Thank you. What you said is kept with the answer.",
    not_true: "Not true",
    not_complete: "Not complete",
    wrong_sources: "Wrong sources",
    too_long: "Too long",
    true: "True",
    complete: "Complete",
    good_sources: "Good sources",
    clear: "Clear",
    other: "Something else",
  },
  fr: {
    good: "Bonne réponse",
    bad: "Mauvaise réponse",
    middle: "Notée {rating} sur 5",
    why: "Dire pourquoi",
    change: "Modifier votre avis",
    whyGood: "Qu'est-ce qui est bien dans cette réponse ?",
    whyBad: "Qu'est-ce qui ne va pas dans cette réponse ?",
    comment: "Commentaire",
    hint: "{most} caractères au plus. Les exploitants de ce service le lisent.",
    send: "Envoyer",
    close: "Fermer",
    thanks: "Merci. Votre avis est conservé avec la réponse.",
    not_true: "Inexacte",
    not_complete: "Incomplète",
    wrong_sources: "Mauvaises sources",
    too_long: "Trop longue",
    true: "Exacte",
    complete: "Complète",
    good_sources: "Bonnes sources",
    clear: "Claire",
    other: "Autre chose",
  },
});

/** @typedef {"not_true"|"not_complete"|"wrong_sources"|"too_long"|"true"|"complete"|"good_sources"|"clear"|"other"} Reason */
/** @typedef {{reason: Reason|null, comment: string|null}} Opinion */

export const GOOD = 5;
export const BAD = 1;
const MAX_COMMENT_CHARS = 1000;
/** @type {Reason[]} */
const WHY_GOOD = ["true", "complete", "good_sources", "clear", "other"];
/** @type {Reason[]} */
const WHY_BAD = ["not_true", "not_complete", "wrong_sources", "too_long", "other"];
let lastId = 0;

/** @param {number} rating */
export function ratingText(rating) {
  if (rating === GOOD) return t("good");
  return rating === BAD ? t("bad") : t("middle", { rating });
}

/**
 * A reason in words; one that this page does not know as it is.
 * @param {string} reason
 */
export function reasonText(reason) {
  const known = [...WHY_GOOD, ...WHY_BAD].find((one) => one === reason);
  return known === undefined ? reason : t(known);
}

/** The two buttons under an answer, and the form that they open. */
export class OpinionBar {
  #rate;
  #good;
  #bad;
  #why = el("button", { type: "button", class: "quiet small why", onclick: () => this.#open() });
  #place = el("div", { class: "opinion" });
  #said = el("p", { class: "hint", role: "status" });
  /** @type {Feedback|null} */
  #feedback = null;
  /** @type {{rating: number, said: Opinion}|null} what was sent and is not known to be kept */
  #sent = null;

  /** @param {(rating: number, said: Opinion|null) => void} rate without anything said it gives the rating or takes it back */
  constructor(rate) {
    this.#rate = rate;
    this.#good = this.#button(GOOD, "like");
    this.#bad = this.#button(BAD, "dislike");
    this.buttons = [this.#good, this.#bad, this.#why];
    this.node = el("div", { class: "opinion-place" }, this.#place, this.#said);
    this.update(null);
  }

  /**
   * Shows what is kept of the person's opinion.
   * @param {Feedback|null} feedback
   */
  update(feedback) {
    this.#feedback = feedback;
    for (const button of [this.#good, this.#bad]) {
      button.setAttribute("aria-pressed", String(Number(button.value) === feedback?.rating));
    }
    this.#why.hidden = feedback === null || this.#place.firstChild !== null;
    this.#why.textContent = feedback?.reason || feedback?.comment ? t("change") : t("why");
    if (this.#sent !== null && isKept(this.#sent, feedback)) {
      this.#sent = null;
      this.#close();
      this.#said.textContent = t("thanks");
    }
  }

  /** @param {number} value @param {IconName} name */
  #button(value, name) {
    const label = ratingText(value);
    const onclick = () => this.#press(value);
    const attributes = { type: "button", class: "quiet small rating", value, "aria-label": label, title: label, onclick };
    return el("button", attributes, icon(name));
  }

  /** @param {number} rating */
  #press(rating) {
    const back = this.#feedback?.rating === rating;
    this.#said.textContent = "";
    if (back) {
      this.#place.replaceChildren();
    } else {
      this.#show(rating, null);
    }
    this.#rate(rating, null);
  }

  #open() {
    const { rating = BAD } = this.#feedback ?? {};
    this.#said.textContent = "";
    this.#show(rating, this.#feedback);
    this.#why.hidden = true;
    this.#place.querySelector("input")?.focus();
  }

  #close() {
    const focused = this.#place.contains(document.activeElement);
    const pressed = this.#feedback?.rating === GOOD ? this.#good : this.#bad;
    this.#place.replaceChildren();
    this.#why.hidden = this.#feedback === null;
    if (focused) pressed.focus();
  }

  /** @param {number} rating @param {Feedback|null} before */
  #show(rating, before) {
    lastId += 1;
    const name = `why-${lastId}`;
    const reasons = (rating > 2 ? WHY_GOOD : WHY_BAD).map((reason) => {
      const radio = el("input", { type: "radio", name, value: reason, checked: before?.reason === reason });
      return el("label", { class: "way" }, radio, el("span", {}, t(reason)));
    });
    const comment = el("textarea", { rows: 2, maxlength: MAX_COMMENT_CHARS, dir: "auto", "aria-describedby": `${name}-hint` });
    comment.value = before?.comment ?? "";
    const legend = rating > 2 ? t("whyGood") : t("whyBad");
    /** @param {SubmitEvent} event */
    const onsubmit = (event) => {
      event.preventDefault();
      const chosen = /** @type {HTMLInputElement|null} */ (form.querySelector("input:checked"));
      const reason = /** @type {Reason|null} */ (chosen?.value ?? null);
      const text = comment.value.trim();
      const said = { reason, comment: text === "" ? null : text };
      this.#sent = { rating, said };
      this.#rate(rating, said);
    };
    /** @param {KeyboardEvent} event */
    const onkeydown = (event) => {
      if (event.key === "Escape") this.#close();
    };
    /** @type {HTMLFormElement} */
    const form = el(
      "form",
      { "aria-label": legend, onsubmit, onkeydown },
      el("fieldset", { class: "ways" }, el("legend", {}, legend), reasons),
      el("label", { class: "comment" }, el("span", {}, t("comment")), comment),
      el("p", { class: "hint", id: `${name}-hint` }, t("hint", { most: MAX_COMMENT_CHARS })),
      el(
        "div",
        { class: "buttons" },
        el("button", { class: "primary small" }, t("send")),
        el("button", { type: "button", class: "small", onclick: () => this.#close() }, t("close")),
      ),
    );
    this.#place.replaceChildren(form);
    form.scrollIntoView({ block: "nearest" });
  }
}

/** @param {{rating: number, said: Opinion}} sent @param {Feedback|null} feedback */
function isKept({ rating, said }, feedback) {
  if (feedback === null) return false;
  const { reason = null, comment = null } = feedback;
  return feedback.rating === rating && reason === said.reason && comment === said.comment;
}
