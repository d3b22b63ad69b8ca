"use strict";
// The job as the supervisor streams it: its status once a second, and each event as it comes.

const KINDS = {
  productive: "new steps", again: "steps again", stalled: "waiting for protection", recovering: "recovering",
  waiting: "waiting for a node", starting: "starting", assembling: "waiting for the first nodes", finishing: "finishing",
};
const PHASES = { detect: "detect", decide: "decide", quiesce: "quiesce", plan: "plan", reform: "reform", restore: "restore", first_step: "first step" };
const TONES = { run: "good", recover: "warn", start: "", assemble: "", finish: "", end: "" };
const ROLES_APART = ["lost", "faulty", "drained", "draining"];
const TILES_FROM = 8, ROWS_SHOWN = 64, ROWS_OF_MANY = 16, RECOVERIES_SHOWN = 50, EVENTS_SHOWN = 200, EVENTS_KEPT = 20000;
const SILENT_MS = 10000, FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 8000, OF_SIGNALS = 128, NO_STEP = -1;

const at = (id) => document.getElementById(id);
const view = { status: null, now: 0, events: [], dropped: 0, paused: false, ended: false, heard: 0, opened: false };
let key = "";

// ---------------------------------------------------------------- the key

function takeKey() {
  const found = new URLSearchParams(location.hash.slice(1)).get("key");
  if (found) {
    sessionStorage.setItem("deadpool-key", found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("deadpool-key") || "";
}

function askForKey(error) {
  sessionStorage.removeItem("deadpool-key");
  at("main").hidden = at("pause").hidden = true;
  at("connection").textContent = "";
  at("login").hidden = false;
  at("login-error").textContent = error;
  at("key").value = "";
  at("key").focus();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  sessionStorage.setItem("deadpool-key", key);
  at("login").hidden = true;
  follow();
});
addEventListener("hashchange", () => { key = takeKey(); location.reload(); });

at("pause").addEventListener("click", () => {
  view.paused = !view.paused;
  at("pause").setAttribute("aria-pressed", String(view.paused));
  at("pause").textContent = view.paused ? "Go on" : "Pause";
  render();
});

// ---------------------------------------------------------------- the stream

async function follow() {
  for (let pause = FIRST_PAUSE_MS; !view.ended; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    const before = view.heard;
    try {
      if (!(await listen())) return;
    } catch { /* it is not there, or not any more: said by showConnection */ }
    if (view.heard !== before) pause = FIRST_PAUSE_MS;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// Returns false when the key is refused.
async function listen() {
  const gone = new AbortController();
  const watch = setInterval(() => { if (Date.now() - started > SILENT_MS && Date.now() - view.heard > SILENT_MS) gone.abort(); }, 1000);
  const started = Date.now();
  try {
    const after = view.dropped + view.events.length;
    const answer = await fetch(`api/live?after=${after}`, { headers: { Authorization: `Bearer ${key}` }, cache: "no-store", signal: gone.signal });
    if (answer.status === 401) { askForKey("This is not the key of this job."); return false; }
    if (!answer.ok) throw new Error(answer.statusText);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return true;
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) heard(message);
      render();
    }
  } finally {
    clearInterval(watch);
    gone.abort();
  }
}

function heard(message) {
  const [first, second] = message.split("\n");
  const content = JSON.parse(second.slice("data: ".length));
  view.heard = Date.now();
  switch (first.slice("event: ".length)) {
    case "status":
      view.status = content.status;
      view.now = Date.parse(content.now);
      break;
    case "events":
      take(content);
      break;
    case "end":
      view.ended = true;
      break;
  }
}

function take({ from, events }) {
  const known = view.dropped + view.events.length;
  if (from !== known) { view.events = []; view.dropped = from; } // another supervisor, which has begun anew
  for (const event of events) {
    view.events.push({ ...event, at: Date.parse(event.time) });
    if (view.opened) announce(event);
  }
  if (view.events.length > EVENTS_KEPT) {
    view.dropped += view.events.length - EVENTS_KEPT;
    view.events = view.events.slice(-EVENTS_KEPT);
  }
}

function announce(event) {
  const said = {
    failure: () => `Failure: ${event.cause}, ${event.failure_class}`,
    recovered: () => `Recovered in ${seconds(event.total_s)}, resumed at step ${event.resume_step}`,
    restarted: () => `Restarted in ${seconds(event.total_s)}`,
    waiting_for_node: () => "No spare is left: the job waits for a node",
    excluded: () => `The job goes on without ranks ${event.ranks.join(", ")}: it is not the unbroken run any more`,
    unprotected: () => `Unprotected: ${event.reason}`,
    protected_again: () => "Protected again",
    job_ended: () => `The job has ended: ${event.reason || "done"}`,
  }[event.event];
  if (said) at("announcer").replaceChildren(element("p", {}, said()));
}

// ---------------------------------------------------------------- words and numbers

const whole = (value) => value.toLocaleString("en");
const share = (value) => `${(100 * value).toFixed(value < 0.9995 ? 1 : 0)} %`;
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const listed = (ranks) => `${ranks.length === 1 ? "rank" : "ranks"} ${ranges(ranks)}`;

// Returns 0, 1, 4–7 for the ranks 0, 1, 4, 5, 6, 7.
function ranges(ranks) {
  const runs = [];
  for (const rank of ranks) {
    if (runs.length && runs.at(-1)[1] === rank - 1) runs.at(-1)[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}${last === first + 1 ? ", " : "–"}${last}`)).join(", ");
}

function seconds(s) {
  if (s < 9.995) return `${s.toFixed(2)} s`;
  const rounded = Math.round(s), minutes = Math.round(s / 60);
  if (rounded < 120) return `${rounded} s`;
  if (rounded < 7200) return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function bytes(count) {
  let unit = 0;
  for (; count >= 1024 && unit < 4; unit++) count /= 1024;
  return `${count.toFixed(count < 10 && unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

function number(value) {
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== ""));
  return made;
}

// ---------------------------------------------------------------- what is shown

function render() {
  if (!view.status || view.paused) return;
  if (at("main").hidden) at("main").hidden = at("pause").hidden = false;
  showHead();
  showNotice();
  showFigures();
  showSpent();
  showTimeline();
  showRecoveries();
  showNodes();
  showEvents();
  view.opened = true;
}

function showHead() {
  const { job_id, phase, generation, world_size, step } = view.status;
  at("job").textContent = job_id;
  const waits = view.status.waiting_for && phase === "recover";
  at("phase").hidden = false;
  at("phase").textContent = view.ended ? "ended" : phase;
  at("phase").className = `badge ${view.ended ? "" : waits ? "bad" : TONES[phase] ?? ""}`;
  at("sub").textContent = `generation ${generation} · ${whole(world_size)} ${world_size === 1 ? "rank" : "ranks"}`;
  document.title = `${step < 0 ? phase : `step ${whole(step)}`} · ${job_id} · DeadPool`;
}

function showConnection() {
  if (!at("login").hidden) return;
  const silent = Math.round((Date.now() - view.heard) / 1000);
  const text = view.ended ? "the job has ended" : !view.heard ? "connecting" : silent < 4 ? (view.paused ? "paused" : "live")
    : `no answer for ${silent} s, trying again`;
  if (at("connection").textContent !== text) at("connection").textContent = text;
  at("connection").className = silent >= 4 && view.heard && !view.ended ? "bad" : "muted";
}

function showNotice() {
  const { waiting_for, unprotected, hooked, phase, excluded, another_since_step } = view.status;
  const end = view.events.findLast((event) => event.event === "job_ended");
  let text = "", bad = false;
  if (end) {
    bad = end.exit_code > 0 && end.exit_code < OF_SIGNALS;
    text = bad ? `The job has failed (exit code ${end.exit_code}): ${end.reason}` : end.exit_code ? `The job was stopped: ${end.reason}` : "The job is done.";
  }
  else if (waiting_for) text = `The job stands still. It waits for ${waiting_for}.`;
  else if (unprotected) { text = `Not protected: ${unprotected}`; bad = true; }
  else if (another_since_step >= 0) {
    const now = excluded.length ? `The job goes on without ranks ${excluded.join(", ")}. ` : "";
    text = `${now}It is not the unbroken run since step ${another_since_step}: ranks were excluded.`;
  }
  else if (!hooked && phase === "run") text = "The script does not call deadpool.join(): it is restarted after a failure, not protected.";
  if (at("notice").textContent !== text) at("notice").textContent = text;
  at("notice").hidden = !text;
  at("notice").className = `notice ${bad ? "bad" : ""}`;
}

function showFigures() {
  const { status } = view, spent = status.spent_s;
  const living = status.nodes.filter((node) => node.role !== "lost");
  const spares = living.filter((node) => node.role === "spare"), members = living.filter((node) => ["member", "draining"].includes(node.role));
  const wall = Object.keys(KINDS).reduce((sum, kind) => sum + spent[kind], 0), counted = wall - spent.assembling;
  const charged = spent.node_s > 0 ? Math.min(1, (members.length * spent.productive) / spent.node_s) : 0;
  const figures = [step(status), speed(status)];
  for (const { name, value } of status.reported.slice(0, 4)) figures.push(figure(name, number(value)));
  figures.push(figure("Goodput", counted > 0 ? share(spent.productive / counted) : "–",
    spares.length ? `${share(charged)} with spares paid` : `of ${seconds(counted)}`));
  figures.push(protection(status));
  const hot = spares.filter((node) => node.hot_ranks.length).length, warm = spares.filter((node) => node.standins_ready).length;
  figures.push(figure("Spares", whole(spares.length), spares.length ? (hot ? `${whole(hot)} hot` : warm ? `${whole(warm)} warm` : "not ready yet") : "none left"));
  const last = status.recoveries.at(-1);
  figures.push(figure("Recoveries", whole(status.recoveries.length), last ? `the last took ${seconds(last.total_s)}` : "none so far"));
  figures.push(figure("Running for", seconds(wall)));
  at("figures").replaceChildren(...figures);
}

function figure(name, big, note, ...more) {
  return element("div", {}, element("dt", {}, name), element("dd", { class: "big" }, big), ...more,
    note ? element("dd", { class: "note" }, note) : "");
}

function step({ step, until, steps_per_s }) {
  const big = step < 0 ? "–" : whole(step);
  if (!(until > 0) || step < 0) return figure("Step", big);
  const left = steps_per_s > 0 ? `, ${seconds((until - step) / steps_per_s)} left` : "";
  const done = Math.min(1, step / until);
  const meter = element("dd", { class: "meter", "aria-hidden": "true" }, element("i", { style: { width: `${100 * done}%` } }));
  return figure("Step", big, `${share(done)} of ${whole(until)}${left}`, meter);
}

function speed({ steps_per_s, tokens_per_s, step_times_s }) {
  const note = tokens_per_s > 0 ? `${whole(Math.round(tokens_per_s))} tokens/s` : "";
  const more = step_times_s.length > 2 ? [element("dd", {}, sparkline(step_times_s))] : [];
  return figure("Steps per second", steps_per_s.toFixed(steps_per_s < 10 ? 2 : 1), note, ...more);
}

function sparkline(times) {
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const most = Math.max(...times), least = Math.min(...times);
  const points = times.map((time, index) => `${(120 * index) / (times.length - 1)},${(22 - (20 * (time - least)) / (most - least || 1)).toFixed(1)}`);
  const label = `Step time of the last ${times.length} heartbeats, from ${seconds(least)} to ${seconds(most)}, now ${seconds(times.at(-1))}`;
  const picture = svg("svg", { width: 120, height: 24, viewBox: "0 0 120 24", role: "img", "aria-label": label });
  picture.append(svg("polyline", { class: "spark", points: points.join(" ") }));
  return picture;
}

function protection({ hooked, unprotected, commit_step, replicas, exposed_stall_s }) {
  const [word, tone] = !hooked ? ["off", ""] : unprotected ? ["no", "bad"] : commit_step < 0 ? ["not yet", ""] : ["yes", "good"];
  const made = figure("Protected", word, commit_step < 0 ? "nothing committed so far"
    : `step ${whole(commit_step)}, ${replicas} ${replicas === 1 ? "replica" : "replicas"}, stall ${seconds(exposed_stall_s)}`);
  made.querySelector(".big").classList.add(...(tone ? [tone] : []));
  return made;
}

function showSpent() {
  const spent = view.status.spent_s, kinds = Object.keys(KINDS).filter((kind) => spent[kind] >= 0.005);
  const wall = kinds.reduce((sum, kind) => sum + spent[kind], 0) || 1;
  at("spent").replaceChildren(...kinds.map((kind) => slice(spent[kind] / wall, kind, `${KINDS[kind]}: ${seconds(spent[kind])}`)));
  at("spent").setAttribute("aria-label", kinds.map((kind) => `${KINDS[kind]} ${share(spent[kind] / wall)}`).join(", ") || "nothing yet");
  at("spent-legend").replaceChildren(...kinds.map((kind) => legend(kind, KINDS[kind], seconds(spent[kind]))));
}

const slice = (part, colour, title) => element("i", { title, style: { width: `${100 * part}%`, background: `var(--${colour})` } });
const legend = (colour, name, value) =>
  element("li", {}, element("i", { style: { background: `var(--${colour})` }, "aria-hidden": "true" }), `${name} `, value ? element("b", {}, value) : "");

// Returns what the job was doing from when to when, as its events tell it, and when each generation began.
function story(events, now) {
  const segments = [], generations = [];
  let kind = "assembling", since = events.length ? events[0].at : now;
  const turn = (next, at) => {
    if (next === kind) return;
    segments.push({ kind, from: since, to: Math.max(since, at) });
    [kind, since] = [next, Math.max(since, at)];
  };
  for (const event of events) {
    switch (event.event) {
      case "generation":
        generations.push(event);
        if (kind === "assembling") turn("starting", event.at);
        break;
      case "started": case "loop_begins": turn("productive", event.at); break;
      case "failure": if (kind !== "starting") turn("recovering", event.at); break;
      case "waiting_for_node": turn("waiting", event.at); break;
      case "spare_chosen": if (kind === "waiting") turn("recovering", event.at); break;
      case "recovered": case "restarted":
        if (kind === "productive") turn("recovering", event.at - 1000 * event.total_s);
        turn("productive", event.at);
        break;
      case "released": turn("finishing", event.at); break;
      case "job_ended": turn("finishing", event.at); now = Math.max(now, event.at); break;
    }
  }
  segments.push({ kind, from: since, to: Math.max(since, now) });
  return { segments, generations };
}

function showTimeline() {
  const { segments, generations } = story(view.events, view.now);
  const begin = segments[0].from, length = Math.max(1, segments.at(-1).to - begin);
  const left = (ms) => `${(100 * (ms - begin)) / length}%`;
  const short = (kind) => kind === "recovering" || kind === "waiting"; // what must be seen however short it was
  const drawn = [...segments.filter(({ kind }) => !short(kind)), ...segments.filter(({ kind }) => short(kind))];
  const labels = [];
  for (let index = generations.length - 1, nearest = Infinity; index >= 0; index--) {
    const place = (generations[index].at - begin) / length;
    if (nearest - place < 0.04 || place > 0.97) continue;
    nearest = place;
    labels.push(element("span", { class: "gen", style: { left: `${100 * place}%` } }, `g${generations[index].generation}`));
  }
  at("timeline").replaceChildren(...drawn.map(({ kind, from, to }) => element("i", {
    class: short(kind) ? "short" : "", title: `${KINDS[kind]}: ${seconds((to - from) / 1000)} from ${clock(from)}`,
    style: { left: left(from), width: `${(100 * (to - from)) / length}%`, background: `var(--${kind})` },
  })), ...labels);
  const recoveries = view.status.recoveries.length;
  at("timeline").setAttribute("aria-label",
    `Since ${clock(begin)}: ${generations.length} generations, ${recoveries} ${recoveries === 1 ? "recovery" : "recoveries"}; the table below has them`);
  at("axis").replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part) => element("span", {}, clock(begin + part * length))));
}

