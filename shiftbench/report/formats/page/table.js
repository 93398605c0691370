// The table: sorted by its headers, filtered by the tools above it.
const table = document.getElementById("table");

function shownColumns() {
  const mine = page.records.filter((r) => r.data.name === state.data);
  // Whether a column is there must not depend on the max shift chosen.
  const has = (r, column) => {
    const attack = column.startsWith("adversarial_") && column.slice("adversarial_".length);
    return attack ? attack in r.scores.adversarial : cell(r, column) !== null;
  };
  const place = (c) => ["model", "top1"].indexOf(c) + 1 || (c.startsWith("consistency_") ? 3 : c.startsWith("adversarial_") ? 4 : 5);
  const same = new Set(mine.map((r) => r.data.images)).size === 1; // then the heading says it once
  return page.columns.filter((c) => mine.some((r) => has(r, c)) && !(same && c === "images")).sort((a, b) => place(a) - place(b));
}

const family = (column) => (/^(consistency|adversarial)_/.test(column) ? column.split("_")[0] : "");
const short = (column) => (family(column) ? column.slice(family(column).length + 1).replaceAll("_", " ") : title(column));

function sortBy(column) {
  state.descending = column === state.column ? !state.descending : DESCENDING_FIRST.test(column);
  state.column = column;
  update();
  table.querySelector(`thead [data-column="${CSS.escape(column)}"] button`)?.focus();
}

function header(columns) {
  const groups = [];
  for (const column of columns) {
    const name = family(column);
    if (groups.length && name && groups.at(-1).name === name) groups.at(-1).width += 1;
    else groups.push({ name, width: 1 });
  }
  const names = { consistency: "consistency, random shift", adversarial: "adversarial accuracy, worst shift" };
  return [
    element("tr", {}, ...groups.map((g) => (g.name ? element("th", { class: "group", colspan: g.width, scope: "colgroup" }, element("span", {}, names[g.name])) : element("td", { class: "group" })))),
    element("tr", {}, ...columns.map((column) => element("th", {
      scope: "col", "data-column": column, class: column === "model" ? "name" : null,
      "aria-sort": column === state.column ? (state.descending ? "descending" : "ascending") : null,
    }, element("button", { type: "button", onclick: () => sortBy(column), "aria-label": `Sort by ${title(column)}` }, short(column))))),
  ];
}

function nameCell(record) {
  const drawn = state.drawn.has(record.index);
  const toggle = (event) => {
    state.drawn[event.target.checked ? "add" : "delete"](record.index);
    event.target.closest(".name").classList.toggle("off", !event.target.checked);
    drawCharts();
  };
  return element("th", { class: drawn ? "name" : "name off", scope: "row" }, element("div", { class: "pick" },
    element("input", { type: "checkbox", checked: drawn, onchange: toggle, "aria-label": `Draw the curves of ${record.model.name}` }),
    swatch(record),
    element("div", {},
      element("button", { type: "button", class: "link", onclick: () => openDetail(record) }, ...breakable(record.model.name)),
      record.upper_bound ? element("span", { class: "tag", title: "The searches sampled their grids: adversarial scores are upper bounds." }, record.mode) : null)));
}

function valueCell(record, column, best) {
  const value = cell(record, column);
  const label = { "data-label": title(column) };
  if (value === null) return element("td", { class: "none", ...label }, "–");
  if (!isScore(value)) return element("td", label, column === "seconds" ? count(Math.round(value)) : column === "images" ? count(value) : compact(value));
  const bound = isBound(record, column);
  const isBest = !bound && percent(value.value) === best;
  const own = value.n !== record.data.images ? element("small", {}, `n=${count(value.n)}`) : null;
  return element("td", { ...label, title: `${interval(value)}, n = ${count(value.n)}` }, element("span", { class: isBest ? "best" : null }, `${bound ? "≤ " : ""}${percent(value.value)}`), element("small", {}, interval(value)), own);
}

/** The highest score of a column; upper bounds do not compete, and where all are equal none is best. */
function bestOf(records, column) {
  const exact = records.filter((r) => !isBound(r, column)).map((r) => cell(r, column)).filter(isScore).map((score) => score.value);
  return new Set(exact.map(percent)).size > 1 ? percent(Math.max(...exact)) : null;
}

function drawTable() {
  const columns = shownColumns();
  const shown = rows();
  const all = page.records.filter((r) => r.data.name === state.data);
  table.tHead.replaceChildren(...header(columns));
  table.tBodies[0].replaceChildren(...shown.map((record) => element("tr", { onpointerenter: () => highlight(record.index), onpointerleave: () => highlight(null), onfocusin: () => highlight(record.index), onfocusout: () => highlight(null) },
    nameCell(record), ...columns.slice(1).map((column) => valueCell(record, column, bestOf(all, column))))));
  const images = new Set(all.map((r) => r.data.images));
  const on = `${state.data}${images.size === 1 ? `, ${count([...images][0])} images` : ""}`;
  document.getElementById("count").textContent = `${shown.length === all.length ? "" : `${count(shown.length)} of `}${count(all.length)} on ${on}`;
  const reach = page.attacks.filter((a) => columns.includes(`adversarial_${a.name}`)).map((a) => `${a.name} ${a.ticks[Math.min(state.s, a.ticks.length - 1)]} px`);
  document.getElementById("notes").textContent = ["Percent, with Wilson 95% intervals; bold: best of its column.", reach.length ? `Adversarial: right at every shift up to ${reach.join(", ")}.` : "", all.some((r) => r.upper_bound) ? "≤: an upper bound, from a search that sampled its grid." : ""].join(" ").trim();
}
