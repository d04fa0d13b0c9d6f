// The sections of a page about runs. Each takes the page's data and gives nodes; without any it is left out.
const PSEUDO = [
  ["pseudo.selected_share", "Share selected", "pseudo-labels trusted", true],
  ["pseudo.selected_accuracy", "Accuracy of the selected", "selected and right", true],
  ["pseudo.accuracy", "Accuracy of all pseudo-labels", "right", true],
  ["pseudo.set_recall", "Category sets: recall", "sets with the true class", true],
  ["pseudo.set_size", "Category sets: size", "classes in a set", false],
];
const PART_COLOURS = { trunk: "blue", classifier: "orange", heads: "green", extras: "purple" };
const PHASE_COLOURS = { train: "blue", serve: "orange", evaluate: "green", record: "purple" };
const SPARE = ["sky", "vermillion", "black"];

const columns = (nodes, small = false) => el("div", { class: small ? "columns small" : "columns" }, ...nodes);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// One line per group: a run's own curve, or the mean of the runs with the reach of all.
function groupSeries(data, key) {
  return data.groups.map(({ label, look, runs }) => {
    const found = runs.map((k) => data.runs[k].curves).filter((curves) => (curves[key] || []).some((value) => value !== null));
    if (!found.length) return null;
    const x = found.reduce((least, { round }) => (round[round.length - 1] < least[least.length - 1] ? round : least), found[0].round);
    const rows = x.map((round) => found.map((curves) => curves[key][nearest(curves.round, round)]).filter((value) => value !== null));
    const each = (fold) => rows.map((values) => (values.length ? fold(values) : null));
    const band = found.length > 1 ? { low: each((values) => Math.min(...values)), high: each((values) => Math.max(...values)) } : {};
    return { label: found.length > 1 ? `${label} (${found.length} seeds)` : label, look, x, y: each(mean), ...band };
  }).filter(Boolean);
}

function nearest(rounds, wanted) {
  const exact = rounds.indexOf(wanted);
  return exact >= 0 ? exact : rounds.reduce((best, round, k) => (Math.abs(round - wanted) < Math.abs(rounds[best] - wanted) ? k : best), 0);
}

const bandNote = (data) => (data.groups.some((group) => group.runs.length > 1) ? "Line: mean over seeds. Band: lowest to highest." : "");
const classNames = (run, count) => (run.classes.length === count ? run.classes : Array.from({ length: count }, (_, k) => String(k)));
const stateOf = (run) => el("span", { class: `state ${run.state}` }, run.state);
const nothing = (text) => el("p", { class: "note" }, text);

// Why runs have no such part, a line for each reason.
function missing(data, part) {
  const reasons = new Map();
  for (const run of data.runs) if (run.notes[part]) reasons.set(run.notes[part], [...(reasons.get(run.notes[part]) || []), run.name]);
  return [...reasons].map(([reason, names]) => nothing(data.runs.length === 1 ? `Note: ${reason}.` : `${names.join(", ")}: ${reason}.`));
}

function overview(data) {
  const rows = data.runs.map((run) => [
    run.name, run.method, run.data, String(run.seed), `${run.done} / ${run.total}`, stateOf(run), percent(run.summary.mean_last, 2),
    percent(run.summary.last, 2), run.summary.best === undefined ? "–" : `${percent(run.summary.best, 2)} (round ${run.summary.best_round})`,
    duration(run.summary.seconds), bytes(run.summary.bytes), run.state === "running" ? duration(run.left) : "–",
  ]);
  const heads = ["run", "method", "data", "seed", "rounds", "state", "mean of last", "last", "best", "time", "sent", "time left"];
  const live = data.runs.some((run) => run.state === "running");
  const cut = (row) => (live ? row : row.slice(0, -1));
  const tails = [...new Set(data.runs.map((run) => run.summary.tail).filter(Boolean))];
  const nodes = [table(cut(heads), rows.map(cut), {
    caption: `Test accuracy; mean of the last ${tails.length === 1 ? `${tails[0]} ` : ""}rounds. The best round is chosen on test data.`,
    numeric: (place) => place > 2 && place !== 5,
  })];
  if (data.groups.some((group) => group.runs.length > 1)) nodes.push(seedTable(data));
  return nodes;
}

