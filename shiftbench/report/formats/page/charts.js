// Curves of adversarial accuracy: one small chart per attack, all on one scale.
const W = 360, H = 232, LEFT = 38, RIGHT = 12, TOP = 10, BOTTOM = 38;
const tip = document.getElementById("tip");

function drawnRows() {
  return rows().filter((record) => state.drawn.has(record.index));
}

function curve(record, attack) {
  return Object.entries(record.scores.adversarial[attack] ?? {}).map(([s, score]) => ({ s: Number(s), ...score })).sort((a, b) => a.s - b.s);
}

/** One scale for all charts, so that attacks can be compared by eye. */
function scaleOf(records, attacks) {
  const points = attacks.flatMap((a) => records.flatMap((r) => curve(r, a.name)));
  if (!points.length) return { low: 0, high: 1, step: 0.2 };
  const low = Math.min(...points.map((p) => p.low));
  const high = Math.max(...points.map((p) => p.high));
  const step = high - low > 0.5 ? 0.2 : high - low > 0.2 ? 0.1 : high - low > 0.08 ? 0.05 : 0.02;
  return { low: Math.floor(low / step + 1e-9) * step, high: Math.min(1, Math.ceil(high / step - 1e-9) * step), step };
}

function showTip(attack, records, s, at) {
  const lines = records.map((record) => ({ record, score: record.scores.adversarial[attack.name]?.[s] })).filter((l) => l.score).sort((a, b) => b.score.value - a.score.value);
  if (!lines.length) return;
  tip.replaceChildren(
    element("b", {}, `${attack.name}, up to ${attack.ticks[s]} px`),
    element("table", {}, element("tbody", {}, ...lines.map(({ record, score }) => element("tr", {},
      element("td", {}, swatch(record)),
      element("td", { class: "name" }, ...breakable(record.model.name)),
      element("td", {}, `${record.upper_bound ? "≤ " : ""}${percent(score.value)}`),
      element("td", {}, interval(score)),
      element("td", {}, `n=${count(score.n)}`))))));
  tip.hidden = false;
  const room = document.documentElement.clientWidth;
  const x = Math.min(Math.max(at.x + 14, 8), Math.max(8, room - tip.offsetWidth - 8));
  tip.style.left = `${x + scrollX}px`;
  tip.style.top = `${at.y + 18 + scrollY}px`;
}

function chart(attack, records, scale) {
  const last = attack.ticks.length - 1;
  const x = (s) => LEFT + (last ? s / last : 0.5) * (W - LEFT - RIGHT);
  const y = (v) => TOP + (1 - (v - scale.low) / (scale.high - scale.low)) * (H - TOP - BOTTOM);
  const here = Math.min(state.s, last);
  const svg = element("svg", {
    viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0,
    "aria-label": `${attack.name}: ${records.map((r) => [r, r.scores.adversarial[attack.name]?.[here]]).filter(([, p]) => p).map(([r, p]) => `${r.model.name} ${percent(p.value)}%`).join(", ")} up to ${attack.ticks[here]} pixels`,
  });
  for (let v = scale.low; v <= scale.high + 1e-9; v += scale.step) {
    svg.append(element("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), element("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, (100 * v).toFixed(0)));
  }
  attack.ticks.forEach((tick, s) => svg.append(element("text", { x: x(s), y: H - BOTTOM + 17, "text-anchor": "middle" }, tick)));
  svg.append(element("text", { x: (LEFT + W - RIGHT) / 2, y: H - 5, "text-anchor": "middle" }, "max shift (px)"));
  const cursor = element("line", { class: "cursor", x1: x(here), x2: x(here), y1: TOP, y2: H - BOTTOM });
  svg.append(cursor);
  for (const record of records) {
    const points = curve(record, attack.name);
    if (!points.length) continue;
    const { colour, dash, mark } = record.look;
    const path = (list, value) => list.map((p) => `${x(p.s).toFixed(1)},${y(p[value]).toFixed(1)}`).join("L");
    svg.append(element("g", { class: "series", "data-index": record.index },
      element("path", { class: "band", fill: colour, d: `M${path(points, "high")}L${path([...points].reverse(), "low")}z` }),
      element("path", { class: "curve", stroke: colour, "stroke-dasharray": dash, d: `M${path(points, "value")}` }),
      ...points.map((p) => element("path", { class: "mark", fill: colour, d: markPath(mark, x(p.s), y(p.value), 3.6) }))));
  }
  const read = (s, at) => {
    cursor.setAttribute("x1", x(s));
    cursor.setAttribute("x2", x(s));
    showTip(attack, records, s, at);
  };
  const leave = () => {
    tip.hidden = true;
    cursor.setAttribute("x1", x(here));
    cursor.setAttribute("x2", x(here));
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const u = ((event.clientX - box.left) / box.width) * W;
    return Math.min(last, Math.max(0, Math.round(((u - LEFT) / (W - LEFT - RIGHT)) * last)));
  };
  const keyed = (s) => {
    const box = svg.getBoundingClientRect();
    read(s, { x: box.left + (x(s) / W) * box.width, y: box.top + box.height / 3 });
  };
  let focusAt = here;
  svg.addEventListener("pointermove", (event) => read(nearest(event), { x: event.clientX, y: event.clientY }));
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") leave();
    if (!move) return;
    event.preventDefault();
    if (!tip.hidden) focusAt = Math.min(last, Math.max(0, focusAt + move));
    keyed(focusAt);
  });
  return element("figure", { class: "chart panel", "data-attack": attack.name }, element("figcaption", {}, element("b", {}, attack.name), element("span", { class: "note" }, attack.summary)), svg);
}

function drawCharts() {
  const records = drawnRows();
  const attacks = page.attacks.filter((attack) => records.some((r) => r.scores.adversarial[attack.name]));
  const scale = scaleOf(records, attacks);
  tip.hidden = true;
  document.getElementById("charts").replaceChildren(...attacks.map((attack) => chart(attack, records, scale)));
  document.getElementById("curves-section").hidden = !page.attacks.length;
}

/** Makes one model's curves stand out while its row is pointed at. */
function highlight(index) {
  for (const series of document.querySelectorAll(".series")) {
    series.classList.toggle("faded", index !== null && state.drawn.has(index) && Number(series.dataset.index) !== index);
  }
}
