// Pictures of two dimensions: maps of cells, bubbles, points in a plane.
const LEVELS = 12;
const FAINTEST = 0.04, DEEPEST = 0.7; // with numbers on it: dark enough to see, light enough to read in both colour schemes

// values[row][column], or null. Cells of one level are one path, so that large matrices stay light.
function heatMap(title, { rows, columns, values, low, high, text, x = "", y = "", tell, numbered = false, zeros = false, square = false, note = () => "", tone = "blue" }) {
  const gutter = Math.min(100, 16 + 7 * Math.max(...rows.map((name) => Math.min(name.length, 11)))), left = gutter + 12;
  const room = (width) => (width - left - 6) / columns.length, hasNumbers = (width) => numbered && room(width) >= 24;
  return figure(title, (width) => {
    const wide = width - left - 6, cellWide = room(width);
    const cellHigh = square ? Math.min(cellWide, 40) : Math.max(4, Math.min(22, 340 / rows.length));
    const top = 24, high2 = cellHigh * rows.length, height = top + high2 + 40;
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}. Arrow keys tell the values.` });
    const paths = Array.from({ length: LEVELS + 1 }, () => "");
    const level = (value) => Math.max(0, Math.min(LEVELS, Math.round(((value - low) / (high - low || 1)) * LEVELS)));
    values.forEach((row, r) => row.forEach((value, c) => {
      if (value === null || value === undefined) return;
      paths[level(value)] += `M${(left + c * cellWide).toFixed(2)} ${(top + r * cellHigh).toFixed(2)}h${cellWide.toFixed(2)}v${cellHigh.toFixed(2)}h${(-cellWide).toFixed(2)}z`;
    }));
    paths.forEach((path, k) => path && picture.append(svg("path", { d: path, "shape-rendering": "crispEdges", "fill-opacity": FAINTEST + (k / LEVELS) * ((hasNumbers(width) ? DEEPEST : 1) - FAINTEST), paint: { fill: colour(tone) } })));
    const labels = svg("g", { class: "axes" });
    const everyRow = Math.max(1, Math.ceil(13 / cellHigh));
    rows.forEach((name, r) => r % everyRow === 0 && labels.append(svg("text", { x: left - 6, y: top + (r + 0.5) * cellHigh + 4, "text-anchor": "end" }, clipped(name, 11))));
    const most = Math.max(6, Math.floor(cellWide / 7) - 1), longest = Math.max(...columns.map((name) => Math.min(String(name).length, most))) * 7 + 6;
    const everyColumn = Math.max(1, Math.ceil(longest / cellWide));
    columns.forEach((name, c) => {
      const text = clipped(String(name), most), middle = left + (c + 0.5) * cellWide, over = middle + text.length * 4 > width;
      if (c % everyColumn === 0) labels.append(svg("text", { x: over ? width - 2 : middle, y: top + high2 + 16, "text-anchor": over ? "end" : "middle" }, text));
    });
    labels.append(svg("text", { x: left + wide / 2, y: height - 4, "text-anchor": "middle", class: "label" }, x), svg("text", { x: 4, y: 14, class: "label" }, y));
    if (hasNumbers(width)) {
      values.forEach((row, r) => row.forEach((value, c) => (value || (zeros && value === 0)) && labels.append(svg("text", { x: left + (c + 0.5) * cellWide, y: top + (r + 0.5) * cellHigh + 4, "text-anchor": "middle", class: "cell" }, text(value, r, c)))));
    }
    const frame = svg("rect", { class: "frame", width: cellWide, height: cellHigh, visibility: "hidden" });
    picture.append(labels, frame);
    return explorable(picture, {
      steps: rows.length * columns.length,
      at: (px, py) => {
        const c = Math.floor((px - left) / cellWide), r = Math.floor((py - top) / cellHigh);
        return c >= 0 && r >= 0 && c < columns.length && r < rows.length ? r * columns.length + c : null;
      },
      tell: (k) => {
        const r = Math.floor(k / columns.length), c = k % columns.length, value = values[r][c];
        return [left + (c + 1) * cellWide, top + (r + 1) * cellHigh, value === null || value === undefined ? ["no value"] : tell(r, c, value)];
      },
      mark: (k) => {
        frame.setAttribute("visibility", k < 0 ? "hidden" : "visible");
        frame.setAttribute("x", left + (k % columns.length) * cellWide);
        frame.setAttribute("y", top + Math.floor(k / columns.length) * cellHigh);
      },
    });
  }, (width) => note(hasNumbers(width)));
}

// counts[client][class] as bubbles whose area is in proportion.
function bubbleMatrix(title, counts, classes, tone, note = "", names = null) {
  return figure(title, (width) => {
    const clients = counts.length, gutter = Math.min(90, 14 + 7 * Math.max(...classes.map((name) => Math.min(name.length, 10))));
    const left = gutter + 8, top = 24, cell = Math.min(34, (width - left - 6) / clients), many = classes.length > 40, high = many ? Math.min(cell, 12) : Math.max(cell, 13);
    const height = top + classes.length * high + 40, most = Math.max(...counts.flat()) || 1, radius = Math.min(cell, high) * 0.48;
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}. Arrow keys tell the values.` });
    const labels = svg("g", { class: "axes" });
    const everyRow = Math.max(1, Math.ceil(12 / high)), everyColumn = Math.max(1, Math.ceil(20 / cell));
    classes.forEach((name, k) => {
      const y = top + (k + 0.5) * high;
      labels.append(svg("path", { d: `M${left} ${y}h${clients * cell}`, class: "grid" }));
      if (k % everyRow === 0) labels.append(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, clipped(name, 10)));
    });
    for (const y of [top + classes.length * high + 16, ...(many ? [top - 8] : [])]) {
      counts.forEach((_, k) => k % everyColumn === 0 && labels.append(svg("text", { x: left + (k + 0.5) * cell, y, "text-anchor": "middle" }, String(k))));
    }
    labels.append(svg("text", { x: left + (clients * cell) / 2, y: height - 4, "text-anchor": "middle", class: "label" }, "client"), svg("text", { x: 4, y: 14, class: "label" }, "class"));
    picture.append(labels);
    counts.forEach((row, client) => row.forEach((count, k) => count && picture.append(svg("circle", {
      cx: (left + (client + 0.5) * cell).toFixed(1), cy: (top + (k + 0.5) * high).toFixed(1), r: Math.max(0.8, radius * Math.sqrt(count / most)).toFixed(2), class: "bubble", paint: { fill: colour(tone) },
    }))));
    const frame = svg("rect", { class: "frame", width: cell, height: high, visibility: "hidden" });
    picture.append(frame);
    const spot = (k) => [Math.floor(k / classes.length), k % classes.length];
    return explorable(picture, {
      steps: clients * classes.length,
      at: (x, y) => {
        const client = Math.floor((x - left) / cell), k = Math.floor((y - top) / high);
        return client >= 0 && k >= 0 && client < clients && k < classes.length ? client * classes.length + k : null;
      },
      tell: (index) => {
        const [client, k] = spot(index), total = counts[client].reduce((sum, value) => sum + value, 0);
        const all = classes.length > 1 ? [`${whole(total)} of this client in all`] : [];
        return [left + (client + 1) * cell, top + (k + 1) * high, [`client ${names ? names[client] : client}, ${classes.length > 1 ? `class ${classes[k]}` : classes[k]}`, counted(counts[client][k], "image"), ...all]];
      },
      mark: (index) => {
        const [client, k] = spot(index);
        frame.setAttribute("visibility", index < 0 ? "hidden" : "visible");
        frame.setAttribute("x", left + client * cell);
        frame.setAttribute("y", top + k * high);
      },
    });
  }, note);
}

