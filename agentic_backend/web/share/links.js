/** Links to conversations: what the service says of them, and their addresses in this page. */

/**
 * What a link is to its owner; `token` only when it was just made.
 * @typedef {object} Share
 * @property {string} id
 * @property {"signed_in"|"anybody"} audience
 * @property {boolean} later_turns whether it shows what is said after it was made
 * @property {string} created_at
 * @property {string|null} expires_at
 * @property {string} [token]
 *
 * What a reader gets.
 * @typedef {object} SharedConversation
 * @property {string} title
 * @property {{id: string, name: string}} agent
 * @property {string} shared_at
 * @property {boolean} later_turns
 * @property {Omit<Frames.ChatMessage, "session_id"|"exchange_id">[]} messages
 * @property {boolean} earlier whether there may be messages before these
 */

import { language } from "../i18n.js";

const REST = /^(public\/)?([\w-]{43})$/;
const DATE = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });

/**
 * Where the service has what an address shows; null where the address is none of a link.
 * @param {string} rest of the address, behind the name of the place
 */
export function pathIn(rest) {
  const [, open, token] = REST.exec(rest) ?? [];
  return token === undefined ? null : `chatbot/${open === undefined ? "shared" : "public"}/${token}`;
}

/**
 * The address under which a conversation is read: the token stands where no server sees it when the page is fetched.
 * @param {Share & {token: string}} link
 */
export function addressOf({ token, audience }) {
  return new URL(`/#/s/${audience === "anybody" ? "public/" : ""}${token}`, location.href).href;
}

/** @param {string} iso */
export function dateText(iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : DATE.format(date);
}
