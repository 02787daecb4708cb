/** What a person has chosen for this browser: kept here, and announced to all that show it (`turnwise.choice`). */

/**
 * @typedef {"system"|"light"|"dark"} Theme
 * @typedef {"sends"|"breaks"} Enter what the Enter key does in the message box
 */

const THEME_KEY = "turnwise.theme"; // theme.js reads it, too
const ENTER_KEY = "turnwise.enter";

/** Dispatched on `window` after each choice. */
export const CHOICE = "turnwise.choice";

/** @returns {Theme} */
export function theme() {
  const kept = localStorage.getItem(THEME_KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}

/** @param {Theme} next */
export function chooseTheme(next) {
  if (next === "system") localStorage.removeItem(THEME_KEY);
  else localStorage.setItem(THEME_KEY, next);
  dispatchEvent(new Event(CHOICE));
}

/** @returns {Enter} */
export function enter() {
  return localStorage.getItem(ENTER_KEY) === "breaks" ? "breaks" : "sends";
}

/** @param {Enter} next */
export function chooseEnter(next) {
  if (next === "sends") localStorage.removeItem(ENTER_KEY);
  else localStorage.setItem(ENTER_KEY, next);
  dispatchEvent(new Event(CHOICE));
}