function seedTable(data) {
  const cell = (group, key) => {
    const values = group.runs.map((k) => data.runs[k].summary[key]).filter((value) => value !== undefined && value !== null);
    if (!values.length) return "–";
    const centre = mean(values), spread = Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
    return values.length > 1 ? `${(100 * centre).toFixed(2)} ± ${(100 * spread).toFixed(2)} %` : percent(centre, 2);
  };
  const rows = data.groups.map((group) => [group.label, String(group.runs.length), cell(group, "mean_last"), cell(group, "last"), cell(group, "best")]);
  return table(["method", "seeds", "mean of last", "last", "best"], rows, { caption: "Mean ± standard deviation over seeds." });
}

// Runs that differ only in the seed share a column.
function settings(data) {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const values = (name, group) => [...new Set(group.runs.map((k) => data.runs[k].settings[name] ?? "–"))];
  const differs = (name) => new Set(data.runs.map((run) => run.settings[name])).size > 1;
  const everywhere = (name) => data.runs.every((run) => name in run.settings);
  const row = (name) => [el("span", { class: "code" }, name), ...data.groups.map((group) => values(name, group).join(", "))];
  const listed = (chosen, caption) => table(["setting", ...data.groups.map((group) => group.label)], chosen.map(row), { caption, numeric: () => false });
  const folded = (words, body) => el("details", {}, el("summary", {}, words), body);
  const nodes = [], differing = names.filter(differs);
  if (data.runs.length > 1) {
    const main = differing.filter(everywhere), rest = differing.filter((name) => !everywhere(name));
    nodes.push(main.length ? listed(main, "Where the runs differ.") : nothing("All settings are the same."));
    if (rest.length) nodes.push(folded(`${rest.length} settings that only some methods have`, listed(rest, "Settings that only some methods have.")));
  }
  const shared = names.filter((name) => !differs(name)).map((name) => [el("span", { class: "code" }, name), data.runs[0].settings[name]]);
  const words = data.runs.length > 1 ? `${shared.length} settings that all runs share` : `All ${shared.length} settings`;
  nodes.push(folded(words, table(["setting", "value"], shared, { caption: `${words}.`, numeric: () => false })));
  return nodes;
}

function accuracy(data) {
  const series = groupSeries(data, "accuracy");
  if (!series.length) return [nothing("No round is finished yet.")];
  const drawn = Math.max(...data.runs.map((run) => (run.curves.round || []).length)), done = Math.max(...data.runs.map((run) => run.done));
  const thinned = drawn < done ? ` ${drawn} of ${done} rounds are drawn, spread evenly.` : "";
  const nodes = [lineChart("Test accuracy", series, { y: "test accuracy", share: true, note: bandNote(data) + thinned })];
  const rounds = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const value = (one, round) => (one.x.includes(round) ? percent(one.y[one.x.indexOf(round)], 2) : "–");
  const details = el("details", {}, el("summary", {}, "The values as a table"));
  details.addEventListener("toggle", () => details.open && details.children.length === 1 &&
    details.append(table(["round", ...series.map((one) => one.label)], rounds.map((round) => [String(round), ...series.map((one) => value(one, round))]), { caption: "Test accuracy by round." })));
  return [...nodes, details];
}

function losses(data) {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name.startsWith("losses."));
  const charts = names.map((name) => lineChart(name.slice(7), groupSeries(data, name), { y: "mean loss of a step", note: bandNote(data) }));
  return charts.length ? [columns(charts, true)] : null;
}