function showRecoveries() {
  const records = view.status.recoveries;
  at("no-recoveries").hidden = records.length > 0;
  at("recoveries").hidden = at("phase-legend").hidden = !records.length;
  if (!records.length) return;
  const ends = view.events.filter((event) => event.event === "recovered" || event.event === "restarted");
  const rows = records.map((record, index) => [record, ends[ends.length - records.length + index]]).slice(-RECOVERIES_SHOWN).reverse();
  const longest_s = Math.max(...rows.map(([record]) => record.total_s), 1e-9);
  at("recoveries").querySelector("tbody").replaceChildren(...rows.map(([record, end]) => recoveryRow(record, end, longest_s)));
  const used = Object.keys(PHASES).filter((phase) => rows.some(([record]) => record.phases_s[phase] >= 0.0005));
  at("phase-legend").replaceChildren(...used.map((phase) => legend(phase, PHASES[phase])));
}

function recoveryRow(record, end, longest_s) {
  const what = record.spare
    ? `${record.spare} took ${listed(record.moved.length ? record.moved : record.ranks)}`
    : record.ranks.length ? `${listed(record.ranks)} back in place` : "all groups opened again";
  const resumed = record.resume_step < 0 ? "from the script's own state" : `resumed at step ${whole(record.resume_step)}`;
  const phases = Object.keys(PHASES).filter((phase) => record.phases_s[phase] >= 0.0005);
  const label = phases.map((phase) => `${PHASES[phase]} ${seconds(record.phases_s[phase])}`).join(", ");
  return element("tr", {},
    element("th", { scope: "row" }, end ? clock(end.at) : "–"),
    element("td", { class: "num wide" }, String(record.generation)),
    element("td", {}, record.cause, element("span", { class: "sub" }, record.class), element("span", { class: "sub narrow" }, `${what}, ${resumed}`)),
    element("td", { class: "wide" }, what, element("span", { class: "sub" }, resumed)),
    element("td", { class: "num wide" }, whole(record.steps_reexecuted)),
    element("td", { class: "num" }, seconds(record.total_s)),
    element("td", { class: "phases" }, element("div", { class: "bar", role: "img", "aria-label": label },
      ...phases.map((phase) => slice(record.phases_s[phase] / longest_s, phase, `${PHASES[phase]}: ${seconds(record.phases_s[phase])}`)))));
}

