// The board in one picture: a dot per model, clean accuracy against what is left under shifts.
function overviewScale(values, size, from) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const step = lines(Math.max(high - low, 1));
  const [first, last] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
  const ticks = [];
  for (let v = first; v <= last + 1e-9 * step; v += step) ticks.push(v);
  return { first, last, ticks, at: (v) => from + ((v - first) / (last - first)) * size };
}

function drawOverview() {
  const section = document.getElementById("overview");
  const { overview } = state.group;
  section.hidden = overview === null || state.group.rows.length > CROWD;
  if (section.hidden) return;
  document.getElementById("overview-note").textContent = overview.note;
  const [W, right] = phone.matches ? [440, 130] : [980, 170];
  const H = 340, left = 46, top = 12, bottom = 40;
  const x = overviewScale(overview.dots.map((dot) => dot.x), W - left - right, left);
  const y = overviewScale(overview.dots.flatMap((dot) => [dot.low, dot.high]), -(H - top - bottom), H - bottom);
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": overview.label });
  for (const v of y.ticks) svg.append(element("line", { class: "axis", x1: left, x2: W - right, y1: y.at(v), y2: y.at(v) }), element("text", { x: left - 7, y: y.at(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(4)))));
  for (const v of x.ticks) svg.append(element("line", { class: "axis", y1: top, y2: H - bottom, x1: x.at(v), x2: x.at(v) }), element("text", { x: x.at(v), y: H - bottom + 17, "text-anchor": "middle" }, String(Number(v.toPrecision(4)))));
  svg.append(element("text", { x: left, y: H - 5 }, overview.x), element("text", { x: left + 6, y: top + 12 }, overview.y));
  const [from, to] = [Math.max(x.first, y.first), Math.min(x.last, y.last)];
  if (from < to) {
    const middle = (from + to) / 2;
    svg.append(element("path", { class: "cursor", d: `M${x.at(from)},${y.at(from)}L${x.at(to)},${y.at(to)}` }),
      element("text", { x: x.at(middle) - 4, y: y.at(middle) - 4, "text-anchor": "end" }, "nothing lost"));
  }
  // Each name stands on the first side of its dot where it covers no other name or dot.
  const boxes = overview.dots.map((dot) => ({ from: x.at(dot.x) - 7, to: x.at(dot.x) + 7, y: y.at(dot.y) }));
  for (const dot of [...overview.dots].sort((a, b) => b.y - a.y)) {
    const [cx, cy, color] = [x.at(dot.x), y.at(dot.y), `var(--s${dot.family % COLORS})`];
    const width = 7.5 * dot.name.length;
    const sides = [[1, 0], [-1, 0], [1, 13], [-1, -13], [1, -13], [-1, 13], [1, 26], [-1, -26]].map(([side, down]) => (
      { side, y: cy + down, from: side > 0 ? cx + 10 : cx - 10 - width, to: side > 0 ? cx + 10 + width : cx - 10 }));
    const free = (box) => boxes.every((other) => Math.abs(box.y - other.y) >= 12 || box.to < other.from || other.to < box.from);
    const name = sides.find(free) ?? sides.at(-1);
    boxes.push(name);
    const row = state.group.rows[dot.row];
    svg.append(element("g", { class: "dot", "data-index": dot.row, onclick: () => { location.hash = linkOf(state.group, row); } },
      element("title", {}, dot.text),
      element("path", { class: "curve", stroke: color, opacity: 0.3, d: `M${cx},${y.at(dot.low)}V${y.at(dot.high)}` }),
      element("path", { class: "mark", fill: color, d: markPath(MARKS[dot.family % MARKS.length], cx, cy, 6) }),
      element("text", { x: cx + 11 * name.side, y: name.y + 4, "text-anchor": name.side > 0 ? "start" : "end" }, dot.name)));
  }
  document.getElementById("overview-figure").replaceChildren(svg);
}
