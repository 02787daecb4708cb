// A chat page on `useStream` of @langchain/react, rendered in a document without a browser. It does what the lines of its
// standard input say, one JSON object each, and answers each by a line with what the page shows then.
import { Window } from "happy-dom";
import { LEFT, chatOf, emptyPlace, makeDocument, obey, toldOf, until } from "../page.mjs";

makeDocument(Window);
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useStream } = await import("@langchain/react");
const { Client } = await import("@langchain/langgraph-sdk");

let gone = new AbortController();
let requests = [];
let cuts = [];
let root = null;
let stream = null;
let client = null;
let given = {};

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

function Chat(options) {
  const current = useStream(options);
  stream = current;
  return chatOf(current, { createElement, useEffect });
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
    ...toldOf(stream),
    ids: (stream?.messages ?? []).map((message) => message.id),
    threadId: given.threadId ?? null,
    requests,
  };
}

const does = {
  /** A new page; with a thread, one that shows that. */
  open: ({ url, headers, ...options }) => {
    root?.unmount();
    gone.abort(LEFT);
    gone = new AbortController();
    requests = [];
    cuts = [];
    client = new Client({ apiUrl: url, defaultHeaders: headers, callerOptions: { maxRetries: 2 } });
    given = { threadId: null, ...options };
    stream = null;
    root = createRoot(emptyPlace());
    render();
  },
  say: ({ message }) => void stream.submit({ messages: [message] }),
  respond: ({ value }) => void stream.respond(value),
  stop: () => stream.stop(),
  /** Cut the streams that are open. */
  cut: () => {
    for (const cut of cuts.splice(0)) cut();
  },
  until: (what) => until(() => stream, what),
};

await obey(does, told);
root?.unmount();
gone.abort(LEFT);
process.exit(0);
