// A chat page on `useStream` of @langchain/react, rendered in a document without a browser. It does what the lines of its
// standard input say, one JSON object each, and answers each by a line with what the page shows then.
import { createInterface } from "node:readline";
import { Window } from "happy-dom";

const window = new Window({ url: "http://127.0.0.1/" });
for (const name of ["window", "document", "navigator", "sessionStorage"]) {
  Object.defineProperty(globalThis, name, { value: name === "window" ? window : window[name], configurable: true });
}
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useStream } = await import("@langchain/react");
const { Client } = await import("@langchain/langgraph-sdk");

const warnings = [];
console.warn = console.error = (...said) => warnings.push(said.map(String).join(" "));
process.on("unhandledRejection", (reason) => warnings.push(String(reason)));

let gone = new AbortController();
let requests = [];
let cuts = [];
let root = null;
let stream = null;
let client = null;
let given = {};
let waiting = null;

/** The page's own connection: it notes what is asked, ends with the page, and can be cut off. */
const plainFetch = globalThis.fetch;
globalThis.fetch = async (url, init = {}) => {
  const path = new URL(url).pathname;
  requests.push({ method: init.method ?? "GET", path });
  const signal = init.signal ? AbortSignal.any([gone.signal, init.signal]) : gone.signal;
  const response = await plainFetch(url, { ...init, signal });
  return path.endsWith("/stream/events") && response.ok ? breakable(response) : response;
};

/** A response that ends as one does whose connection breaks. */
function breakable(response) {
  const { status, headers } = response;
  const start = (controller) => void cuts.push(() => controller.error(new TypeError("terminated")));
  return new Response(response.body.pipeThrough(new TransformStream({ start })), { status, headers });
}

const text = (content) =>
  typeof content === "string" ? content : content.map((block) => block.text ?? "").join("");

/** The page: a line for each message, one for a question, one for an error. */
function Chat(options) {
  const current = useStream(options);
  stream = current;
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

function render() {
  const { assistant, threadId } = given;
  const onThreadId = (id) => {
    given = { ...given, threadId: id };
    render();
  };
  root.render(createElement(Chat, { client, assistantId: assistant, threadId, onThreadId }));
}

function told() {
  return {
    shown: [...document.querySelectorAll("li")].map((item) => item.textContent),
    ids: (stream?.messages ?? []).map((message) => message.id),
    loading: stream?.isLoading ?? false,
    interrupt: stream?.interrupt ?? null,
    error: stream?.error ? String(stream.error.message ?? stream.error) : null,
    threadId: given.threadId ?? null,
    requests,
    warnings,
  };
}

/** Whether what the page shows is what is waited for. */
const holds = ({ loading, contains, asks, count, fetched }) =>
  stream !== null &&
  (loading === undefined || stream.isLoading === loading) &&
  (fetched === undefined || !stream.isThreadLoading) &&
  (asks === undefined || Boolean(stream.interrupt) === asks) &&
  (count === undefined || stream.messages.length === count) &&
  (contains === undefined || told().shown.some((line) => line.includes(contains)));

const does = {
  /** A new page; with a thread, one that shows that. */
  open: ({ url, headers, ...options }) => {
    root?.unmount();
    gone.abort();
    gone = new AbortController();
    requests = [];
    cuts = [];
    client = new Client({ apiUrl: url, defaultHeaders: headers, callerOptions: { maxRetries: 2 } });
    given = { threadId: null, ...options };
    stream = null;
    const place = document.createElement("div");
    document.body.replaceChildren(place);
    root = createRoot(place);
    render();
  },
  say: ({ message }) => void stream.submit({ messages: [message] }),
  respond: ({ value }) => void stream.respond(value),
  stop: () => stream.stop(),
  /** Cut the streams that are open. */
  cut: () => {
    for (const cut of cuts.splice(0)) cut();
  },
  until: async (what) => {
    while (!holds(what)) {
      await new Promise((resolve) => {
        waiting = resolve;
      });
    }
    waiting = null;
  },
};

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
root?.unmount();
gone.abort();
process.exit(0);
