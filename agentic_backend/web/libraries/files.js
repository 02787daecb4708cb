/** Saving a file that is in memory. */

import { el } from "../dom.js";

/** @param {Blob} file @param {string} name */
export function saveFile(file, name) {
  const href = URL.createObjectURL(file);
  el("a", { href, download: name }).click();
  URL.revokeObjectURL(href);
}
