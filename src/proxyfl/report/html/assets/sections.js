// The sections of a page about runs. Each takes the page's data and gives nodes; without any it is left out.
const PSEUDO = [
  ["pseudo.selected_share", "Share selected", "pseudo-labels selected", true],
  ["pseudo.selected_accuracy", "Accuracy of the selected", "selected and correct", true],
  ["pseudo.accuracy", "Accuracy of all pseudo-labels", "right", true],
  ["pseudo.set_recall", "Category sets: recall", "sets that contain the true class", true],
  ["pseudo.set_size", "Category sets: size", "classes in a set", false],
];
const MEASURES = [
  ["macro_f1", "Macro-F1"], ["balanced_accuracy", "Balanced accuracy"], ["auroc", "AUROC, one class against the others"],
  ["ece", "Calibration error (lower is better)"], ["top5", "Top-5 accuracy"],
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
const distinct = (values) => [...new Set(values)];
const nothing = (text) => el("p", { class: "note" }, text);

// Why runs have no such part, a line for each reason.
function missing(data, part) {
  const reasons = new Map();
  for (const run of data.runs) if (run.notes[part]) reasons.set(run.notes[part], [...(reasons.get(run.notes[part]) || []), run.name]);
  return [...reasons].map(([reason, names]) => nothing(data.runs.length === 1 ? `Note: ${reason}.` : `${names.join(", ")}: ${reason}.`));
}

// What accuracy is measured on, in words that hold for all runs.
function accuracyWords(data) {
  const words = distinct(data.runs.map((run) => run.accuracy_called));
  return words.length === 1 ? words[0] : "accuracy";
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function chosenOn(data) {
  const ways = distinct(data.runs.map((run) => run.summary.chosen_on).filter(Boolean));
  if (!ways.includes("validation")) return "The best round is chosen on test data.";
  return ways.length === 1 ? "The best round is chosen on validation images." : "The best round is chosen on validation images where a run has some, else on test data.";
}

function overview(data) {
  const live = data.runs.some((run) => run.state === "running");
  const left = (run) => (run.state === "running" ? duration(run.left) : "–");
  const best = ({ summary }) => (summary.best === undefined ? "–" : `${percent(summary.best, 2)} (round ${summary.best_round})`);
  // What is looked for first stands first: a phone shows the beginning of a row.
  const fields = [
    ["run", (run) => run.name], ["mean of last", (run) => percent(run.summary.mean_last, 2)], ["last", (run) => percent(run.summary.last, 2)],
    ["best", best], ["state", stateOf], ["rounds", (run) => `${run.done} / ${run.total}`], ...(live ? [["time left", left]] : []),
    ["method", (run) => run.method], ["data", (run) => run.data], ["seed", (run) => String(run.seed)],
    ["time", (run) => duration(run.summary.seconds)], ["sent", (run) => bytes(run.summary.bytes)],
  ];
  const tails = distinct(data.runs.map((run) => run.summary.tail).filter(Boolean)), words = ["run", "state", "method", "data"];
  const nodes = [table(fields.map(([head]) => head), data.runs.map((run) => fields.map(([, value]) => value(run))), {
    caption: `${capital(accuracyWords(data))}; mean of the last ${tails.length === 1 ? `${tails[0]} ` : ""}rounds. ${chosenOn(data)}`,
    numeric: (place) => !words.includes(fields[place][0]),
  })];
  if (data.groups.some((group) => group.runs.length > 1)) nodes.push(seedTable(data));
  return [...nodes, ...privacy(data), ...data.notes.map(nothing)];
}

// What the rounds have cost where whole clients or single images are kept private.
function privacy(data) {
  const rows = data.runs.flatMap((run) => run.privacy.map((one) => [
    run.name, one.of === "privacy" ? "whole clients" : `single ${run.called}`, short(one.epsilon), String(one.delta ?? "–"), short(one.clip), short(one.noise), String(one.rounds),
  ]));
  if (!rows.length) return [];
  const single = data.runs.some((run) => run.privacy.some((one) => one.of !== "privacy")) ? " Of single ones, ε is that of the most exposed one, if its client took part in all rounds." : "";
  const caption = `Differential privacy after these rounds, as long as nobody knows the noise and the sample.${single}`;
  return [table(["run", "of", "ε", "δ", "clip", "noise", "rounds"], rows, { caption, numeric: (place) => place > 1 })];
}

// A real federation while it is under way: who is there, who has answered, what each has sent.
function federation({ federation: found }) {
  if (!found) return null;
  if (found.problem) return [nothing(found.problem)];
  const { run, sites, certificates } = found, together = (text) => el("span", { class: "amount" }, text);
  // Of another day the day, too: a site that was heard yesterday must not look as if it were there. Swedes write dates as ISO does.
  const clock = (time) => {
    if (!time) return "–";
    const [day, hour] = new Date(1000 * time).toLocaleString("sv-SE").split(" "), [today] = new Date().toLocaleString("sv-SE").split(" ");
    return day === today ? hour : el("span", {}, together(day), " ", together(hour));
  };
  const heads = ["site", "state", "last heard", "approval", "now", "answered", "late", "offline", "refused", "last update", "seconds", "sent", "accuracy"];
  const rows = sites.map(({ name, state, seen, approval, doing, rounds, last_answer: last, gate, accuracy: share }) => [
    name, el("span", { class: `state ${state === "connected" ? "finished" : "stopped"}` }, state), clock(seen), approval || "–", doing || "–",
    ...["answered", "late", "offline", "refused"].map((key) => String(rounds[key])),
    last ? el("span", {}, `round ${last.round}: `, together(bytes(last.bytes))) : "–", last ? short(last.seconds) : "–", gate ? bytes(gate.received) : "–", percent(share),
  ]);
  const soon = Object.entries(certificates).filter(([, days]) => days < 30);
  const playing = run.begun > run.round ? `Round ${run.begun} of ${run.rounds} is in progress. ` : "", none = !run.round && !playing;
  return [
    table(heads, rows, { caption: `${playing}${none ? "No round yet." : `${run.round} of ${run.rounds} rounds are finished.`} Server ${found.address}. Approval: known once the run has contacted a site. Sent: to the gate since it opened.`, numeric: (place) => place > 4 && place !== 9, spare: (place) => place > 9 }),
    ...(run.said ? [nothing(`Last: ${run.said}`)] : []),
    ...soon.map(([name, days]) => nothing(`The certificate of ${name} ${days < 0 ? "has expired" : `expires in ${days} days`}.`)),
  ];
}

// A run that is still under way would pull the mean of its seeds down: it waits until it is finished.
function seedTable(data) {
  const finished = (group) => group.runs.map((k) => data.runs[k]).filter((run) => run.state === "finished");
  const cell = (runs, key) => {
    const values = runs.map((run) => run.summary[key]).filter((value) => value !== undefined && value !== null);
    if (!values.length) return "–";
    const centre = mean(values), spread = Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
    return values.length > 1 ? `${(100 * centre).toFixed(2)} ± ${(100 * spread).toFixed(2)} %` : percent(centre, 2);
  };
  const row = (label, runs) => [label, String(runs.length), ...["mean_last", "last", "best"].map((key) => cell(runs, key))];
  const waiting = data.groups.some((group) => finished(group).length < group.runs.length) ? " Unfinished runs are left out." : "";
  return table(["method", "seeds", "mean of last", "last", "best"], data.groups.map((group) => row(group.label, finished(group))), { caption: `Mean ± standard deviation over seeds.${waiting}` });
}

// A setting's name, which breaks between its words only.
const dotted = (name) => el("span", { class: "code" }, ...name.split(/(?<=[._])/).flatMap((part) => [part, el("wbr")]));

// Runs that differ only in the seed share a column.
function settings(data) {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const values = (name, group) => [...new Set(group.runs.map((k) => data.runs[k].settings[name] ?? "–"))];
  const differs = (name) => new Set(data.runs.map((run) => run.settings[name])).size > 1;
  const everywhere = (name) => data.runs.every((run) => name in run.settings);
  const row = (name) => [dotted(name), ...data.groups.map((group) => values(name, group).join(", "))];
  const listed = (chosen, caption) => table(["setting", ...data.groups.map((group) => group.label)], chosen.map(row), { caption, numeric: () => false, kind: "settings" });
  const folded = (words, body) => el("details", {}, el("summary", {}, words), body);
  const nodes = [], differing = names.filter(differs);
  if (data.runs.length > 1) {
    const main = differing.filter(everywhere), rest = differing.filter((name) => !everywhere(name));
    nodes.push(main.length ? listed(main, "Where the runs differ.") : nothing("All settings are the same."));
    if (rest.length) nodes.push(folded(`${rest.length} settings that only some methods have`, listed(rest, "Settings that only some methods have.")));
  }
  const shared = names.filter((name) => !differs(name)).map((name) => [dotted(name), data.runs[0].settings[name]]);
  const words = data.runs.length > 1 ? `${shared.length} settings that all runs share` : `All ${shared.length} settings`;
  nodes.push(folded(words, table(["setting", "value"], shared, { caption: `${words}.`, numeric: () => false, kind: "settings" })));
  return nodes;
}

// Rounds without a value leave no gap in a line of accuracies: they were not measured.
function measured(one) {
  const there = (values) => values && values.filter((_, k) => one.y[k] !== null);
  return { ...one, x: there(one.x), y: there(one.y), low: there(one.low), high: there(one.high) };
}

function accuracy(data) {
  const series = groupSeries(data, "accuracy").map(measured);
  if (!series.length) return [nothing(data.runs.some((run) => run.done) ? "No round has been evaluated yet." : "No round is finished yet.")];
  const drawn = Math.max(...data.runs.map((run) => (run.curves.round || []).length)), done = Math.max(...data.runs.map((run) => run.done));
  const thinned = drawn < done ? ` ${drawn} of ${done} rounds are drawn, spread evenly.` : "";
  const nodes = [lineChart(capital(accuracyWords(data)), series, { y: accuracyWords(data), share: true, note: bandNote(data) + thinned })];
  const rounds = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const value = (one, round) => (one.x.includes(round) ? percent(one.y[one.x.indexOf(round)], 2) : "–");
  const details = el("details", {}, el("summary", {}, "The values as a table"));
  details.addEventListener("toggle", () => details.open && details.children.length === 1 &&
    details.append(table(["round", ...series.map((one) => one.label)], rounds.map((round) => [String(round), ...series.map((one) => value(one, round))]), { caption: `${capital(accuracyWords(data))} by round.` })));
  return [...nodes, details];
}

function measures(data) {
  const charts = [["validation.accuracy", "Accuracy on validation images"], ...MEASURES.map(([name, title]) => [`measures.${name}`, title])]
    .map(([key, title]) => [title, groupSeries(data, key).map(measured)]).filter(([, series]) => series.length)
    .map(([title, series]) => lineChart(title, series, { y: title.replace(/ \(.*/, "").toLowerCase().replace("auroc", "AUROC").replace("-f1", "-F1"), share: true, note: bandNote(data) }));
  return charts.length ? [columns(charts, true)] : null;
}

function losses(data) {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name.startsWith("losses."));
  const charts = names.map((name) => lineChart(name.slice(7), groupSeries(data, name), { y: "mean loss of a step", note: bandNote(data) }));
  return charts.length ? [columns(charts, true)] : null;
}

function perClass(data) {
  const held = data.runs.filter((run) => run.per_class);
  if (!held.length) return null;
  const most = scales(held, (run) => run.per_class.values.flat());
  const maps = held.map((run) => classMap(run, run.per_class, {
    title: `${run.name}: accuracy by class over rounds`, low: 0, high: most(run), note: `Faint: 0 %. Strong: ${percent(most(run))}.`, word: (value) => percent(value),
  }));
  const precise = data.runs.filter((run) => run.precision);
  return [...classBars(data, held, "per_class", accuracyWords(data), "A class without a bar is never recognised."),
    ...classBars(data, precise, "precision", "precision", "Share of correct predictions among all predictions of a class."), columns(maps)];
}

// A chart for each list of classes. The runs of a group share a bar each: their mean over seeds.
function classBars(data, held, part, what, note) {
  const names = (run) => classNames(run, run[part].last.length), list = (run) => JSON.stringify([run.data, names(run)]);
  return distinct(held.map(list)).map((key) => {
    const chosen = held.filter((run) => list(run) === key), classes = names(chosen[0]);
    const sets = data.groups.map(({ label, look, runs }) => {
      const rows = runs.map((k) => data.runs[k]).filter((run) => chosen.includes(run)).map((run) => run[part].last);
      const values = classes.map((_, k) => rows.map((row) => row[k]).filter((value) => value !== null));
      return rows.length ? { label, look, seeds: rows.length, values: values.map((column) => (column.length ? mean(column) : null)) } : null;
    }).filter(Boolean);
    const seeds = sets.some((set) => set.seeds > 1) ? " Means over seeds." : "";
    return barChart(`${chosen[0].data}: ${what} by class, last round`, classes, sets, { y: what, note: note + seeds });
  });
}

// The largest value of all runs on a data set: maps that are compared have one scale.
function scales(runs, values) {
  const most = new Map();
  for (const run of runs) most.set(run.data, values(run).reduce((high, value) => Math.max(high, value), most.get(run.data) || 0));
  return (run) => most.get(run.data) || 1;
}

function classMap(run, { rounds, values }, { title, low, high, note, word, tone = "blue" }) {
  const names = classNames(run, values[0].length);
  return heatMap(title, {
    rows: names, columns: rounds.map(String), values: names.map((_, k) => values.map((row) => row[k])), low, high, tone, text: short, x: "communication round", y: "class",
    tell: (r, c, value) => [`class ${names[r]}, round ${rounds[c]}`, word(value)], note: () => note,
  });
}

function confusion(data) {
  const shares = ({ confusion: { counts } }) => counts.map((row) => {
    const total = row.reduce((sum, value) => sum + value, 0) || 1;
    return row.map((value) => value / total);
  });
  const held = data.runs.filter((run) => run.confusion), most = scales(held, (run) => shares(run).flat());
  const maps = held.map((run) => {
    const { counts, round } = run.confusion, names = classNames(run, counts.length);
    return heatMap(`${run.name}, round ${round}`, {
      rows: names, columns: names, values: shares(run), low: 0, high: most(run), square: true,
      numbered: counts.length <= 15, text: (_, r, c) => String(counts[r][c]), x: "predicted class", y: "true class",
      tell: (r, c, value) => [`true ${names[r]}, predicted ${names[c]}`, `${counted(counts[r][c], "image")}, ${percent(value)} of the class`],
      note: (numbers) => `Colour: share of the true class, strongest at ${percent(most(run))}.${numbers ? " Numbers: test images." : ""}`,
    });
  });
  return [...(maps.length ? [columns(maps)] : []), ...missing(data, "confusion")];
}

// Every model at every site: one site's failure must not be hidden in the sum.
function bySite(data) {
  const held = data.runs.filter((run) => run.sites);
  const maps = held.flatMap((run) => {
    const { sites, images, total, models, measures } = run.sites, several = data.runs.length > 1 ? `${run.name}: ` : "";
    const rows = models.map(([name]) => name), heads = sites.map((name, k) => `${name} (${whole(images[k])})`);
    const more = total > sites.length ? ` The first ${sites.length} of ${whole(total)} sites.` : "";
    const cells = (values) => values.map((row, r) => [models[r][0], String(models[r][1]), ...row.map((value) => percent(value))]);
    const drawn = Object.entries(measures).map(([measure, values]) => heatMap(`${several}${measure}, model by site`, {
      rows, columns: sites, values, low: 0, high: 1, numbered: true, zeros: true, text: (value) => percent(value, 0), x: "site whose images are measured", y: "model",
      tell: (r, c, value) => [`${models[r][0]}, round ${models[r][1]}`, `at ${sites[c]}: ${percent(value, 2)} on ${whole(images[c])} ${run.called}`], note: () => `Faint: 0 %. Strong: 100 %.${more}`,
    }));
    const caption = `${several}accuracy; in brackets the ${run.called} that each site holds out.${more}`;
    return [table(["model", "round", ...heads], cells(measures.accuracy), { caption: capital(caption) }), columns(drawn)];
  });
  return maps.length ? maps : null;
}

function partition(data) {
  const seen = new Map();
  for (const run of data.runs.filter((one) => one.partition)) {
    const key = JSON.stringify(run.partition);
    seen.set(key, [...(seen.get(key) || []), run]);
  }
  const nodes = [];
  for (const runs of seen.values()) {
    const { labelled, unlabelled, classes, clients, totals, names } = runs[0].partition, { called } = runs[0];
    const named = names ? ` Clients: ${names.map((name, k) => `${k} ${name}`).join(", ")}.` : "";
    const more = clients > labelled.length ? ` The first ${labelled.length} of ${whole(clients)} clients.` : "";
    const who = runs.length === data.runs.length ? "" : `${runs.map((run) => run.name).join(", ")}: `;
    nodes.push(columns([["labelled", labelled, "orange", totals[0]], ["unlabelled", unlabelled, "sky", totals[1]]].map(([word, counts, tone, total]) =>
      bubbleMatrix(`${who}${word}, ${whole(total)} ${called}`, counts, classes, tone, `Area proportional to the number of ${called}; the largest bubble is ${whole(Math.max(...counts.flat()))}.${more}${named}`, names))));
  }
  return [...nodes, ...missing(data, "partition")];
}

function pseudo(data) {
  const charts = PSEUDO.map(([key, title, y, share]) => [title, groupSeries(data, key), y, share]).filter(([, series]) => series.length)
    .map(([title, series, y, share]) => lineChart(title, series, { y, share, note: bandNote(data) }));
  const truth = data.runs.some((run) => run.curves["pseudo.selected_share"] && !run.curves["pseudo.accuracy"]);
  return [...(charts.length ? [columns(charts, true)] : []), ...(truth ? [nothing(`The true classes of unlabelled ${data.runs.every((run) => run.called === "vectors") ? "vectors" : "images"} are unknown, so the accuracy of pseudo-labels is unknown; they are only counted.`)] : []), ...missing(data, "pseudo")];
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

function repeated(classes) {
  const how = classes > TAGGED ? "; pointer and arrow keys tell the class of a point" : "";
  return classes > CLASS_COLOURS.length ? ` ${CLASS_COLOURS.length} colours serve all ${classes} classes${how}.` : "";
}

function proxies(data) {
  const planes = data.runs.filter((run) => run.proxies).map((run) => proxyPlane(
    `${run.name}, round ${run.proxies.round}`, run.proxies, classNames(run, run.proxies.average.length),
    `Points: classifier rows of ${run.proxies.clients.length} clients. Rings: their average.${run.proxies.tuned ? " Stars: after tuning." : " This method does not tune them."} The components explain ${run.proxies.explained.map((share) => percent(share, 0)).join(" and ")} of the variance.${repeated(run.proxies.average.length)}`));
  const how = nothing("Rows of the classifier, one per class: clients, average and tuned ones in one plane, by principal component analysis (PCA) of all of them together, not scaled.");
  return [...(planes.length ? [how, columns(planes)] : []), ...missing(data, "proxies")];
}

// A number with a bar of its length: unusual ones stand out.
function amount(cell) {
  if (!cell) return "–";
  const [text, share, odd] = cell, bar = oneBar(0, 1, Math.max(0.5, 40 * share), 8, odd ? "vermillion" : "sky", "");
  return el("span", { class: odd ? "amount odd" : "amount" }, text, svg("svg", { width: 40, height: 10, "aria-hidden": "true" }, ...bar));
}

// Who hurts, who gains: the most unusual clients first, and below them what is unusual.
function clients(data) {
  const shown = data.runs.filter((run) => run.clients).map((run) => {
    const { measures, rows, total } = run.clients, odd = rows.filter(([, , , said]) => said.length);
    const left = total > rows.length ? ` The most and the least unusual of ${whole(total)} clients.` : "";
    const body = [
      table(["client", "rounds", ...measures], rows.map(([name, rounds, cells]) => [name, String(rounds), ...cells.map(amount)]), { caption: `Medians over the rounds, most unusual clients first.${left}` }),
      ...(odd.length ? odd.map(([name, , , said]) => el("p", {}, el("b", {}, name), `: ${said.join("; ")}.`)) : [nothing("No client is unusual.")]),
    ];
    return data.runs.length === 1 ? body : [el("details", {}, el("summary", {}, run.name), ...body)];
  });
  return [...shown.flat(), ...missing(data, "clients")];
}

function communication(data) {
  const ways = [["up", "up"], ["down", "down, to each client"], ["down_once", "down, as one broadcast"]];
  const held = data.groups.map(({ label, runs }) => ({ label, runs: runs.map((k) => data.runs[k].traffic).filter(Boolean) })).filter(({ runs }) => runs.length);
  const parts = (runs, way) => Object.fromEntries(Object.keys(PART_COLOURS).map((part) => [part, mean(runs.map((run) => run[way][part]))]));
  const rows = held.flatMap(({ label, runs }) => ways.map(([way, words]) => ({ label: held.length > 1 ? `${label}, ${words}` : words, parts: parts(runs, way) })));
  if (!rows.length) return null;
  const seeds = data.groups.some((group) => group.runs.length > 1) ? " Per run, mean over seeds." : "";
  return [stackedBars("Traffic of all rounds, by part of the model", rows, Object.keys(PART_COLOURS), PART_COLOURS, bytes, {
    x: "megabytes", scale: 1e6, note: `trunk: all layers before the classifier. extras: what a method sends in addition to weights.${seeds}`,
  })];
}

function time(data) {
  const held = data.runs.filter((run) => Object.keys(run.seconds).length);
  const names = [...new Set(held.flatMap((run) => Object.keys(run.seconds)))];
  if (!names.length) return null;
  const colours = Object.fromEntries(names.map((name, k) => [name, PHASE_COLOURS[name] || SPARE[k % SPARE.length]]));
  const rows = held.map((run) => ({ label: run.name, parts: run.seconds }));
  return [stackedBars("Time of all rounds, by phase", rows, names, colours, duration, { x: "seconds", note: "train: clients. serve: aggregation and the server's own steps. evaluate: test data. record: files." })];
}

function failed(data) {
  const rows = data.runs.flatMap((run) => run.failures.map(([round, client, reason]) => [run.name, String(round), client, el("span", { class: "reason" }, reason)]));
  if (!rows.length) return [nothing("No client failed.")];
  const all = data.runs.reduce((sum, run) => sum + run.failures_in_all, 0);
  const words = all > rows.length ? `The newest ${rows.length} of ${whole(all)} failures.` : `${whole(all)} in all.`;
  return [table(["run", "round", "client", "reason"], rows, { caption: words, numeric: (place) => place < 3 })];
}

const SECTIONS = [
  ["overview", "Result", overview], ["federation", "Federation", federation], ["settings", "Settings", settings], ["accuracy", "Accuracy", accuracy], ["measures", "More measures", measures], ["classes", "By class", perClass],
  ["confusion", "Confusion", confusion], ["pseudo", "Pseudo-labels", pseudo], ["losses", "Losses", losses], ["prior", "Class prior", prior],
  ["proxies", "Proxies", proxies], ["sites", "By site", bySite], ["partition", "Partition", partition], ["clients", "Clients", clients], ["communication", "Communication", communication],
  ["time", "Time", time], ["failures", "Failed clients", failed],
];
