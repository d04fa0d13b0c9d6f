// Charts with axes: lines with bands, bars side by side, bars of stacked parts.
const MARKERS = 8;
const SIZE = 4;

function tickStep(low, high, count) {
  const raw = (high - low || 1) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= raw * 0.999);
}

const hundredfold = (value) => String(Number((100 * value).toPrecision(4)));

// About `count` round values from low to high.
function ticks(low, high, count) {
  const step = tickStep(low, high, count), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function wholeTicks(low, high, count) {
  return ticks(low, high, Math.min(count, Math.max(1, high - low))).filter(Number.isInteger);
}

// Outlines of markers around (0, 0), by the names that our printed pictures have for them.
function markerPath(name, size) {
  const ring = (corners, turn, inner = 1) => {
    const count = inner === 1 ? corners : 2 * corners;
    const spots = Array.from({ length: count }, (_, k) => {
      const angle = (2 * Math.PI * k) / count + turn - Math.PI / 2, radius = k % 2 && inner !== 1 ? size * inner : size;
      return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
    });
    return `M${spots.join("L")}Z`;
  };
  const right = Math.PI / 2;
  const shapes = {
    "^": () => ring(3, 0), v: () => ring(3, Math.PI), "<": () => ring(3, -right), ">": () => ring(3, right),
    s: () => ring(4, right / 2), D: () => ring(4, 0), d: () => ring(4, 0), p: () => ring(5, 0), h: () => ring(6, 0),
    "*": () => ring(5, 0, 0.45), P: () => ring(4, 0, 0.45), X: () => ring(4, right / 2, 0.45),
  };
  const round = `M${-size} 0a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`;
  return (shapes[name] || (() => round))();
}

function marker(look, x, y, size = SIZE) {
  const shape = markerPath(look.marker, look.marker === "*" ? size * 1.6 : size);
  return svg("path", { d: shape, transform: `translate(${x} ${y})`, class: "marker", paint: { fill: colour(look.colour) } });
}

function legend(series) {
  const items = series.map(({ label, look }) => {
    const line = svg("path", { d: "M0 8H34", "stroke-dasharray": look.dash, paint: { stroke: colour(look.colour), "stroke-width": look.width } });
    return el("li", {}, svg("svg", { width: 34, height: 16, "aria-hidden": "true" }, line, marker(look, 17, 8)), label);
  });
  return el("ul", { class: "legend" }, ...items);
}

function axes(width, height, box, x, y, text) {
  const made = svg("g", { class: "axes" });
  const [left, right, top, bottom] = box;
  for (const value of y.ticks) {
    const place = y.at(value);
    made.append(svg("path", { d: `M${left} ${place}H${right}`, class: "grid" }));
    made.append(svg("text", { x: left - 6, y: place + 4, "text-anchor": "end" }, y.text(value)));
  }
  for (const value of x.ticks) made.append(svg("text", { x: x.at(value), y: bottom + 17, "text-anchor": "middle" }, x.text(value)));
  made.append(svg("path", { d: `M${left} ${bottom}H${right}`, class: "axis" }));
  made.append(svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle", class: "label" }, text.x));
  made.append(svg("text", { x: left, y: top - 10, class: "label" }, text.y));
  return made;
}

// series: [{label, look, x, y, low, high}], y from 0 to 1 where `share`.
function lineChart(title, series, { y = "", x = "communication round", share = false, zero = true, note = "", keyed = true } = {}) {
  const text = share ? (value) => percent(value) : short;
  const made = figure(title, (width) => {
    const height = Math.round(Math.max(200, Math.min(330, width * 0.5)));
    const box = [52, width - 12, 26, height - 42], [left, right, top, bottom] = box;
    const all = series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]).filter((value) => value !== null);
    const rounds = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const xLow = rounds[0], xHigh = Math.max(rounds[rounds.length - 1], xLow + 1);
    const highest = Math.max(...all, zero ? 0 : -Infinity), lowest = Math.min(...all, zero ? 0 : Infinity);
    const step = tickStep(lowest, highest, 5), yLow = lowest, yHigh = yLow + Math.ceil((highest - yLow) / step - 1e-9 || 1) * step;
    const px = (value) => left + 8 + ((value - xLow) / (xHigh - xLow)) * (right - left - 16);
    const py = (value) => bottom - ((value - yLow) / (yHigh - yLow || 1)) * (bottom - top);
    const yTicks = ticks(yLow, yHigh, 5);
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}: ${series.map((one) => one.label).join(", ")}. Arrow keys tell the values.` });
    picture.append(axes(width, height, box,
      { ticks: wholeTicks(xLow, xHigh, width / 70), at: px, text: whole },
      { ticks: yTicks, at: py, text: share ? hundredfold : short },
      { x, y: share ? `${y} (%)` : y }));
    const cross = svg("path", { class: "cross", visibility: "hidden" }), dots = svg("g");
    for (const one of series) if (one.low) picture.append(band(one, px, py));
    series.forEach((one, place) => picture.append(line(one, px, py, place, series.length)));
    picture.append(cross, dots);
    const values = (index) => series
      .map((one) => [one, one.x.indexOf(rounds[index])])
      .filter(([one, spot]) => spot >= 0 && one.y[spot] !== null);
    return explorable(picture, {
      steps: rounds.length,
      at: (spot) => rounds.reduce((best, value, k) => (Math.abs(px(value) - spot) < Math.abs(px(rounds[best]) - spot) ? k : best), 0),
      tell: (index) => {
        const found = values(index).sort(([a, k], [b, m]) => b.y[m] - a.y[k]);
        const lines = found.map(([one, spot]) => {
          const reach = one.low && one.low[spot] !== one.high[spot] ? `  (${text(one.low[spot])} to ${text(one.high[spot])})` : "";
          return [`${one.label}: ${text(one.y[spot])}${reach}`, colour(one.look.colour)];
        });
        return [px(rounds[index]), top, [`round ${rounds[index]}`, ...lines]];
      },
      mark: (index) => {
        cross.setAttribute("visibility", index < 0 ? "hidden" : "visible");
        dots.replaceChildren();
        if (index < 0) return;
        cross.setAttribute("d", `M${px(rounds[index])} ${top}V${bottom}`);
        for (const [one, spot] of values(index)) dots.append(marker(one.look, px(rounds[index]), py(one.y[spot]), 5));
      },
    });
  }, note);
  if (keyed) made.querySelector(".chart").before(legend(series));
  return made;
}

function line({ x, y, look }, px, py, place, count) {
  let path = "", pen = "M";
  x.forEach((value, k) => {
    if (y[k] === null) return void (pen = "M");
    path += `${pen}${px(value).toFixed(1)} ${py(y[k]).toFixed(1)}`;
    pen = "L";
  });
  const made = svg("g", {}, svg("path", { d: path, class: "line", "stroke-dasharray": look.dash, paint: { stroke: colour(look.colour), "stroke-width": look.width } }));
  const every = Math.max(1, Math.floor(x.length / MARKERS)), first = Math.floor((place / count) * every);
  const there = (k) => y[k] !== null && y[k] !== undefined;
  const alone = (k) => !there(k - 1) && !there(k + 1); // no line leads there: without a marker it cannot be seen
  x.forEach((value, k) => {
    const due = k >= first && (k - first) % every === 0;
    if (there(k) && (due || alone(k))) made.append(marker(look, px(value), py(y[k])));
  });
  return made;
}

function band({ x, low, high, look }, px, py) {
  const kept = x.map((_, k) => k).filter((k) => low[k] !== null);
  const there = kept.map((k) => `${px(x[k]).toFixed(1)} ${py(high[k]).toFixed(1)}`);
  const back = kept.reverse().map((k) => `${px(x[k]).toFixed(1)} ${py(low[k]).toFixed(1)}`);
  return svg("path", { d: there.length ? `M${[...there, ...back].join("L")}Z` : "", class: "band", paint: { fill: colour(look.colour) } });
}

// Bars of one colour are distinguished by how they are filled.
const FILLS = ["", "tint", "striped", "hollow"];

function fills(sets) {
  const before = (set, place) => sets.slice(0, place).filter((other) => other.look.colour === set.look.colour).length;
  return sets.map((set, place) => FILLS[before(set, place) % FILLS.length]);
}

function oneBar(x, y, width, height, name, kind) {
  const paint = { "--tone": colour(name) };
  const box = svg("rect", { x: x.toFixed(1), y: y.toFixed(1), width: width.toFixed(1), height: height.toFixed(1), class: `bar ${kind}`.trim(), paint });
  if (kind !== "striped") return [box];
  let path = "";
  for (let rise = 3; rise < height; rise += 4) path += `M${x.toFixed(1)} ${(y + height - rise).toFixed(1)}h${width.toFixed(1)}`;
  return [box, svg("path", { d: path, class: "stripes", paint })];
}

// A group of bars for each class: sets are [{label, look, values}].
function barChart(title, names, sets, { y = "", note = "" } = {}) {
  const kinds = fills(sets), many = names.length * sets.length > 60;
  const made = figure(title, (width) => {
    const height = 250, box = [46, width - 8, 26, height - 42], [left, right, top, bottom] = box;
    const all = sets.flatMap((set) => set.values).filter((value) => value !== null && value !== undefined);
    const highest = Math.max(...all, 0) || 1;
    const group = (right - left) / names.length, bar = Math.max(0.6, (group * 0.8) / sets.length);
    const px = (k) => left + (k + 0.5) * group, py = (value) => bottom - (value / highest) * (bottom - top);
    const longest = Math.max(...names.map((name) => Math.min(name.length, 8))) * 7 + 8;
    const every = Math.max(1, Math.ceil(longest / group));
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}. Arrow keys tell the values.` });
    const shown = names.map((_, k) => k).filter((k) => k % every === 0);
    const yTicks = ticks(0, highest, 5);
    picture.append(axes(width, height, box,
      { ticks: shown, at: px, text: (k) => clipped(names[k], 8) },
      { ticks: yTicks, at: py, text: hundredfold }, { x: "class", y: `${y} (%)` }));
    const patch = svg("rect", { y: top, width: group, height: bottom - top, class: "patch", visibility: "hidden" });
    picture.append(patch);
    sets.forEach((set, place) => names.forEach((_, k) => {
      const value = set.values[k];
      if (value === null || value === undefined) return;
      const x = px(k) - (bar * sets.length) / 2 + place * bar, width = Math.max(0.5, bar - (many ? 0 : 1));
      picture.append(...oneBar(x, py(value), width, Math.max(0, bottom - py(value)), set.look.colour, kinds[place]));
    }));
    return explorable(picture, {
      steps: names.length,
      at: (x) => (x < left || x > right ? null : Math.min(names.length - 1, Math.floor((x - left) / group))),
      tell: (k) => [px(k), top, [`class ${names[k]}`, ...sets.map((set, place) => [`${set.label}: ${percent(set.values[k], 2)}`, colour(set.look.colour), kinds[place]])]],
      mark: (k) => {
        patch.setAttribute("visibility", k < 0 ? "hidden" : "visible");
        if (k >= 0) patch.setAttribute("x", px(k) - group / 2);
      },
    });
  }, note);
  made.querySelector(".chart").before(patches(sets.map((set, place) => [set.label, set.look.colour, kinds[place]])));
  return made;
}

