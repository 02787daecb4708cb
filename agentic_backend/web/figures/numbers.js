/** How the places with figures write numbers, shares and moments, in the person's language. */

import { language } from "../i18n.js";

const WHOLE = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const SOME = new Intl.NumberFormat(language, { maximumSignificantDigits: 3 });
const PERCENT = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hour12: false });
const CLOCK_IN_FULL = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** What stands where there is no figure. */
export const NONE = "–";

/**
 * A count.
 * @param {number|null} value
 */
export function count(value) {
  return value === null ? NONE : WHOLE.format(value);
}

/**
 * Any number, with the digits that matter.
 * @param {number|null} value
 */
export function amount(value) {
  if (value === null) return NONE;
  return Math.abs(value) >= 1000 ? WHOLE.format(value) : SOME.format(value);
}

/**
 * A share of 0 to 1.
 * @param {number|null} value
 */
export function share(value) {
  return value === null ? NONE : PERCENT.format(value);
}

/**
 * The time of day of a moment.
 * @param {string} iso
 */
export function clock(iso, { seconds = false } = {}) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : (seconds ? CLOCK_IN_FULL : CLOCK).format(date);
}
