// What each kind of page does: a report draws the data it carries, live pages ask the server for theirs.
const main = document.getElementById("main");
const held = new Map();

const signature = (data) => JSON.stringify(data, (key, value) => (key === "made" || key === "left" ? undefined : value));

// Draw the sections whose data has changed; what a reader has opened in the others stays as it is.
function drawRuns(data, above = null) {
  document.title = visible(data.title);
  const parts = main.querySelector("section") ? null : el("nav", { "aria-label": "Sections" }, el("ul"));
  if (parts) {
    const line = el("p", { class: "muted", id: "made" });
    main.replaceChildren(el("header", {}, above, el("h1", {}, data.title), line, parts));
  }
  document.getElementById("made").textContent = `proxyfl ${data.version}, ${data.made}`;
  const shown = [];
  for (const [id, title, draw] of SECTIONS) {
    const old = document.getElementById(id), key = sectionKey(id, data);
    const nodes = old && held.get(id) === key ? null : draw(data) || [];
    held.set(id, key);
    if (nodes && !nodes.length) {
      if (old) old.remove();
      continue;
    }
    shown.push([id, title]);
    if (!nodes) continue;
    const made = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...nodes);
    if (!old) place(made, id);
    else renew(old, made);
  }
  main.querySelector("nav ul").replaceChildren(...shown.map(([id, title]) => el("li", {}, el("a", { href: `#${id}` }, title))));
}

function place(made, id) {
  const order = SECTIONS.map(([name]) => name), after = order.slice(order.indexOf(id) + 1).map((name) => document.getElementById(name)).find(Boolean);
  if (after) after.before(made);
  else main.append(made);
}

// The heights are kept while figures are drawn again, so that the page does not jump.
function renew(old, made) {
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  const charts = [...old.querySelectorAll(".chart")].map((one) => one.offsetHeight);
  [...made.querySelectorAll("details")].forEach((one, k) => (one.open = Boolean(open[k])));
  [...made.querySelectorAll(".chart")].forEach((one, k) => charts[k] && (one.style.minHeight = `${charts[k]}px`));
  const focused = [...old.querySelectorAll("[tabindex]")].indexOf(document.activeElement);
  hideTip();
  old.replaceWith(made);
  if (focused >= 0) requestAnimationFrame(() => requestAnimationFrame(() => made.querySelectorAll("[tabindex]")[focused]?.focus({ preventScroll: true })));
}

function sectionKey(id, data) {
  if (id === "federation") return signature(data.federation || null);
  const needs = {
    settings: ["settings"], accuracy: ["curves", "done"], measures: ["curves"], classes: ["per_class", "precision", "classes", "data"], confusion: ["confusion", "classes", "data", "notes"], pseudo: ["curves", "notes"],
    losses: ["curves"], prior: ["prior", "partition", "classes", "notes"], proxies: ["proxies", "classes", "notes"], partition: ["partition", "notes"],
    sites: ["sites", "called"], communication: ["traffic"], time: ["seconds"], failures: ["failures", "failures_in_all"],
  }[id];
  return needs ? signature(data.runs.map((run) => needs.map((name) => run[name]))) : signature(data.runs) + data.runs.map((run) => run.left).join();
}

function follow(address, take) {
  const source = new EventSource(address);
  const notice = el("p", { class: "muted", role: "status", hidden: true }, "The dashboard has stopped; this page shows the last data it received.");
  document.body.prepend(notice);
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onopen = () => (notice.hidden = true);
  source.onerror = () => (notice.hidden = false);
  addEventListener("pagehide", () => source.close());
}

// Every new round is told by the server; the page then asks for its data, one request at a time.
function followRuns(query) {
  const names = new URLSearchParams(query).getAll("name");
  const above = () => el("p", {}, el("a", { href: "./" }, "All runs"), " · ", el("a", { href: address("report", names) }, "Report to keep or send"));
  let busy = false, again = false;
  const load = async () => {
    if (busy) return void (again = true);
    busy = true;
    try {
      const answer = await fetch(`api/run${query}`);
      if (answer.ok) drawRuns(await answer.json(), above());
      else main.replaceChildren(el("p", {}, el("a", { href: "./" }, "All runs")), nothing(await answer.text()));
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server has gone: the notice says so
    }
    busy = false;
    if (again) {
      again = false;
      setTimeout(load, 300);
    }
  };
  load();
  follow(`api/follow${query}`, load);
}

document.body.append(tip);
const page = document.documentElement.dataset.page;
if (page === "report") drawRuns(JSON.parse(document.getElementById("data").textContent));
if (page === "list") follow("api/follow", drawList);
if (page === "run") followRuns(location.search);