// ---------------------------------------------------------------- nodes

const computes = (rank) => (rank.wait_s >= 0 ? rank.step_s - rank.wait_s : rank.step_s);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted.length ? sorted[(sorted.length - 1) >> 1] : 0;
}

function showNodes() {
  const nodes = view.status.nodes, ranks = nodes.flatMap((node) => node.ranks).filter((rank) => rank.step_s > 0);
  const usual = median(ranks.map(computes));
  const slow = (node) => node.ranks.filter((rank) => rank.slow_times > 0); // as the supervisor has found them
  const apart = (node) => (node.role === "lost" ? 3 : ROLES_APART.includes(node.role) ? 0 : node.troubles.length || slow(node).length ? 1 : 2);
  const sorted = [...nodes].sort((one, other) => apart(one) - apart(other) || one.index - other.index);
  const living = nodes.filter((node) => node.role !== "lost").length;
  at("nodes-count").textContent = `${whole(living)} of ${whole(nodes.length)} live`;
  const alarming = nodes.filter((node) => apart(node) < 2).length;
  at("tiles").hidden = nodes.length <= TILES_FROM;
  at("tiles").setAttribute("aria-label", `${whole(living)} nodes live, ${whole(alarming)} need attention; the table below begins with them`);
  at("tiles").replaceChildren(...(nodes.length <= TILES_FROM ? [] : [...nodes].sort((one, other) => one.index - other.index)).map((node) => {
    const state = node.role !== "lost" && (node.troubles.length || slow(node).length) ? "trouble" : node.role;
    return element("i", { class: state, title: `${node.node_id}: ${[node.role, ...node.troubles].join(", ")}` });
  }));
  const gpus = nodes.some((node) => node.gpu_busy_share >= 0);
  at("nodes").querySelector("th.gpu").hidden = !gpus;
  const many = nodes.length > ROWS_SHOWN;
  const rows = many ? Math.min(ROWS_SHOWN, Math.max(ROWS_OF_MANY, alarming)) : ROWS_SHOWN;
  at("nodes").querySelector("tbody").replaceChildren(...sorted.slice(0, rows).map((node) => nodeRow(node, slow(node), usual, gpus)));
  at("nodes-rest").hidden = sorted.length <= rows;
  at("nodes-rest").textContent = `and ${whole(sorted.length - rows)} more${alarming > rows ? ", some of which need attention" : ""}`;
}

