// Figures of one record: heat maps over the grid, a histogram, a table by class.
// Ten samples of cividis, which reads the same with and without color vision.
const HEAT = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

function heat(t) {
  const k = Math.min(HEAT.length - 1.000001, Math.max(0, t * (HEAT.length - 1)));
  const i = Math.floor(k);
  const channel = (color, c) => parseInt(color.slice(1 + 2 * c, 3 + 2 * c), 16);
  return `rgb(${[0, 1, 2].map((c) => Math.round(channel(HEAT[i], c) + (k - i) * (channel(HEAT[i + 1], c) - channel(HEAT[i], c)))).join(" ")})`;
}

/** A square matrix over the offsets of a grid; `text` says what a cell holds. */
function heatMap({ title, caption, label, axis, values }, color, text) {
  const size = 20, pad = 38, side = axis.length * size;
  const svg = element("svg", { viewBox: `0 0 ${side + pad + 4} ${side + pad + 4}`, role: "img", "aria-label": label });
  const at = (index) => pad + index * size;
  values.forEach((line, i) => line.forEach((value, j) => {
    if (value === null) return;
    svg.append(element("rect", { x: at(j), y: at(i), width: size - 1, height: size - 1, ...color(value) }, element("title", {}, `dy ${axis[i]}, dx ${axis[j]} px: ${text(i, j)}`)));
  }));
  for (const index of new Set([0, (axis.length - 1) / 2, axis.length - 1])) {
    svg.append(element("text", { x: pad - 5, y: at(index) + size / 2 + 4, "text-anchor": "end" }, axis[index]), element("text", { x: at(index) + size / 2, y: pad - 9, "text-anchor": "middle" }, axis[index]));
  }
  return element("figure", {}, element("figcaption", {}, element("b", {}, title), ` ${caption}`), svg);
}

function accuracyMaps({ all: maps, range }) {
  const values = maps.flatMap((map) => map.values.flat()).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const color = (value) => ({ fill: heat(high > low ? (value - low) / (high - low) : 1) });
  return element("section", {}, element("h3", {}, "Accuracy at each offset"),
    element("div", { class: "maps" }, ...maps.map((map) => heatMap(map, color, (i, j) => map.texts[i][j]))),
    scaleBar((t) => ({ fill: heat(t) }), `${range[0]}%`, `${range[1]}% accuracy; rows are dy, columns dx, in pixels`));
}

function scaleBar(color, from, to) {
  const bar = element("svg", { viewBox: "0 0 200 12", preserveAspectRatio: "none", "shape-rendering": "crispEdges", "aria-hidden": "true" });
  for (let i = 0; i < 100; i += 1) bar.append(element("rect", { x: 2 * i, y: 0, width: 2, height: 12, ...color(i / 99) }));
  return element("div", { class: "scale note" }, from, bar, to);
}

const images = (n) => `${n} image${n === 1 ? "" : "s"}`;

/** Few or many, on the panel's own ground: no image is no ink. */
const ink = (t) => ({ class: "ink", "fill-opacity": t > 0 ? 0.15 + 0.85 * t : 0.04 });

function brokenMaps(broken) {
  const most = Math.max(...broken.flatMap((map) => map.values.flat()));
  return element("section", {}, element("h3", {}, "Where images broke"),
    element("p", { class: "note" }, "How many images were right until this offset; images whose clean prediction is wrong are left out."),
    element("div", { class: "maps" }, ...broken.map((map) => heatMap(map, (value) => ink(most && Math.sqrt(value / most)), (i, j) => images(map.values[i][j])))),
    most ? scaleBar((t) => ink(Math.sqrt(t)), "0", `${images(most)}; rows are dy, columns dx, in pixels`) : null);
}

function classTable({ heads, rows: classes, more }) {
  return element("section", {}, element("h3", {}, "Broken images by class"), element("div", { class: "scroll" }, element("table", { class: "classes" },
    element("thead", {}, element("tr", {}, ...heads.map((head, i) => element("th", { scope: "col", class: i ? null : "name" }, head)))),
    element("tbody", {}, ...classes.map(([name, size, cells]) => element("tr", {}, element("th", { scope: "row", class: "name" }, name), element("td", {}, size),
      ...cells.map(([text, share, title]) => element("td", { title, style: `--share: ${share}` }, text))))))),
    more ? element("p", { class: "note" }, `The ${classes.length} classes that lose the most; ${more} more.`) : null);
}

function exampleLists(examples) {
  return element("details", {}, element("summary", {}, "Images that the smallest shifts broke"), element("div", { class: "facts" },
    ...examples.map(([title, list]) => element("section", {}, element("h3", {}, title), element("ul", {}, ...list.map(([key, label, offset, answer]) => element("li", {}, element("b", {}, key), ` class ${label}${answer ? `, seen as ${answer}` : ""} at ${offset}`)))))));
}

function histogram({ title, caption, label, edges, zero, counts }) {
  const W = 420, H = 150, left = 8, bottom = 22;
  const step = (W - 2 * left) / counts.length, most = Math.max(...counts);
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  counts.forEach((n, i) => {
    const height = (n / most) * (H - bottom - 6);
    svg.append(element("rect", { class: i < zero ? "bar wrong" : "bar", x: left + i * step, y: H - bottom - height, width: Math.max(0.5, step - 1), height }, element("title", {}, `${edges[i]} to ${edges[i + 1]}: ${images(n)}`)));
  });
  svg.append(element("line", { class: "axis", x1: left, x2: W - left, y1: H - bottom, y2: H - bottom }));
  for (const index of new Set([0, zero, counts.length])) svg.append(element("text", { x: left + index * step, y: H - 6, "text-anchor": index === 0 ? "start" : index === counts.length ? "end" : "middle" }, edges[index]));
  return element("figure", {}, element("figcaption", {}, element("b", {}, title), ` ${caption}`), svg);
}

function histograms(all) {
  return element("section", {}, element("h3", {}, "How near to wrong"),
    element("p", { class: "note" }, "Images by the logit of their class minus the highest other one; below 0 the answer is wrong."),
    element("div", { class: "maps wide" }, ...all.map(histogram)));
}
