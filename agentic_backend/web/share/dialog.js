/** The dialog in which a conversation's links are made, copied, listed and revoked. */

/**
 * @import { Api, Settings } from "../api.js"
 * @import { Share } from "./links.js"
 */

import { ApiError } from "../api.js";
import { copyButton, el, icon } from "../dom.js";
import { catalogue } from "../i18n.js";
import { addStyle } from "../places.js";
import { errorText } from "../texts.js";
import { addressOf, dateText } from "./links.js";

const t = catalogue({
  en: {
    heading: "Share this conversation",
    about:
      "Whoever has the link reads your questions and the answers with the passages of their sources. Not shown: your name, the agent's steps, attached files.",
    signed_in: "Signed-in people",
    anybody: "Anybody, without signing in",
    who: "Who can open it",
    later: "Also show what is said after this",
    ends: "Ends",
    never: "When it is revoked",
    days: { one: "After {count} day", other: "After {count} days" },
    make: "Make a link",
    link: "New link",
    once: "Copy it now: it is shown only once.",
    copy: "Copy the link",
    links: "Links to this conversation",
    none: "There is no link to it.",
    made: "Made {at}",
    until: "until {at}",
    over: "ended {at}",
    with_later: "with later turns",
    for_anybody: "for anybody",
    revoke: "Revoke",
    revoke_that: "Revoke the link made {at}",
    revoked: "The link is revoked. It leads nowhere now.",
    made_now: "The link is made.",
    empty: "There is nothing to share yet.",
    full: "This conversation has as many links as it may have. Revoke one first.",
    close: "Close",
  },
  fr: {
    heading: "Partager cette conversation",
    about:
      "Quiconque a le lien lit vos questions et les réponses, avec les passages de leurs sources. Ne sont pas montrés : votre nom, les étapes de l'agent, les fichiers joints.",
    signed_in: "Les personnes connectées",
    anybody: "Tout le monde, sans connexion",
    who: "Qui peut l'ouvrir",
    later: "Montrer aussi ce qui sera dit ensuite",
    ends: "Prend fin",
    never: "Quand il est révoqué",
    days: { one: "Après {count} jour", other: "Après {count} jours" },
    make: "Créer un lien",
    link: "Nouveau lien",
    once: "Copiez-le maintenant : il n'est montré qu'une fois.",
    copy: "Copier le lien",
    links: "Liens vers cette conversation",
    none: "Aucun lien n'y mène.",
    made: "Créé le {at}",
    until: "jusqu'au {at}",
    over: "expiré le {at}",
    with_later: "avec la suite",
    for_anybody: "pour tout le monde",
    revoke: "Révoquer",
    revoke_that: "Révoquer le lien créé le {at}",
    revoked: "Le lien est révoqué. Il ne mène plus nulle part.",
    made_now: "Le lien est créé.",
    empty: "Il n'y a encore rien à partager.",
    full: "Cette conversation a autant de liens qu'elle peut en avoir. Révoquez-en un d'abord.",
    close: "Fermer",
  },
});

const DAYS = [1, 7, 30, 365];

/**
 * Opens the dialog for a conversation. Rejects with ApiError where its links cannot be read.
 * @param {Api} api
 * @param {string} sessionId
 */
export async function share(api, sessionId) {
  const path = `chatbot/session/${encodeURIComponent(sessionId)}/share`;
  addStyle("share/style.css");
  /** @type {[Share[], Settings]} */
  const [links, { feature_flags: flags }] = await Promise.all([api.call("GET", `${path}s`), api.settings()]);
  new ShareDialog(api, path, flags?.public_links === true).open(links);
}

class ShareDialog {
  #api;
  #path;
  #made = el("div", { class: "share-made" });
  #list = el("ul", { class: "share-links" });
  #none = el("p", {}, t("none"));
  #status = el("p", { class: "share-status", role: "status" });
  #who = el("select", {}, el("option", { value: "signed_in" }, t("signed_in")), el("option", { value: "anybody" }, t("anybody")));
  #later = el("input", { type: "checkbox" });
  #ends = el("select", {}, el("option", { value: "" }, t("never")), DAYS.map((count) => el("option", { value: count }, t("days", { count }))));
  #heading = el("h2", { id: "share-heading", tabindex: "-1" }, t("heading"));
  #dialog;

