// What is shown, and small helpers to build it. Text from records only ever becomes text nodes.
const page = JSON.parse(document.getElementById("records").textContent);
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const MARKS = ["circle", "square", "triangle", "diamond", "cross"];
const DRAWN_AT_FIRST = 8; // more curves than this hide each other
const DESCENDING_FIRST = /^(top1|consistency_|adversarial_|images)/;

const state = {
  data: "", // data set
  filter: "",
  column: page.sort,
  descending: DESCENDING_FIRST.test(page.sort),
  s: page.radius, // max shift, in steps
  drawn: new Set(), // indices of records with a curve
};

page.records.forEach((record, index) => {
  record.index = index;
});
// Looks are dealt out by name within a data set, so that the few models compared differ the most.
page.records.forEach((record) => {
  const names = [...new Set(page.records.filter((r) => r.data.name === record.data.name).map((r) => r.model.name))].sort();
  const k = names.indexOf(record.model.name);
  record.look = { colour: `var(--s${k % COLOURS})`, dash: DASHES[k % DASHES.length], mark: MARKS[k % MARKS.length] };
});

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "rect", "g", "text", "title"].includes(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A model's name that may break after its separators, and nowhere else unless it must. */
const breakable = (name) => name.split(/(?<=[_./:,-])/).flatMap((part) => [part, element("wbr")]);

// Exact ties go to the even digit, as in every other output: x.x5 is one only at .25 and .75.
const percent = (x) => ((100 * x) % 1 === 0.25 ? 100 * x - 0.05 : 100 * x).toFixed(1);
const interval = (score) => `[${percent(score.low)}, ${percent(score.high)}]`;
const count = (n) => n.toLocaleString("en-US");
const title = (column) => ({ model: "model", param_count: "params", img_size: "px", forward_passes: "passes" })[column] ?? column.replaceAll("_", " ");

function compact(n) {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (n >= unit) return `${Number((n / unit).toPrecision(3))}${name}`;
  return String(n);
}

/** The cell of a record: a score object, a number, a string, or null. */
function cell(record, column) {
  const [family, ...rest] = column.split("_");
  if (family === "consistency") return record.scores.consistency[rest.join("_")] ?? null;
  if (family === "adversarial") return record.scores.adversarial[rest.join("_")]?.[state.s] ?? null;
  return {
    model: record.model.name,
    images: record.data.images,
    param_count: record.model.parameters,
    img_size: record.model.input_size,
    top1: record.scores.accuracy,
    seconds: record.seconds,
    forward_passes: record.forward_passes,
  }[column] ?? null;
}

const isScore = (value) => value !== null && typeof value === "object";
const rank = (value) => (isScore(value) ? value.value : value);
const isBound = (record, column) => record.upper_bound && column.startsWith("adversarial_");

/** Numbers by size, names by their letters' codes, as in every other output. */
const order = (x, y) => (x > y) - (x < y);

/** The records that pass the data set and the filter, in order; empty cells come last. */
function rows() {
  const wanted = state.filter.trim().toLowerCase().split(/\s+/);
  const shown = page.records.filter((r) => r.data.name === state.data && wanted.every((word) => r.model.name.toLowerCase().includes(word)));
  const sign = state.descending ? -1 : 1;
  return shown.sort((a, b) => {
    const x = rank(cell(a, state.column));
    const y = rank(cell(b, state.column));
    if (x === null || y === null) return (x === null) - (y === null) || a.index - b.index;
    return sign * order(x, y) || order(a.model.name, b.model.name);
  });
}

function markPath(mark, x, y, r) {
  if (mark === "square") return `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (mark === "triangle") return `M${x},${y - 1.2 * r}l${1.2 * r},${2.1 * r}h${-2.4 * r}z`;
  if (mark === "diamond") return `M${x},${y - 1.4 * r}l${1.4 * r},${1.4 * r}l${-1.4 * r},${1.4 * r}l${-1.4 * r},${-1.4 * r}z`;
  if (mark === "cross") {
    const a = r * 0.45;
    return `M${x - a},${y - 1.2 * r}h${2 * a}V${y - a}H${x + 1.2 * r}v${2 * a}H${x + a}V${y + 1.2 * r}h${-2 * a}V${y + a}H${x - 1.2 * r}v${-2 * a}H${x - a}z`;
  }
  return `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`;
}

function swatch(record) {
  const { colour, dash, mark } = record.look;
  return element("svg", { class: "swatch", width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" },
    element("path", { d: "M1,6H33", class: "curve", stroke: colour, "stroke-dasharray": dash }),
    element("path", { d: markPath(mark, 17, 6, 3.5), class: "mark", fill: colour }));
}
