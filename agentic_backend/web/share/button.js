/** The button in the header by which a conversation is shared; what it opens is fetched when it is pressed. */

import { el, icon } from "../dom.js";
import { catalogue } from "../i18n.js";

const t = catalogue({ en: { share: "Share" }, fr: { share: "Partager" } });

/** @param {() => void} onclick */
export function shareButton(onclick) {
  const label = t("share");
  const attributes = { type: "button", id: "share", class: "quiet small", title: label, "aria-label": label, onclick };
  return el("button", attributes, icon("link"), el("span", {}, label));
}
