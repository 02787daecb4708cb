/**
 * Calls back when the browser has nothing better to do, within a second.
 * @param {() => void} work
 */
export function whenIdle(work) {
  if (typeof requestIdleCallback === "function") requestIdleCallback(work, { timeout: 1000 });
  else setTimeout(work, 50); // Safari
}
