// Curves: one small chart for each score that has a radius; those in percent share one scale.
const LEFT = 38, RIGHT = 12, TOP = 10, BOTTOM = 38;
const tip = document.getElementById("tip");

const drawnRows = () => rows().filter((row) => state.drawn.has(row));
const pointsOf = (column, row) => column.curve.points[row.index].map((p, s) => p && { s, value: p[0], low: p[1], high: p[2] }).filter(Boolean);

/** A round distance between some five lines. */
function lines(span) {
  const power = 10 ** Math.floor(Math.log10(span / 5));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= span / 5 - 1e-9);
}

function scaleOf(columns, shown) {
  const points = columns.flatMap((column) => shown.flatMap((row) => pointsOf(column, row)));
  const low = Math.min(...points.map((p) => p.low));
  const high = Math.max(...points.map((p) => p.high));
  const step = lines(Math.max(high - low, 1e-6));
  const top = Math.ceil(high / step - 1e-9) * step;
  return { low: Math.floor(low / step + 1e-9) * step, high: columns[0].curve.percent ? Math.min(100, top) : top, step };
}

function showTip(column, shown, s, at) {
  const drawn = shown.map((row) => ({ row, value: column.curve.points[row.index][s]?.[0], content: cellAt(column, row, s) })).filter((line) => line.content);
  if (!drawn.length) return;
  drawn.sort((a, b) => b.value - a.value);
  tip.replaceChildren(
    element("b", {}, `${column.short}, up to ${column.curve.ticks[s]} ${column.curve.unit}`),
    element("table", {}, element("tbody", {}, ...drawn.map(({ row, content }) => element("tr", {},
      element("td", {}, swatch(row)),
      element("td", { class: "name" }, ...breakable(row.model)),
      ...[content.text, content.interval, `n=${content.n}`].map((text) => element("td", {}, text)))))));
  tip.hidden = false;
  const room = document.documentElement.clientWidth;
  const x = Math.min(Math.max(at.x + 14, 8), Math.max(8, room - tip.offsetWidth - 8));
  const below = at.y + 18 + tip.offsetHeight < innerHeight || at.y < tip.offsetHeight + 12;
  tip.style.left = `${x + scrollX}px`;
  tip.style.top = `${(below ? at.y + 18 : at.y - tip.offsetHeight - 12) + scrollY}px`;
}

function chart(column, shown, scale, { W, H }) {
  const { ticks, unit, about } = column.curve;
  const last = ticks.length - 1;
  const x = (s) => LEFT + (last ? s / last : 0.5) * (W - LEFT - RIGHT);
  const y = (v) => TOP + (1 - (v - scale.low) / (scale.high - scale.low)) * (H - TOP - BOTTOM);
  const here = Math.min(state.stop, last);
  const said = shown.map((row) => [row.model, cellAt(column, row, here)]).filter(([, content]) => content).map(([model, content]) => `${model} ${content.text}`);
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": `${column.title}: ${said.join(", ")} up to ${ticks[here]} ${unit}` });
  for (let v = scale.low; v <= scale.high + 1e-9 * scale.step; v += scale.step) {
    svg.append(element("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), element("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(4)))));
  }
  const every = Math.ceil(ticks.length / Math.floor((W - LEFT) / 26));
  ticks.forEach((tick, s) => s % every || svg.append(element("text", { x: x(s), y: H - BOTTOM + 17, "text-anchor": "middle" }, tick)));
  svg.append(element("text", { x: (LEFT + W - RIGHT) / 2, y: H - 5, "text-anchor": "middle" }, `max shift (${unit})`));
  const cursor = element("line", { class: "cursor", y1: TOP, y2: H - BOTTOM });
  const point = (s) => ["x1", "x2"].forEach((end) => cursor.setAttribute(end, x(s)));
  point(here);
  svg.append(cursor);
  for (const row of shown) {
    const points = pointsOf(column, row);
    if (!points.length) continue;
    const { color, dash, mark } = row.look;
    const path = (list, value) => list.map((p) => `${x(p.s).toFixed(1)},${y(p[value]).toFixed(1)}`).join("L");
    svg.append(element("g", { class: "series", "data-index": row.index },
      element("path", { class: "band", fill: color, d: `M${path(points, "high")}L${path([...points].reverse(), "low")}z` }),
      element("path", { class: "curve", stroke: color, "stroke-dasharray": dash, d: `M${path(points, "value")}` }),
      ...points.map((p) => element("path", { class: "mark", fill: color, d: markPath(mark, x(p.s), y(p.value), W < 300 ? 2.8 : 3.6) }))));
  }
  readable(svg, { last, here, W, x, point, show: (s, at) => showTip(column, shown, s, at) });
  return element("figure", { class: "chart panel", "data-column": column.name }, element("figcaption", {}, element("b", {}, column.short), element("span", { class: "note", title: about || column.about }, about || column.about)), svg);
}

/** Values of a chart by pointer and by arrow keys. */
function readable(svg, { last, here, W, x, point, show }) {
  const read = (s, at) => {
    point(s);
    show(s, at);
  };
  const leave = () => {
    tip.hidden = true;
    point(here);
  };
  let focusAt = here;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const u = ((event.clientX - box.left) / box.width) * W;
    read(Math.min(last, Math.max(0, Math.round(((u - LEFT) / (W - LEFT - RIGHT)) * last))), { x: event.clientX, y: event.clientY });
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") leave();
    if (!move) return;
    event.preventDefault();
    if (!tip.hidden) focusAt = Math.min(last, Math.max(0, focusAt + move));
    const box = svg.getBoundingClientRect();
    read(focusAt, { x: box.left + (x(focusAt) / W) * box.width, y: box.top + box.height / 3 });
  });
}

function drawCharts() {
  const shown = drawnRows();
  const columns = curveColumns(state.group).filter((column) => shown.some((row) => pointsOf(column, row).length));
  const shares = columns.filter((column) => column.curve.percent);
  const common = shares.length ? scaleOf(shares, shown) : null;
  const place = document.getElementById("charts");
  // Many attacks stand in one row where there is room, so that they are seen below the table.
  const small = columns.length > 3 && innerWidth >= 1100;
  place.style.setProperty("--chart", small ? "210px" : "330px");
  tip.hidden = true;
  place.replaceChildren(...columns.map((column) => chart(column, shown, column.curve.percent ? common : scaleOf([column], shown), small ? { W: 236, H: 172 } : { W: 360, H: 232 })));
  document.getElementById("curves-section").hidden = !curveColumns(state.group).length;
}

/** Makes one model's curves stand out while its row is pointed at. */
function highlight(row) {
  for (const series of document.querySelectorAll(".series")) {
    series.classList.toggle("faded", row !== null && state.drawn.has(row) && Number(series.dataset.index) !== row.index);
  }
}
