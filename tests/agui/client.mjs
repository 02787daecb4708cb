// The official client of AG-UI, as an application uses it: does what the lines of its standard input say, one JSON
// object each, and answers each by a line. The module that it is given as an argument has `resuming` of docs/agui.md.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

const { resuming } = await import(process.argv[2]);
const warnings = [];
console.warn = console.error = (...said) => warnings.push(said.map(String).join(" "));

// Where a connection breaks, the client rejects a promise of its own that nobody waits for.
process.on("unhandledRejection", (reason) => warnings.push(String(reason)));

/** A fetch whose connections break after so many events, the first `times` of them. */
function breaking(events, times) {
  let left = times;
  return async (url, init) => {
    if (left-- <= 0) return fetch(url, init);
    const broken = new AbortController();
    const response = await fetch(url, { ...init, signal: broken.signal });
    if (!response.ok) return response;
    const reader = response.body.getReader();
    let seen = 0;
    let text = "";
    const decoder = new TextDecoder();
    const body = new ReadableStream({
      async start(controller) {
        while (seen < events) {
          const { done, value } = await reader.read();
          if (done) return controller.close();
          text += decoder.decode(value, { stream: true });
          for (let end = text.indexOf("\n\n"); end >= 0 && seen < events; end = text.indexOf("\n\n")) {
            controller.enqueue(new TextEncoder().encode(text.slice(0, end + 2)));
            text = text.slice(end + 2);
            seen += 1;
          }
        }
        broken.abort();
        // With half an event, as connections break.
        controller.enqueue(new TextEncoder().encode(text.slice(0, 20)));
        controller.error(new TypeError("terminated"));
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

let agent;
const does = {
  open: ({ url, threadId, headers }) => {
    agent = new HttpAgent({ url, threadId, headers });
    return {};
  },
  say: ({ message }) => {
    agent.addMessage(message);
    return {};
  },
  run: async ({ parameters, breaks, resumes }) => {
    const plain = breaks === undefined ? fetch : breaking(breaks, resumes ?? 1);
    agent.fetch = resumes === undefined ? plain : resuming(plain, { wait: () => 0 });
    const events = [];
    let error = null;
    await agent
      .runAgent(parameters, { onEvent: ({ event }) => void events.push(event) })
      .catch((failure) => (error = { message: failure.message, status: failure.status, payload: failure.payload }));
    return { events, error, interrupts: agent.pendingInterrupts };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { does: what, ...given } = JSON.parse(line);
  warnings.length = 0;
  const done = await does[what](given);
  process.stdout.write(`${JSON.stringify({ ...done, messages: agent.messages, warnings })}\n`);
}
