// What is shown, and small helpers to build it. Text from records only ever becomes text nodes.
// Cells arrive as text with their rank: nothing is formatted, rounded or judged here.
const page = JSON.parse(document.getElementById("records").textContent);
const SVG = "http://www.w3.org/2000/svg";
const COLORS = 7;
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const MARKS = ["circle", "square", "triangle", "diamond", "cross"];
const DRAWN_AT_FIRST = 8; // more curves than this hide each other

const state = {
  group: page.groups[0], // comparable records
  filter: "",
  column: page.groups[0].sort,
  descending: page.groups[0].descending,
  stop: page.groups[0].stop, // max shift, in steps
  drawn: new Set(), // rows with a curve
  all: false, // whether the table has every column
};

for (const group of page.groups) {
  // Looks are dealt out by name within a group, so that the few models compared differ the most.
  const names = [...new Set(group.rows.map((row) => row.model))].sort();
  group.rows.forEach((row, index) => {
    const k = names.indexOf(row.model);
    row.index = index;
    row.look = { color: `var(--s${k % COLORS})`, dash: DASHES[k % DASHES.length], mark: MARKS[k % MARKS.length] };
  });
}

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

const modelColumn = (group) => group.columns[0];
/** The columns of the table: the first few, and the one it is sorted by, or all of them. */
const tableColumns = (group) => group.columns.filter((column) => state.all || column.front || column.name === state.column);
const columnNamed = (name) => state.group.columns.find((column) => column.name === name);
const curveColumns = (group) => group.columns.filter((column) => column.curve);

/** A cell as Python wrote it, with names for its parts; null where nothing was measured. */
function cellAt(column, row, radius) {
  const content = column.cells[column.curve ? radius : 0]?.[row.index];
  if (!content) return null;
  const [text, rank, interval = "", n = "", flags = ""] = content;
  return { text, rank, interval, n, best: flags.includes("b"), ranked: !flags.includes("u"), ownN: flags.includes("n") };
}

/** The same at the max shift chosen; where the page began, each column has its own. */
const cell = (column, row) => cellAt(column, row, state.stop === state.group.stop ? column.radius : state.stop);

/** The rows that pass the filter, in order: ranked ones, then those that cannot be ranked, then empty ones. */
function rows() {
  const wanted = state.filter.trim().toLowerCase().split(/\s+/);
  const shown = state.group.rows.filter((row) => wanted.every((word) => row.model.toLowerCase().includes(word)));
  const column = columnNamed(state.column);
  const sign = state.descending ? -1 : 1;
  const part = (content) => (content === null ? 2 : content.ranked ? 0 : 1);
  const keyed = shown.map((row) => ({ row, content: cell(column, row) }));
  keyed.sort((a, b) => part(a.content) - part(b.content) || sign * ((a.content?.rank ?? 0) - (b.content?.rank ?? 0)) || a.row.place - b.row.place);
  return keyed.map(({ row }) => row);
}

/** The permanent link of a model: its data by name, unless several groups share that. */
function linkOf(group, row) {
  const shared = page.groups.filter((other) => other.data === group.data).length > 1;
  return `#${new URLSearchParams({ model: row.model, data: shared ? group.label : group.data })}`;
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

function swatch(row) {
  const { color, dash, mark } = row.look;
  return element("svg", { class: "swatch", width: 34, height: 12, viewBox: "0 0 34 12", "aria-hidden": "true" },
    element("path", { d: "M1,6H33", class: "curve", stroke: color, "stroke-dasharray": dash }),
    element("path", { d: markPath(mark, 17, 6, 3.5), class: "mark", fill: color }));
}
