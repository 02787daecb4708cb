/**
 * The documentation of the service's interface: reads /openapi.json and hands it to Swagger UI.
 *
 * Where the service wants a token it comes from the chat page of the same service, if one is open and signed in, or
 * from the person. It is in the memory of this page and nowhere else.
 */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
function element(id, kind) {
  const found = document.getElementById(id);
  if (found instanceof kind) return found;
  throw new Error(`page.html has no ${kind.name} ${id}`);
}

const gate = element("gate", HTMLElement);
const trouble = element("trouble", HTMLElement);
const tokenInput = element("token", HTMLInputElement);
const chatPage = new BroadcastChannel("turnwise.sign-in");

/** @type {string|null} */
let token = null;
let shown = false;

/** Shows the document, or what is missing for it. */
async function show() {
  const { status, document } = await read();
  if (shown) return; // meanwhile with another token
  gate.hidden = document !== null;
  if (document !== null) {
    shown = true;
    draw(document);
  } else if (status !== 401) {
    trouble.textContent = "The service does not answer. Reload the page to try again.";
  } else if (token !== null) {
    trouble.textContent = "The service does not accept this token.";
  }
}

async function read() {
  /** @type {Record<string, string>} */
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  try {
    const response = await fetch("/openapi.json", { headers, credentials: "omit", cache: "no-store" });
    return { status: response.status, document: response.ok ? await response.json() : null };
  } catch (error) {
    if (error instanceof TypeError || error instanceof SyntaxError) return { status: 0, document: null };
    throw error;
  }
}

/** @param {OpenApiDocument} spec */
function draw(spec) {
  document.title = spec.info.title;
  globalThis.SwaggerUIBundle({
    spec,
    dom_id: "#interface",
    validatorUrl: null, // would send the document to another server
    requestInterceptor: (request) => {
      if (token !== null) request.headers.Authorization ??= `Bearer ${token}`;
      return request;
    },
  });
}

// The chat page answers, and tells of each newer token: what is tried out here keeps working.
chatPage.addEventListener("message", ({ data }) => {
  if (typeof data.token !== "string") return;
  token = data.token;
  if (!shown) show();
});

element("with-token", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  token = tokenInput.value.trim();
  trouble.textContent = "";
  show();
});

chatPage.postMessage({ wanted: true });
show();