function nodeRow(node, slow, usual, gpus) {
  const live = node.role !== "lost", stepping = node.ranks.filter((rank) => rank.step_s > 0), timed = stepping.filter((rank) => rank.wait_s >= 0);
  const steps = node.ranks.map((rank) => rank.step).filter((step) => step >= 0);
  const remarks = node.lost_why ? [`${seconds(node.lost_ago_s)} ago: ${node.lost_why}`] : [...node.troubles];
  if (slow.length) {
    const most = seconds(Math.max(...slow.map(computes)));
    remarks.push(`${listed(slow.map((rank) => rank.rank))} ${slow.length === 1 ? "is" : "are"} slow: ${most} of computing a step, the median is ${seconds(usual)}`);
  }
  const role = node.hot_ranks.length ? `${node.role}, hot for ${listed(node.hot_ranks)}` : node.role;
  const least = Math.min(...steps), most = Math.max(...steps);
  return element("tr", { class: node.role },
    element("th", { scope: "row" }, node.node_id, element("span", { class: "sub" }, node.host)),
    element("td", {}, role, ...remarks.map((remark) => element("span", { class: "sub warn" }, remark))),
    element("td", { class: "kept" }, ranges(node.ranks.map((rank) => rank.rank)) || (live && node.standins_ready ? `${node.standins_ready} ready` : "–")),
    element("td", { class: "num" }, steps.length ? (least === most ? whole(most) : `${whole(least)}–${whole(most)}`) : "–"),
    element("td", { class: "num" }, stepping.length ? seconds(mean(stepping.map((rank) => rank.step_s))) : "–"),
    element("td", { class: "wide" }, timed.length ? meter(mean(timed.map((rank) => rank.wait_s / rank.step_s))) : "–"),
    element("td", { class: "wide" }, live ? meter(node.cpu_share) : "–"),
    element("td", { class: "wide" }, live ? meter(node.memory_share, 0.92) : "–"),
    gpus ? element("td", { class: "wide" }, node.gpu_busy_share >= 0 ? meter(node.gpu_busy_share) : "–",
      node.gpu_memory_share >= 0 ? element("span", { class: "sub" }, `memory ${Math.round(100 * node.gpu_memory_share)} %`) : "") : "",
    element("td", { class: "num wide" }, live ? bytes(node.shm_free_bytes) : "–"),
    element("td", { class: "num wide" }, live && node.replicated_bytes_per_s > 0 ? `${bytes(node.replicated_bytes_per_s)}/s` : "–"),
    element("td", { class: "num wide" }, live ? `${node.heartbeat_age_s.toFixed(1)} s ago` : "–"));
}

