/**
 * The Live view: what limits the service, its latencies, loop, pools and queues over up to 24 hours, and the ledger of a
 * turn. For operators. It asks every ten seconds, every minute of more than an hour, and not at all in a hidden tab.
 */

/** @import { Page } from "../places.js" */
/** @import { Day } from "./figures.js" */
import { ApiError } from "../api.js";
import { el } from "../dom.js";
import { Chart } from "../figures/chart.js";
import { clock, count, share } from "../figures/numbers.js";
import { renew, table } from "../figures/table.js";
import { saveCsv } from "../saving.js";
import { duration } from "../format.js";
import { advice } from "./advice.js";
import { boundLines, CHARTS, csvRows, linesOf, milliseconds, NAMED_HEAD, namedLine, tiles } from "./figures.js";
import { Stalls } from "./stalls.js";
import { t } from "./texts.js";
import { TurnFinder } from "./turn.js";

/** @typedef {{id: string, here: boolean}} Instance */

const PERIODS = /** @type {const} */ ([
  ["five", 300], ["quarter", 900], ["hour", 3600], ["six", 21_600], ["day", 86_400],
]);
const SOON_MS = 10_000;
const LATER_MS = 60_000;
const MOST_INSTANCES = 16;

/**
 * @param {HTMLElement} host
 * @param {Page} page
 * @param {string} rest `turn/ID` looks for the ledger of a turn at once
 */
export function show(host, page, rest) {
  const view = new LiveView(page);
  host.replaceChildren(view.node);
  view.start(/^turn\/(.+)$/.exec(rest)?.[1] ?? null);
  return () => view.end();
}