function patches(pairs) {
  return el("ul", { class: "legend" }, ...pairs.map(([label, name, kind]) => el("li", {}, el("i", { class: kind || null, paint: { "--tone": colour(name) } }), label)));
}

// Lying bars made of parts: rows are [{label, parts: {part: value}}].
function stackedBars(title, rows, parts, colours, text, { x = "", note = "", scale = 1 } = {}) {
  const made = figure(title, (width) => {
    const high = 44, top = 4, height = top + rows.length * high + 42, box = [4, width - 16, top, height - 42], [left, right, , bottom] = box;
    const sum = (row) => parts.reduce((total, part) => total + (row.parts[part] || 0), 0);
    const most = Math.max(...rows.map(sum)) || 1, px = (value) => left + (value / most) * (right - left);
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}. Arrow keys tell the values.` });
    picture.append(axes(width, height, box,
      { ticks: ticks(0, most / scale, width / 110), at: (value) => px(value * scale), text: short }, { ticks: [], at: () => 0, text: String }, { x, y: "" }));
    const cells = [];
    rows.forEach((row, place) => {
      const y = top + place * high;
      picture.append(svg("text", { x: left, y: y + 13, class: "label" }, `${clipped(row.label, Math.floor(width / 8))}: ${text(sum(row))}`));
      let from = 0;
      for (const part of parts) {
        const value = row.parts[part] || 0;
        if (!value) continue;
        const wide = px(from + value) - px(from);
        picture.append(svg("rect", { x: px(from).toFixed(1), y: y + 19, width: Math.max(0.8, wide - 1).toFixed(1), height: 17, class: "bar", paint: { fill: colour(colours[part]) } }));
        cells.push({ x: px(from), wide, y, row, part, value });
        from += value;
      }
    });
    return explorable(picture, {
      steps: cells.length,
      at: (x, y) => {
        const found = cells.findIndex((cell) => x >= cell.x && x <= cell.x + Math.max(3, cell.wide) && y >= cell.y && y < cell.y + high);
        return found < 0 ? null : found;
      },
      tell: (k) => {
        const { x: start, wide, y, row, part, value } = cells[k];
        return [start + wide / 2, y + 18, [row.label, [`${part}: ${text(value)} (${percent(value / sum(row))})`, colour(colours[part])]]];
      },
    });
  }, note);
  made.querySelector(".chart").before(patches(parts.filter((part) => rows.some((row) => row.parts[part])).map((part) => [part, colours[part]])));
  return made;
}
