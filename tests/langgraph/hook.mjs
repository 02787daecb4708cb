// A chat page on `useStream` of @langchain/langgraph-sdk, rendered in a document without a browser. It does what the
// lines of its standard input say, one JSON object each, and answers each by a line with what the page shows then.
import { Window } from "happy-dom";
import { LEFT, chatOf, emptyPlace, makeDocument, next, obey, toldOf, until } from "./page.mjs";

const window = makeDocument(Window);
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useStream } = await import("@langchain/langgraph-sdk/react");

/** What one load of the page has: its connections end with it, and it makes no new ones. */
function load() {
  const gone = new AbortController();
  const requests = [];
  const stops = [];
  const fetches = async (url, init = {}) => {
    if (gone.signal.aborted) return new Promise(() => {});
    const { pathname, search } = new URL(url);
    requests.push({ method: init.method ?? "GET", path: pathname + search, body: parsed(init.body) });
    const signal = init.signal ? AbortSignal.any([init.signal, gone.signal]) : gone.signal;
    const answer = fetch(url, { ...init, signal });
    if (pathname.endsWith("/cancel")) stops.push(answer);
    return answer;
  };
  return { fetches, requests, stops, end: () => gone.abort(LEFT) };
}

function parsed(body) {
  return typeof body === "string" ? JSON.parse(body) : null;
}

let page = load();
let root = null;
let stream = null;
let given = {};
let created = [];

function Chat(options) {
  const current = useStream(options);
  stream = current;
  return chatOf(current, { createElement, useEffect });
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
    ...toldOf(stream),
    messages: stream?.messages ?? [],
    threadLoading: stream?.isThreadLoading ?? false,
    threadId: given.threadId ?? null,
    created,
    requests: page.requests,
  };
}

const parentOf = (index) => {
  const message = stream.messages.at(index);
  return stream.getMessagesMetadata(message)?.firstSeenState?.parent_checkpoint;
};

const RESUMABLE = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };

const does = {
  /** A new page; `reload`: the same tab, whose storage it has. Nobody leaves a page before a stop has been sent: the hook
   * does not wait for that. */
  open: async ({ reload, ...options }) => {
    await Promise.allSettled(page.stops);
    root?.unmount();
    page.end();
    page = load();
    if (!reload) window.sessionStorage.clear();
    given = { threadId: null, fetchStateHistory: true, ...options };
    created = [];
    stream = null;
    root = createRoot(emptyPlace());
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
  until: (what) => until(() => stream, what),
  next,
  /** The list of threads. */
  threads: async ({ query }) => ({ threads: await stream.client.threads.search(query) }),
  /** What agent-chat-ui asks first. */
  info: async () => {
    const { url, headers, apiKey } = given;
    const response = await fetch(`${url}/info`, { headers: { ...headers, ...(apiKey && { "X-Api-Key": apiKey }) } });
    return { ok: response.ok, info: await response.json() };
  },
};

await obey(does, told);
root?.unmount();
page.end();
process.exit(0);
