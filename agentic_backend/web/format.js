/** How the page writes durations, moments and sizes, in the person's language. */

import { catalogue, language } from "./i18n.js";

const t = catalogue({
  en: { now: "now" },
  fr: { now: "à l'instant" },
});

const RELATIVE = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
const FIXED = { 1: fractional(1), 2: fractional(2) };
const CLOCK = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(language, { day: "numeric", month: "short" });
const DAY_AND_YEAR = new Intl.DateTimeFormat(language, { day: "numeric", month: "short", year: "numeric" });
const FULL = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", hour12: false });

/** @param {number} digits */
function fractional(digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false };
  return new Intl.NumberFormat(language, options);
}

/**
 * A duration with three digits that matter: `0.42 ms`, `41.7 ms`, `412 ms`, `3.02 s`, `2 min 5 s`.
 * @param {number} ms
 */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms > 0 && ms < 0.01) return `< ${fixed(0.01, 2)} ms`;
  if (ms < 10) return `${fixed(ms, 2)} ms`;
  if (ms < 100) return `${fixed(ms, 1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 9_995) return `${fixed(ms / 1000, 2)} s`;
  if (ms < 59_950) return `${fixed(ms / 1000, 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * @param {number} value
 * @param {1|2} digits behind the point, or the comma
 */
function fixed(value, digits) {
  return FIXED[digits].format(value);
}

/**
 * A time in whole seconds, as a person counts them: `< 1 s`, `7 s`, `2 min 5 s`.
 * @param {number} ms
 */
export function wholeSeconds(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms > 0 && ms < 1_000) return "< 1 s";
  return ms < 59_500 ? `${Math.round(ms / 1000)} s` : duration(Math.max(ms, 60_000));
}

/**
 * A past moment as a person would say it: `now`, `5 minutes ago`, `14:05`, `3 Nov`.
 * @param {string} iso
 * @param {Date} now
 */
export function moment(iso, now = new Date()) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  const seconds = (now.getTime() - date.getTime()) / 1000;
  if (seconds < 45) return t("now");
  if (seconds < 3600) return RELATIVE.format(-Math.round(seconds / 60), "minute");
  if (date.toDateString() === now.toDateString()) return CLOCK.format(date);
  return (date.getFullYear() === now.getFullYear() ? DAY : DAY_AND_YEAR).format(date);
}

/**
 * A moment in full, for tooltips.
 * @param {string} iso
 */
export function fullMoment(iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : FULL.format(date);
}

const SIZE_UNITS = ["byte", "kilobyte", "megabyte", "gigabyte"];

/**
 * A size in thousands: `512 bytes`, `1.4 MB`.
 * @param {number} bytes
 */
export function fileSize(bytes) {
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), SIZE_UNITS.length - 1);
  /** @type {Intl.NumberFormatOptions} */
  const options = { style: "unit", unit: SIZE_UNITS[power], maximumFractionDigits: power < 2 ? 0 : 1 };
  const unitDisplay = power === 0 ? "long" : "short";
  return new Intl.NumberFormat(language, { ...options, unitDisplay }).format(bytes / 1000 ** power);
}
