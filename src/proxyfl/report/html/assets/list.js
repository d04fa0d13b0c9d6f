// The list of runs: filtered by words, sorted by a column, some of them ticked to be compared. What the reader has
// asked for is kept in the address, so that it is still there after a look at a run.
const MOST_COMPARED = 12; // as the server has it
const COLUMNS = [
  ["run", (run) => run.name], ["accuracy", (run) => run.accuracy], ["state", (run) => run.state], ["rounds", (run) => run.done],
  ["time left", (run) => (run.state === "running" ? run.left : null)], ["method", (run) => run.method], ["data", (run) => run.data], ["seed", (run) => run.seed],
];
const NUMBERS = ["accuracy", "rounds", "time left", "seed"];
const asked = readAsked(new URLSearchParams(location.hash.slice(1)));
let listed = null;

function readAsked(kept) {
  const sort = (kept.get("sort") || "run").replace(/^-/, ""), known = COLUMNS.some(([name]) => name === sort);
  return { words: kept.get("filter") || "", sort: known ? sort : "run", down: known && (kept.get("sort") || "").startsWith("-"), ticked: new Set(kept.getAll("run")) };
}

function keepAsked() {
  const kept = new URLSearchParams();
  if (asked.words) kept.set("filter", asked.words);
  if (asked.sort !== "run" || asked.down) kept.set("sort", (asked.down ? "-" : "") + asked.sort);
  for (const name of asked.ticked) kept.append("run", name);
  history.replaceState(null, "", `${location.pathname}${location.search}${String(kept) && `#${kept}`}`);
}

const address = (page, names) => `${page}?${names.map((name) => `name=${encodeURIComponent(name)}`).join("&")}`;

// Every word has to be somewhere in what a row says.
function matching(run) {
  const text = [run.name, run.state, run.method, run.data, `seed${run.seed}`].join(" ").toLowerCase();
  return asked.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

// Runs that have no value there come last, whichever way the others are sorted.
function inOrder(one, other) {
  const value = COLUMNS.find(([name]) => name === asked.sort)[1], [a, b] = [value(one), value(other)];
  const [first, second] = [a, b].map((each) => (each === null || each === undefined ? 1 : 0));
  if (first || second) return first - second;
  const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return asked.down ? -order : order;
}

// The sites of a federation, also before it has a run; from then on with the way to that.
function drawSites({ folder, runs: [run], federation: found }) {
  const name = found.name || folder, link = run && el("a", { href: address("run", [run.name]) }, "Rounds, accuracy and all other sections of the run");
  document.title = `Federation: ${visible(name)}`;
  const waits = found.run?.state === "running" ? "The run is waiting for its sites." : "The run has not begun; start it with: proxyfl deploy run";
  const way = run?.problem ? nothing(`${run.state}: ${run.problem}`) : run ? el("p", {}, link) : nothing(waits);
  const section = el("section", { id: "federation", "aria-label": "Sites" }, ...federation({ federation: found }));
  main.replaceChildren(el("header", {}, el("h1", {}, `Federation ${name}`), way), section);
}

function drawList(told) {
  if (told.federation) return drawSites(told);
  listed = told;
  const running = told.runs.filter((run) => run.state === "running").length;
  document.title = `${running ? `(${running}) ` : ""}Runs: ${visible(told.folder)}`;
  if (!document.getElementById("filter")) {
    const filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name, method, data, state", "aria-label": "Filter runs", value: asked.words });
    filter.addEventListener("input", () => {
      asked.words = filter.value;
      showList();
    });
    main.replaceChildren(el("header", {}, el("h1", {}, "Runs")), el("div", { class: "tools", role: "search" }, filter, el("span", { id: "choice" })), el("div", { id: "list" }));
  }
  showList();
}

function showList() {
  const there = new Set(listed.runs.map((run) => run.name));
  asked.ticked = new Set([...asked.ticked].filter((name) => there.has(name)));
  keepAsked();
  const focused = main.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const shown = listed.runs.filter(matching).sort(inOrder), running = listed.runs.filter((run) => run.state === "running").length;
  const count = shown.length === listed.runs.length ? counted(shown.length, "run") : `${whole(shown.length)} of ${counted(listed.runs.length, "run")}`;
  const body = table([...COLUMNS.map(([name]) => sorter(name)), "report"], shown.map(row), {
    caption: `${count} in the folder ${listed.folder}, ${running} running. Accuracy: test data, newest round.`,
    numeric: (place) => NUMBERS.includes(COLUMNS[place]?.[0]), spare: (place) => place > 4,
  });
  [...body.querySelectorAll("thead th")].forEach((head, place) => COLUMNS[place]?.[0] === asked.sort && head.setAttribute("aria-sort", asked.down ? "descending" : "ascending"));
  document.getElementById("list").replaceChildren(listed.runs.length ? body : nothing("No runs yet; start one with: proxyfl run"));
  document.getElementById("choice").replaceChildren(...choice());
  if (focused) [...main.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

function sorter(name) {
  const made = el("button", { type: "button", "data-key": `sort ${name}` }, name);
  made.addEventListener("click", () => {
    asked.down = asked.sort === name ? !asked.down : NUMBERS.includes(name); // the highest numbers first
    asked.sort = name;
    showList();
  });
  return made;
}

function row(run) {
  if (run.problem) return [run.name, el("span", { class: "reason" }, `${run.state}: ${run.problem}`)];
  const tick = el("input", { type: "checkbox", "aria-label": `compare ${run.name}`, "data-key": `tick ${run.name}`, checked: asked.ticked.has(run.name) });
  tick.addEventListener("change", () => {
    if (tick.checked) asked.ticked.add(run.name);
    else asked.ticked.delete(run.name);
    showList();
  });
  const bar = el("progress", { max: run.total, value: run.done, "aria-label": `rounds of ${run.name}` });
  const name = el("span", { class: "named" }, tick, el("a", { href: address("run", [run.name]), "data-key": `run ${run.name}` }, run.name));
  const report = el("a", { href: address("report", [run.name]), "data-key": `report ${run.name}`, "aria-label": `report of ${run.name}` }, "report");
  return [name, percent(run.accuracy, 2), stateOf(run), el("span", {}, bar, `${run.done} / ${run.total}`), run.state === "running" ? duration(run.left) : "–", run.method, run.data, String(run.seed), report];
}

// What can be done with the runs that are ticked, shown or not.
function choice() {
  const names = [...asked.ticked];
  if (!names.length) return [nothing("Tick runs to compare them.")];
  const clear = el("button", { type: "button", "data-key": "clear" }, "Clear");
  clear.addEventListener("click", () => {
    asked.ticked.clear();
    showList();
  });
  const several = names.length > 1 && names.length <= MOST_COMPARED;
  const why = names.length === 1 ? "1 run is ticked; tick another to compare them." : `${names.length} runs are ticked; at most ${MOST_COMPARED} can be compared.`;
  return [several ? el("a", { id: "compare", href: address("run", names), "data-key": "compare" }, `Compare ${names.length} runs`) : nothing(why), clear];
}
