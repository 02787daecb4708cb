/** Addresses from outside: what a link may lead to, and how it leads there. */

/** @import { Child } from "../dom.js" */
import { el } from "../dom.js";
import { catalogue } from "../i18n.js";

const t = catalogue({
  en: { dead: "This address is not opened." },
  fr: { dead: "Cette adresse n'est pas ouverte." },
});

export const MAX_URL_CHARS = 2048;

/**
 * The address as it may stand in a link, or null where it may not: only http, https and relative addresses, and none
 * that carries a user name (`https://bank.example@evil.example/` reads like another host).
 * @param {unknown} address
 * @param {string} base
 */
export function safeHref(address, base = document.baseURI) {
  if (typeof address !== "string" || address.length > MAX_URL_CHARS || !URL.canParse(address, base)) return null;
  const url = new URL(address, base);
  const web = url.protocol === "http:" || url.protocol === "https:";
  return web && url.username === "" && url.password === "" ? url.href : null;
}

/**
 * A link that opens elsewhere and tells that place nothing, or the plain label where the address is not allowed.
 * @param {unknown} address
 * @param {Child[]} children
 * @param {string} title
 */
export function safeLink(address, children, title = "") {
  const href = safeHref(address);
  if (href === null) return el("span", { class: "dead-link", title: t("dead") }, children);
  const hover = title ? `${title}\n${href}` : href;
  const attributes = { href, title: hover, target: "_blank", rel: "noopener noreferrer nofollow" };
  return el("a", { ...attributes, referrerpolicy: "no-referrer" }, children);
}

/**
 * A part of an address without its percent signs; as it stands where they are no encoding.
 * @param {string} text
 */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (error instanceof URIError) return text;
    throw error;
  }
}