// The runs of a group share a bar each: their mean over seeds.
function perClass(data) {
  const held = data.runs.filter((run) => run.per_class);
  if (!held.length) return null;
  const size = held[0].per_class.last.length, names = classNames(held[0], size);
  const sets = data.groups.map(({ label, look, runs }) => {
    const rows = runs.map((k) => data.runs[k].per_class).filter((one) => one && one.last.length === size).map((one) => one.last);
    const values = names.map((_, k) => rows.map((row) => row[k]).filter((value) => value !== null));
    return rows.length ? { label, look, values: values.map((column) => (column.length ? mean(column) : null)) } : null;
  }).filter(Boolean);
  const seeds = data.groups.some((group) => group.runs.length > 1) ? " Means over seeds." : "";
  const bars = barChart("Test accuracy by class, last round", names, sets, { y: "test accuracy", note: `A class without a bar is never recognised.${seeds}` });
  const maps = held.map((run) => classMap(run, run.per_class, {
    title: `${run.name}: accuracy by class over rounds`, low: 0, high: 1, note: "Faint: 0 %. Strong: 100 %.", word: (value) => percent(value),
  }));
  return [bars, columns(maps)];
}

function classMap(run, { rounds, values }, { title, low, high, note, word, tone = "blue" }) {
  const names = classNames(run, values[0].length);
  return heatMap(title, {
    rows: names, columns: rounds.map(String), values: names.map((_, k) => values.map((row) => row[k])), low, high, tone, text: short, x: "communication round", y: "class",
    tell: (r, c, value) => [`class ${names[r]}, round ${rounds[c]}`, word(value)], note,
  });
}

function confusion(data) {
  const maps = data.runs.filter((run) => run.confusion).map((run) => {
    const { counts, round } = run.confusion, names = classNames(run, counts.length);
    const totals = counts.map((row) => row.reduce((sum, value) => sum + value, 0) || 1);
    return heatMap(`${run.name}, round ${round}`, {
      rows: names, columns: names, values: counts.map((row, r) => row.map((value) => value / totals[r])), low: 0, high: 1, square: true,
      numbered: counts.length <= 15, text: (_, r, c) => String(counts[r][c]), x: "predicted class", y: "true class",
      tell: (r, c, value) => [`true ${names[r]}, predicted ${names[c]}`, `${whole(counts[r][c])} images, ${percent(value)} of the class`],
      note: "Colour: share of the true class. Numbers: test images.",
    });
  });
  return [...(maps.length ? [columns(maps)] : []), ...missing(data, "confusion")];
}

function partition(data) {
  const seen = new Map();
  for (const run of data.runs.filter((one) => one.partition)) {
    const key = JSON.stringify(run.partition);
    seen.set(key, [...(seen.get(key) || []), run]);
  }
  const nodes = [];
  for (const runs of seen.values()) {
    const { labelled, unlabelled, classes, clients, totals } = runs[0].partition;
    const more = clients > labelled.length ? ` The first ${labelled.length} of ${whole(clients)} clients.` : "";
    const who = runs.length === data.runs.length ? "" : `${runs.map((run) => run.name).join(", ")}: `;
    nodes.push(columns([["labelled", labelled, "orange", totals[0]], ["unlabelled", unlabelled, "sky", totals[1]]].map(([word, counts, tone, total]) =>
      bubbleMatrix(`${who}${word}, ${whole(total)} images`, counts, classes, tone, `Area in proportion to the images; the largest bubble is ${whole(Math.max(...counts.flat()))}.${more}`))));
  }
  return [...nodes, ...missing(data, "partition")];
}

function pseudo(data) {
  const charts = PSEUDO.map(([key, title, y, share]) => [title, groupSeries(data, key), y, share]).filter(([, series]) => series.length)
    .map(([title, series, y, share]) => lineChart(title, series, { y, share, note: bandNote(data) }));
  const truth = data.runs.some((run) => run.curves["pseudo.selected_share"] && !run.curves["pseudo.accuracy"]);
  return [...(charts.length ? [columns(charts, true)] : []), ...(truth ? [nothing("Without the true labels pseudo-labels are counted only.")] : []), ...missing(data, "pseudo")];
}