class LiveView {
  #page;
  #ended = false;
  #paused = false;
  /** @type {ReturnType<typeof setTimeout>|undefined} */
  #timer;
  #asked = 0;
  /** @type {Day|null} */
  #day = null;
  /** @type {Instance[]} */
  #instances = [];
  #onVisible = () => this.#wake();
  #period = el("select", { id: "live-period", onchange: () => this.#read() }, PERIODS.map(([name, seconds]) => el("option", { value: seconds }, t(name))));
  #instance = el("select", { id: "live-instance", onchange: () => this.#read() });
  #ofInstance = el("span", { hidden: true }, el("label", { for: "live-instance" }, t("instance")), this.#instance);
  #pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.#togglePause() }, t("pause"));
  #save = el("button", { type: "button", disabled: true, onclick: () => this.#saveCsv() }, t("save"));
  #asOf = el("p", { class: "hint" }, t("reading"));
  #trouble = el("p", { class: "trouble", role: "status" });
  #bound = el("p", { class: "bound", role: "status" });
  #reason = el("div");
  #tiles = el("dl", { class: "tiles" });
  #before = el("div");
  #charts = CHARTS.map(({ title, write, lines }) => ({ chart: new Chart(title, write), lines }));
  #tables = el("div");
  #ofInstances = el("div");
  #stalls = new Stalls();

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.finder = new TurnFinder(page, () => this.#instances.map(({ id }) => id));
    this.node = el(
      "div",
      { class: "figures" },
      el(
        "div",
        { class: "controls" },
        el("span", {}, el("label", { for: "live-period" }, t("period")), this.#period),
        this.#ofInstance,
        this.#pause,
        this.#save,
      ),
      this.#asOf,
      this.#trouble,
      el("section", { class: "card" }, el("h2", {}, t("now")), this.#bound, this.#reason, el("details", { class: "values" }, el("summary", {}, t("before")), this.#before)),
      el("h2", {}, t("figures")),
      this.#tiles,
      el("h2", {}, t("over")),
      el("div", { class: "charts" }, this.#charts.map(({ chart }) => chart.node)),
      this.#tables,
      this.#ofInstances,
      this.#stalls.node,
      this.finder.node,
    );
  }

  /** @param {string|null} exchange */
  async start(exchange) {
    document.addEventListener("visibilitychange", this.#onVisible);
    await this.#readInstances();
    if (this.#ended) return;
    this.#read();
    if (exchange !== null) this.finder.find(exchange);
  }

  end() {
    this.#ended = true;
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  get #windowS() {
    return Number(this.#period.value);
  }

  get #everyMs() {
    return this.#windowS > 3600 ? LATER_MS : SOON_MS;
  }

  #wake() {
    clearTimeout(this.#timer);
    if (!document.hidden && !this.#paused) this.#read();
  }

  #togglePause() {
    this.#paused = !this.#paused;
    this.#pause.setAttribute("aria-pressed", String(this.#paused));
    if (this.#day !== null) this.#tellTime(this.#day);
    this.#wake();
  }

  /** Which instances there are. Where that is not to be had, the one that answers tells of itself. */
  async #readInstances() {
    try {
      const all = await this.#page.api.call("GET", "kpi/instances");
      this.#instances = all.slice(0, MOST_INSTANCES);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    const options = this.#instances.map(({ id, here }) => el("option", { value: id, selected: here }, here ? t("here", { id }) : id));
    this.#instance.replaceChildren(...options);
    this.#ofInstance.hidden = options.length < 2;
  }

  /** Reads all and shows it; of two readings the later one counts. The next one is due when this one has ended. */
  async #read() {
    clearTimeout(this.#timer);
    this.#asked += 1;
    const asked = this.#asked;
    /** @type {Record<string, string>} */
    const of = this.#instance.value === "" ? {} : { instance: this.#instance.value };
    const query = new URLSearchParams({ window_s: String(this.#windowS), ...of });
    try {
      const [day, stalls] = await Promise.all([
        this.#page.api.call("GET", `kpi/day?${query}`),
        this.#page.api.call("GET", `kpi/stalls?${new URLSearchParams(of)}`),
      ]);
      if (this.#ended || asked !== this.#asked) return;
      this.#trouble.textContent = "";
      this.#show(day);
      this.#stalls.show(stalls);
      await this.#readOthers();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.#ended || asked !== this.#asked) return;
      this.#trouble.textContent = error.status === 403 ? t("forOperators") : t("stale", { why: error.code });
      if (error.status === 403) return;
    }
    if (!this.#ended && asked === this.#asked && !document.hidden && !this.#paused) {
      this.#timer = setTimeout(() => this.#read(), this.#everyMs);
    }
  }

  /** @param {Day} day */
  #show(day) {
    this.#day = day;
    this.#save.disabled = false;
    this.#tellTime(day);
    this.#showBound(day);
    this.#tiles.replaceChildren(...tiles(day).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    for (const { chart, lines } of this.#charts) chart.show(linesOf(day.steps, lines));
    renew(this.#tables, ...this.#named("agents", day.agents), ...this.#named("models", day.models));
  }

  /** @param {Day} day */
  #tellTime(day) {
    const every = this.#paused ? t("paused") : t("every", { count: this.#everyMs / 1000 });
    this.#asOf.textContent = t("as_of", { time: clock(day.now, { seconds: true }), every });
  }

  /** @param {Day} day */
  #showBound({ verdict, steps }) {
    const { name, why, todo } = advice(verdict.bound_by);
    const told = t("limits", { name });
    // What has not changed is not announced again.
    if (this.#bound.textContent !== told) this.#bound.replaceChildren(told);
    const next = advice(verdict.next).name;
    const words = { share: share(verdict.share), ms: milliseconds(verdict.ms_per_turn), next, nextShare: share(verdict.next_share) };
    this.#reason.replaceChildren(
      el("p", {}, why),
      ...(verdict.bound_by === "nobody" ? [] : [el("p", {}, t("share", words))]),
      el("p", {}, el("strong", {}, t("todo")), ` ${todo}`),
    );
    renew(this.#before, table(t("before"), [t("fromTo"), t("until"), t("cause")], boundLines(steps)));
  }

  /** @param {"agents"|"models"} which @param {Day["agents"]} all */
  #named(which, all) {
    const shown = all.length === 0 ? el("p", { class: "hint" }, t("noTurns")) : table(t(which), NAMED_HEAD, all.map(namedLine));
    return [el("h2", {}, t(which)), shown];
  }

  /** Each instance in a row; nothing where there is only one. */
  async #readOthers() {
    if (this.#instances.length < 2) return;
    const lines = await Promise.all(this.#instances.map((instance) => this.#lineOf(instance)));
    if (this.#ended) return;
    const head = [t("id"), t("turns"), t("running"), `${t("turn")}, p50`, `${t("turn")}, p95`, `${t("turn")}, p99`, `${t("firstToken")}, p95`, t("lag")];
    renew(this.#ofInstances, el("h2", {}, t("instances")), table(t("instances"), head, lines));
  }

  /** @param {Instance} instance */
  async #lineOf({ id }) {
    try {
      const { whole, running, lag_ms: lag } = await this.#page.api.call("GET", `kpi/live?${new URLSearchParams({ instance: id })}`);
      const { turn_latency_ms: turn, first_token_ms: first } = whole;
      const took = [turn?.p50, turn?.p95, turn?.p99, first?.p95].map((ms) => milliseconds(ms ?? null));
      return [id, count(whole.turns), count(running), ...took, duration(lag)];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return [id, t("failedToRead", { why: error.code })];
    }
  }

  #saveCsv() {
    if (this.#day !== null) saveCsv(`turnwise-live-${this.#day.now.slice(0, 19).replaceAll(":", "-")}.csv`, csvRows(this.#day));
  }
}
