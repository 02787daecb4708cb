// A chat page on `useStream` of @langchain/langgraph-sdk, rendered in a document without a browser. It does what the
// lines of its standard input say, one JSON object each, and answers each by a line with what the page shows then.
import { createInterface } from "node:readline";
import { Window } from "happy-dom";

const window = new Window({ url: "http://127.0.0.1/" });
for (const name of ["window", "document", "navigator", "sessionStorage"]) {
  Object.defineProperty(globalThis, name, { value: name === "window" ? window : window[name], configurable: true });
}
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useStream } = await import("@langchain/langgraph-sdk/react");

const warnings = [];
console.warn = console.error = (...said) => warnings.push(said.map(String).join(" "));
process.on("unhandledRejection", (reason) => warnings.push(String(reason)));

/** What one load of the page has: its connections end with it, and it makes no new ones. */
function load() {
  const gone = new AbortController();
  const requests = [];
  const fetches = async (url, init = {}) => {
    if (gone.signal.aborted) return new Promise(() => {});
    const { pathname, search } = new URL(url);
    requests.push({ method: init.method ?? "GET", path: pathname + search, body: parsed(init.body) });
    const signal = init.signal ? AbortSignal.any([init.signal, gone.signal]) : gone.signal;
    return fetch(url, { ...init, signal });
  };
  return { fetches, requests, end: () => gone.abort() };
}

function parsed(body) {
  return typeof body === "string" ? JSON.parse(body) : null;
}

let page = load();
let root = null;
let stream = null;
let given = {};
let created = [];
let waiting = null;

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

/** Mount it, or render it again with what it was told since. */
function render() {
  const { url, assistant, headers, apiKey, ...options } = given;
  const props = {
    apiUrl: url,
    assistantId: assistant,
    apiKey,
    defaultHeaders: headers,
    callerOptions: { fetch: page.fetches, maxRetries: 2 },
    onThreadId: (threadId) => {
      given = { ...given, threadId };
      render();
    },
    onCreated: (run) => void created.push(run),
    ...options,
  };
  root.render(createElement(Chat, props));
}

function told() {
  return {
    shown: [...document.querySelectorAll("li")].map((item) => item.textContent),
    messages: stream?.messages ?? [],
    loading: stream?.isLoading ?? false,
    threadLoading: stream?.isThreadLoading ?? false,
    interrupt: stream?.interrupt ?? null,
    error: stream?.error ? String(stream.error.message ?? stream.error) : null,
    threadId: given.threadId ?? null,
    created,
    requests: page.requests,
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

const parentOf = (index) => {
  const message = stream.messages.at(index);
  return stream.getMessagesMetadata(message)?.firstSeenState?.parent_checkpoint;
};

const RESUMABLE = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };

const does = {
  /** A new page; `reload`: the same tab, whose storage it has. */
  open: ({ reload, ...options }) => {
    root?.unmount();
    page.end();
    page = load();
    if (!reload) window.sessionStorage.clear();
    given = { threadId: null, fetchStateHistory: true, ...options };
    created = [];
    stream = null;
    const place = document.createElement("div");
    document.body.replaceChildren(place);
    root = createRoot(place);
    render();
  },
  /** As agent-chat-ui does: the page shows the message at once. */
  say: ({ message, options }) => {
    const optimisticValues = (before) => ({ ...before, messages: [...(before.messages ?? []), message] });
    void stream.submit({ messages: [message] }, { ...RESUMABLE, optimisticValues, ...options });
  },
  submit: ({ values, options }) => void stream.submit(values, options),
  resume: ({ value, options }) => void stream.submit(undefined, { ...RESUMABLE, command: { resume: value }, ...options }),
  edit: ({ index, message }) => {
    const checkpoint = parentOf(index);
    const optimisticValues = (before) => ({ ...before, messages: [...(before.messages ?? []).slice(0, index), message] });
    void stream.submit({ messages: [message] }, { ...RESUMABLE, checkpoint, optimisticValues });
  },
  regenerate: ({ index }) => void stream.submit(undefined, { ...RESUMABLE, checkpoint: parentOf(index) }),
  stop: () => stream.stop(),
  until: async (what) => {
    while (!holds(what)) {
      await new Promise((resolve) => {
        waiting = resolve;
      });
    }
    waiting = null;
  },
  /** Once it has been shown again. */
  next: async () => {
    await new Promise((resolve) => {
      waiting = resolve;
    });
    waiting = null;
  },
  /** The list of threads. */
  threads: async ({ query }) => ({ threads: await stream.client.threads.search(query) }),
  /** What agent-chat-ui asks first. */
  info: async () => {
    const { url, headers, apiKey } = given;
    const response = await fetch(`${url}/info`, { headers: { ...headers, ...(apiKey && { "X-Api-Key": apiKey }) } });
    return { ok: response.ok, info: await response.json() };
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
page.end();
process.exit(0);