  /** @param {Api} api @param {string} path of the conversation's links @param {boolean} mayBePublic */
  constructor(api, path, mayBePublic) {
    this.#api = api;
    this.#path = path;
    const close = el("button", { type: "button", class: "quiet icon-button", "aria-label": t("close") }, icon("close"));
    close.addEventListener("click", () => this.#dialog.close());
    const form = el(
      "form",
      { class: "share-form" },
      mayBePublic ? el("label", {}, el("span", {}, t("who")), this.#who) : "",
      el("label", {}, el("span", {}, t("ends")), this.#ends),
      el("label", { class: "share-check" }, this.#later, el("span", {}, t("later"))),
      el("button", { type: "submit", class: "primary" }, t("make")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#tried(() => this.#make());
    });
    this.#dialog = el(
      "dialog",
      { id: "share-dialog", "aria-labelledby": "share-heading" },
      el("header", {}, this.#heading, close),
      el("p", {}, t("about")),
      form,
      this.#made,
      this.#status,
      el("h3", {}, t("links")),
      this.#none,
      this.#list,
    );
    this.#dialog.addEventListener("close", () => this.#dialog.remove());
  }

  /** @param {Share[]} links */
  open(links) {
    document.body.append(this.#dialog);
    this.#show(links);
    this.#dialog.showModal();
  }

  async #make() {
    const days = this.#ends.value === "" ? null : Number(this.#ends.value);
    const wanted = { audience: this.#who.value, later_turns: this.#later.checked, days };
    /** @type {Share & {token: string}} */
    const link = await this.#api.call("POST", this.#path, wanted);
    const address = addressOf(link);
    const field = el("input", { type: "text", readonly: true, value: address, "aria-label": t("link") });
    field.addEventListener("focus", () => field.select());
    this.#made.replaceChildren(field, copyButton(() => address, t("copy")), el("p", { class: "hint" }, t("once")));
    this.#status.textContent = t("made_now");
    field.focus();
    await this.#reload();
  }

  /** @param {Share} link */
  async #revoke({ id }) {
    await this.#api.call("DELETE", `${this.#path}/${encodeURIComponent(id)}`);
    this.#made.replaceChildren(); // it may be the one that is shown there
    await this.#reload();
    this.#status.textContent = t("revoked");
    // The button is gone, and with it the place of the keyboard.
    this.#heading.focus();
  }

  async #reload() {
    this.#show(await this.#api.call("GET", `${this.#path}s`));
  }

  /** @param {Share[]} links */
  #show(links) {
    this.#none.hidden = links.length > 0;
    this.#list.hidden = links.length === 0;
    this.#list.replaceChildren(...links.map((link) => this.#row(link)));
  }

  /** @param {Share} link */
  #row(link) {
    const at = dateText(link.created_at);
    const label = t("revoke_that", { at });
    const button = el("button", { type: "button", class: "small danger", "aria-label": label }, t("revoke"));
    button.addEventListener("click", () => this.#tried(() => this.#revoke(link)));
    const about = [t("made", { at })];
    if (link.expires_at !== null) {
      const over = new Date(link.expires_at) <= new Date();
      about.push(t(over ? "over" : "until", { at: dateText(link.expires_at) }));
    }
    if (link.later_turns) about.push(t("with_later"));
    if (link.audience === "anybody") about.push(t("for_anybody"));
    return el("li", {}, el("span", {}, about.join(" · ")), button);
  }

  /** @param {() => Promise<void>} step */
  async #tried(step) {
    this.#status.textContent = "";
    try {
      await step();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#status.textContent = refusal(error);
    }
  }
}

/** @param {ApiError} error */
function refusal(error) {
  if (error.code === "share_limit_reached") return t("full");
  if (error.code === "message_not_found") return t("empty");
  const { title, message } = errorText(error.failure);
  return [title, message].filter(Boolean).join(". ");
}
