// One model in detail: every score with its interval, heat maps, and where the numbers come from.
const dialog = document.getElementById("detail");
// Ten samples of cividis, which reads the same with and without colour vision.
const HEAT = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

function heat(t) {
  const k = Math.min(HEAT.length - 1.000001, Math.max(0, t * (HEAT.length - 1)));
  const i = Math.floor(k);
  const channel = (colour, c) => parseInt(colour.slice(1 + 2 * c, 3 + 2 * c), 16);
  return `rgb(${[0, 1, 2].map((c) => Math.round(channel(HEAT[i], c) + (k - i) * (channel(HEAT[i + 1], c) - channel(HEAT[i], c)))).join(" ")})`;
}

function heatMap(attack, { n, cells }, range) {
  const axis = [...new Set(cells.map((c) => c[0]))].sort((a, b) => a - b);
  const size = 20, pad = 26, side = axis.length * size;
  const position = new Map(axis.map((value, index) => [value, pad + index * size]));
  const worst = cells.reduce((a, b) => (b[2] < a[2] ? b : a));
  const number = (v) => String(Number(v.toFixed(2)));
  const svg = element("svg", { viewBox: `0 0 ${side + pad + 4} ${side + pad + 4}`, role: "img", "aria-label": `Accuracy at each offset for ${attack}, n = ${count(n)}: lowest ${percent(worst[2])}% at dy ${number(worst[0])}, dx ${number(worst[1])} pixels` });
  for (const [dy, dx, value, low, high] of cells) {
    svg.append(element("rect", { x: position.get(dx), y: position.get(dy), width: size - 1, height: size - 1, fill: heat((value - range.low) / (range.high - range.low || 1)) },
      element("title", {}, `dy ${number(dy)}, dx ${number(dx)} px: ${percent(value)} [${percent(low)}, ${percent(high)}], n=${count(n)}`)));
  }
  for (const value of [axis[0], 0, axis.at(-1)]) {
    svg.append(element("text", { x: pad - 5, y: position.get(value) + size / 2 + 4, "text-anchor": "end" }, number(value)), element("text", { x: position.get(value) + size / 2, y: pad - 8, "text-anchor": "middle" }, number(value)));
  }
  return element("figure", {}, element("figcaption", {}, element("b", {}, attack), ` lowest ${percent(worst[2])}, n=${count(n)}`), svg);
}

function heatMaps(record) {
  const maps = Object.entries(record.scores.offsets);
  if (!maps.length) return element("p", { class: "note" }, "No heat map: this run stopped looking at an image once it was wrong. Run with --full-grid to evaluate every offset.");
  const values = maps.flatMap(([, map]) => map.cells.map((c) => c[2]));
  const range = { low: Math.min(...values), high: Math.max(...values) };
  const bar = element("svg", { viewBox: "0 0 200 12", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let i = 0; i < 100; i += 1) bar.append(element("rect", { x: 2 * i, y: 0, width: 2.2, height: 12, fill: heat(i / 99) }));
  return element("div", {}, element("div", { class: "maps" }, ...maps.map(([attack, map]) => heatMap(attack, map, range))),
    element("div", { class: "scale note" }, `${percent(range.low)}%`, bar, `${percent(range.high)}% accuracy; rows are dy, columns dx, in pixels`));
}

function scoreLine(name, score, bound) {
  return element("tr", {}, element("th", { scope: "row", class: "name" }, name), element("td", {}, `${bound ? "≤ " : ""}${percent(score.value)}`), element("td", {}, interval(score)), element("td", {}, count(score.n)));
}

function scoreTable(record) {
  const { accuracy, consistency, mean_change: change } = record.scores;
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...["", "percent", "95% interval", "n"].map((t) => element("th", { scope: "col" }, t)))),
    element("tbody", {}, scoreLine("accuracy, unshifted", accuracy, false),
      ...Object.entries(consistency).map(([kind, score]) => scoreLine(`consistency, ${kind}`, score, false)),
      ...Object.entries(change).map(([kind, value]) => element("tr", {}, element("th", { scope: "row", class: "name" }, `mean change of probability, ${kind}`), element("td", {}, percent(value)), element("td"), element("td"))))));
}

function curveTable(record) {
  const curves = page.attacks.map((attack) => [attack, curve(record, attack.name)]).filter(([, points]) => points.length);
  if (!curves.length) return null;
  const most = Math.max(...curves.map(([, points]) => points.length));
  return element("section", {}, element("h3", {}, "Adversarial accuracy by max shift, in steps"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, element("th"), ...Array.from({ length: most }, (_, s) => element("th", { scope: "col" }, String(s))))),
    element("tbody", {}, ...curves.map(([attack, points]) => element("tr", {}, element("th", { scope: "row", class: "name" }, attack.name, element("small", { class: "note" }, ` step ${attack.ticks[1] ?? "–"} px, n=${count(points[0].n)}`)),
      ...points.map((p) => element("td", {}, `${record.upper_bound ? "≤ " : ""}${percent(p.value)}`, element("small", {}, interval(p))))))))));
}

const plain = (value) => (Array.isArray(value) ? value.map(plain).join(", ") : value !== null && typeof value === "object" ? Object.entries(value).map(([k, v]) => `${k} ${plain(v)}`).join(", ") : String(value ?? "–"));

function facts(name, object) {
  return element("section", {}, element("h3", {}, name), element("dl", {}, ...Object.entries(object).flatMap(([key, value]) => [element("dt", {}, key.replaceAll("_", " ")), element("dd", {}, plain(value))])));
}

function openDetail(record) {
  const { name, ...data } = record.data;
  dialog.replaceChildren(element("div", { class: "sheet" },
    element("div", { class: "top" }, element("div", {}, element("h2", { id: "detail-title" }, ...breakable(record.model.name)), element("p", { class: "note" }, `${name}, ${data.split}, ${count(data.images)} images, ${record.created.slice(0, 10)}`)),
      element("button", { type: "button", class: "quiet", onclick: () => dialog.close(), autofocus: true }, "Close")),
    record.upper_bound ? element("p", { class: "note" }, `Searched with ${record.mode}: adversarial scores are upper bounds.`) : null,
    scoreTable(record), curveTable(record),
    element("section", {}, element("h3", {}, "Accuracy at each offset"), heatMaps(record)),
    element("div", { class: "facts" }, facts("Model", record.model), facts("Data", record.data), facts("Settings", record.settings),
      facts("Environment", { ...record.environment, seconds: record.seconds, forward_passes: record.forward_passes, created: record.created, schema: record.schema }))));
  dialog.showModal();
}

// A click on the backdrop lands on the dialog itself; inside, it lands on the sheet.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