function meter(value, full = Infinity) {
  const bar = element("span", { class: value >= full ? "meter full" : "meter", "aria-hidden": "true" }, element("i", { style: { width: `${Math.min(100, 100 * value)}%` } }));
  return element("span", { class: "share" }, bar, `${Math.round(100 * value)} %`);
}

// ---------------------------------------------------------------- events

let shown = "";

function showEvents() {
  const last = view.events.slice(-EVENTS_SHOWN), mark = `${view.dropped + view.events.length} ${last.length}`;
  if (mark === shown) return;
  shown = mark;
  at("events").replaceChildren(...last.reverse().map(eventRow));
}

// As many digits of a number as a person reads.
function said(value) {
  if (typeof value === "number") return Number.isInteger(value) ? value : Number(value.toPrecision(4));
  if (Array.isArray(value)) return value.map(said).join(", ");
  return typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name.replaceAll("_", " ")} ${said(each)}`).join(", ") : value;
}

function eventRow({ time, event, generation, at, caused_by, version, ...fields }) {
  const nothing = ([name, value]) => value === "" || value === null || (Array.isArray(value) && !value.length) || (name.endsWith("step") && value === NO_STEP);
  const says = Object.entries(fields).filter((field) => !nothing(field));
  const text = says.map(([name, value]) => `${name.replaceAll("_", " ")} ${said(value)}`).join(" · ");
  return element("li", {}, element("time", { datetime: time, title: time }, clock(at)), element("span", { class: "gen" }, `g${generation}`),
    element("span", { class: "name" }, event.replaceAll("_", " ")), element("span", { class: "says" }, text.slice(0, 400)));
}

key = takeKey();
setInterval(showConnection, 500);
if (key) follow();
else askForKey("");
