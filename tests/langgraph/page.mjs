// What the pages on LangGraph's hooks for React share: a document without a browser, the list that they show, and how they
// obey the lines of their standard input. React comes from the page that imports this: each has one of its own.
import { createInterface } from "node:readline";

/** What was warned of since the page began. */
export const warnings = [];

/** Why the requests of a page end that is left: what was to be done with their answers, nobody misses. */
export const LEFT = new DOMException("the page was left", "AbortError");

let waiting = null;

/** Make the document, before React is loaded. */
export function makeDocument(Window) {
  const window = new Window({ url: "http://127.0.0.1/" });
  for (const name of ["window", "document", "navigator", "sessionStorage"]) {
    Object.defineProperty(globalThis, name, { value: name === "window" ? window : window[name], configurable: true });
  }
  console.warn = console.error = (...said) => warnings.push(said.map(String).join(" "));
  process.on("unhandledRejection", (reason) => {
    if (reason !== LEFT) warnings.push(String(reason));
  });
  return window;
}

/** An empty place for a page, in which nothing else is. */
export function emptyPlace() {
  const place = document.createElement("div");
  document.body.replaceChildren(place);
  return place;
}

const text = (content) =>
  typeof content === "string" ? content : content.map((block) => block.text ?? "").join("");

/** The chat: a line for each message, one for a question, one for an error. */
export function chatOf(current, { createElement, useEffect }) {
  useEffect(() => {
    waiting?.();
  });
  const lines = current.messages.map((message, index) =>
    createElement("li", { key: message.id ?? index }, `${message.type}: ${text(message.content)}`),
  );
  if (current.interrupt) lines.push(createElement("li", { key: "asks" }, "asks"));
  if (current.error) lines.push(createElement("li", { key: "error" }, `error: ${current.error.message}`));
  return createElement("ul", null, lines);
}

/** What is shown, line by line. */
export const shown = () => [...document.querySelectorAll("li")].map((item) => item.textContent);

/** What every page tells of its stream. */
export const toldOf = (stream) => ({
  shown: shown(),
  loading: stream?.isLoading ?? false,
  interrupt: stream?.interrupt ?? null,
  error: stream?.error ? String(stream.error.message ?? stream.error) : null,
  warnings,
});

/** Once it has been shown again. */
export async function next() {
  await new Promise((resolve) => {
    waiting = resolve;
  });
  waiting = null;
}

/** Once what the page shows is what is waited for. */
export async function until(streamNow, { loading, contains, asks, count, fetched }) {
  const holds = (stream) =>
    stream !== null &&
    (loading === undefined || stream.isLoading === loading) &&
    (fetched === undefined || !stream.isThreadLoading) &&
    (asks === undefined || Boolean(stream.interrupt) === asks) &&
    (count === undefined || stream.messages.length === count) &&
    (contains === undefined || shown().some((line) => line.includes(contains)));
  while (!holds(streamNow())) await next();
}

/** Do what each line of standard input says, one JSON object, and answer it by a line with what the page tells then. */
export async function obey(does, told) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { does: what, ...more } = JSON.parse(line);
    let done;
    try {
      done = await does[what](more);
    } catch (failure) {
      done = { failed: String(failure) };
    }
    // What React has been told is shown in the next task.
    await new Promise((resolve) => setTimeout(resolve));
    process.stdout.write(`${JSON.stringify({ ...told(), ...done })}\n`);
  }
}