function prior(data) {
  const held = data.runs.filter((run) => run.prior);
  const charts = held.flatMap((run) => {
    const { last, values, round } = run.prior, names = classNames(run, last.length), all = values.flat().filter((value) => value !== null);
    const shares = run.partition && run.partition.shares;
    const sets = [{ label: "class prior", look: { colour: "vermillion" }, values: last }];
    if (shares && shares.length === last.length) sets.push({ label: "share in the training data", look: { colour: "sky" }, values: shares });
    const low = Math.min(...all), high = Math.max(...all);
    return [
      barChart(`${run.name}: class prior, round ${round}`, names, sets, { y: "share" }),
      classMap(run, run.prior, { title: `${run.name}: class prior over rounds`, low, high, tone: "vermillion", word: (value) => percent(value, 2), note: `Faint: ${percent(low, 2)}. Strong: ${percent(high, 2)}.` }),
    ];
  });
  return [...(charts.length ? [columns(charts)] : []), ...missing(data, "prior")];
}

function proxies(data) {
  const planes = data.runs.filter((run) => run.proxies).map((run) => proxyPlane(
    `${run.name}, round ${run.proxies.round}`, run.proxies, classNames(run, run.proxies.average.length),
    `Points: classifier rows of ${run.proxies.clients.length} clients. Rings: their average.${run.proxies.tuned ? " Stars: after tuning." : " This method does not tune them."} The components explain ${run.proxies.explained.map((share) => percent(share, 0)).join(" and ")} of the variance.`));
  const how = nothing("Rows of the classifier, one per class: clients, average and tuned ones in one plane, by principal component analysis (PCA) of all of them together, not scaled.");
  return [...(planes.length ? [how, columns(planes)] : []), ...missing(data, "proxies")];
}

function communication(data) {
  const ways = [["up", "up"], ["down", "down, to each client"], ["down_once", "down, as one broadcast"]];
  const held = data.groups.map(({ label, runs }) => ({ label, runs: runs.map((k) => data.runs[k].traffic).filter(Boolean) })).filter(({ runs }) => runs.length);
  const parts = (runs, way) => Object.fromEntries(Object.keys(PART_COLOURS).map((part) => [part, mean(runs.map((run) => run[way][part]))]));
  const rows = held.flatMap(({ label, runs }) => ways.map(([way, words]) => ({ label: held.length > 1 ? `${label}, ${words}` : words, parts: parts(runs, way) })));
  if (!rows.length) return null;
  const seeds = data.groups.some((group) => group.runs.length > 1) ? " Per run, mean over seeds." : "";
  return [stackedBars("Sent in all rounds, by part of the model", rows, Object.keys(PART_COLOURS), PART_COLOURS, bytes, {
    x: "megabytes", scale: 1e6, note: `trunk: all layers before the classifier. extras: what a method sends beside weights.${seeds}`,
  })];
}

function time(data) {
  const held = data.runs.filter((run) => Object.keys(run.seconds).length);
  const names = [...new Set(held.flatMap((run) => Object.keys(run.seconds)))];
  if (!names.length) return null;
  const colours = Object.fromEntries(names.map((name, k) => [name, PHASE_COLOURS[name] || SPARE[k % SPARE.length]]));
  const rows = held.map((run) => ({ label: run.name, parts: run.seconds }));
  return [stackedBars("Time of all rounds, by phase", rows, names, colours, duration, { x: "seconds", note: "train: clients. serve: the mean and the server's own steps. evaluate: test data. record: files." })];
}

function failed(data) {
  const rows = data.runs.flatMap((run) => run.failures.map(([round, client, reason]) => [run.name, String(round), client, el("span", { class: "reason" }, reason)]));
  if (!rows.length) return [nothing("No client failed.")];
  const all = data.runs.reduce((sum, run) => sum + run.failures_in_all, 0);
  const words = all > rows.length ? `The newest ${rows.length} of ${whole(all)} failures.` : `${whole(all)} in all.`;
  return [table(["run", "round", "client", "reason"], rows, { caption: words, numeric: (place) => place < 3 })];
}

const SECTIONS = [
  ["overview", "Result", overview], ["settings", "Settings", settings], ["accuracy", "Accuracy", accuracy], ["classes", "By class", perClass],
  ["confusion", "Confusion", confusion], ["pseudo", "Pseudo-labels", pseudo], ["losses", "Losses", losses], ["prior", "Class prior", prior],
  ["proxies", "Proxies", proxies], ["partition", "Partition", partition], ["communication", "Communication", communication],
  ["time", "Time", time], ["failures", "Clients that failed", failed],
];