const TAGGED = 20; // up to so many classes have their name beside them
const CLASS_COLOURS = ["blue", "vermillion", "green", "purple", "sky", "orange", "black"];

// Client proxies as small points, their average as a ring, the tuned one as a star.
function proxyPlane(title, { local, average, tuned, clients }, classes, note = "") {
  return figure(title, (width) => {
    const height = Math.round(Math.max(260, Math.min(440, width * 0.8))), pad = 26;
    const spots = [];
    local.forEach((rows, k) => rows.forEach((spot, label) => spots.push({ spot, label, kind: `of client ${clients[k]}` })));
    average.forEach((spot, label) => spots.push({ spot, label, kind: "average" }));
    (tuned || []).forEach((spot, label) => spots.push({ spot, label, kind: "tuned" }));
    const reach = [0, 1].map((axis) => [Math.min(...spots.map((one) => one.spot[axis])), Math.max(...spots.map((one) => one.spot[axis]))]);
    const scale = Math.min((width - 2 * pad) / (reach[0][1] - reach[0][0] || 1), (height - 2 * pad) / (reach[1][1] - reach[1][0] || 1));
    const middle = reach.map(([low, high]) => (low + high) / 2);
    const px = ([x]) => width / 2 + (x - middle[0]) * scale, py = ([, y]) => height / 2 - (y - middle[1]) * scale;
    const picture = svg("svg", { width, height, role: "img", "aria-label": `${title}. Arrow keys tell the points.` });
    const tone = (label) => CLASS_COLOURS[label % CLASS_COLOURS.length];
    const ring = svg("circle", { r: 9, class: "frame", visibility: "hidden" });
    for (const { spot, label, kind } of spots) {
      const at = { cx: px(spot).toFixed(1), cy: py(spot).toFixed(1) };
      if (kind === "average") picture.append(svg("circle", { ...at, r: 5, class: "average", paint: { stroke: colour(tone(label)) } }));
      else if (kind !== "tuned") picture.append(svg("circle", { ...at, r: 2.6, class: "local", paint: { fill: colour(tone(label)) } }));
    }
    (tuned || []).forEach((spot, label) => {
      picture.append(svg("path", { d: `M${px(average[label])} ${py(average[label])}L${px(spot)} ${py(spot)}`, class: "move", paint: { stroke: colour(tone(label)) } }));
      picture.append(marker({ marker: "*", colour: tone(label) }, px(spot).toFixed(1), py(spot).toFixed(1), 5));
    });
    if (classes.length <= TAGGED) (tuned || average).forEach((spot, label) => picture.append(svg("text", { x: px(spot) + 9, y: py(spot) + 4, class: "tag" }, clipped(classes[label] || String(label), 8))));
    picture.append(ring);
    return explorable(picture, {
      steps: spots.length,
      at: (x, y) => {
        let best = null, nearest = 16;
        spots.forEach(({ spot }, k) => {
          const far = Math.hypot(px(spot) - x, py(spot) - y);
          if (far <= nearest) [best, nearest] = [k, far];
        });
        return best;
      },
      tell: (k) => {
        const { spot, label, kind } = spots[k];
        return [px(spot), py(spot), [[`class ${classes[label] || label}`, colour(tone(label))], `proxy ${kind}`]];
      },
      mark: (k) => {
        ring.setAttribute("visibility", k < 0 ? "hidden" : "visible");
        if (k < 0) return;
        ring.setAttribute("cx", px(spots[k].spot));
        ring.setAttribute("cy", py(spots[k].spot));
      },
    });
  }, note);
}
