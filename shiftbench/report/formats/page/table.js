// The table: sorted by its headers, filtered by the tools above it.
const table = document.getElementById("table");
const MANY = 12; // rows from which the table scrolls by itself, so that the curves stay in sight
const CROWD = 24; // rows from which intervals are left to the pointer
const FIRST_CARDS = 8; // on a phone, where each row is a card; the others on request
const phone = matchMedia("(max-width: 720px)");
let allCards = false;

function sortBy(column) {
  state.descending = column.name === state.column ? !state.descending : !column.ascending;
  state.column = column.name;
  update();
  table.querySelector(`thead [data-column="${CSS.escape(column.name)}"] button`)?.focus();
}

function header(columns) {
  const groups = [];
  for (const column of columns) {
    if (groups.length && column.group && groups.at(-1).name === column.group) groups.at(-1).width += 1;
    else groups.push({ name: column.group, about: column.about, width: 1 });
  }
  return [
    element("tr", {}, ...groups.map((g) => (g.name ? element("th", { class: "group", colspan: g.width, scope: "colgroup", title: g.about }, element("span", {}, g.name)) : element("td", { class: "group" })))),
    element("tr", {}, ...columns.map((column) => element("th", {
      scope: "col", "data-column": column.name, class: column === columns[0] ? "name" : null, title: column.curve?.about || (column.group ? null : column.about) || null,
      "aria-sort": column.name === state.column ? (state.descending ? "descending" : "ascending") : null,
    }, element("button", { type: "button", onclick: () => sortBy(column), "aria-label": `Sort by ${column.title}` }, column.short)))),
  ];
}

function nameCell(row) {
  const drawn = state.drawn.has(row);
  const toggle = (event) => {
    state.drawn[event.target.checked ? "add" : "delete"](row);
    event.target.closest(".name").classList.toggle("off", !event.target.checked);
    drawCharts();
  };
  return element("th", { class: drawn ? "name" : "name off", scope: "row" }, element("div", { class: "pick" },
    element("input", { type: "checkbox", checked: drawn, onchange: toggle, "aria-label": `Draw the curves of ${row.model}` }),
    swatch(row),
    element("a", { class: "link", href: linkOf(state.group, row), title: row.model }, ...breakable(row.model)),
    row.verified ? element("span", { class: "tag good", title: `Verified: ${row.verified}` }, "verified") : null,
    row.mode ? element("span", { class: "tag", title: "A search sampled its grid: scores with ≤ are upper bounds." }, row.mode) : null));
}

function valueCell(column, row) {
  const content = cell(column, row);
  const label = { "data-label": column.title };
  if (content === null) return element("td", { class: "none", ...label }, "–");
  if (!content.interval) return element("td", label, content.text);
  return element("td", { ...label, title: `${content.interval}, n = ${content.n}` },
    element("span", { class: content.best ? "best" : content.ranked ? null : "unranked" }, content.text),
    element("small", { class: "interval" }, content.interval),
    content.ownN ? element("small", {}, `n=${content.n}`) : null);
}

function drawTable() {
  const { group } = state;
  const all = rows();
  const shown = phone.matches && !allCards ? all.slice(0, FIRST_CARDS) : all;
  const more = document.getElementById("more");
  more.hidden = shown.length === all.length;
  more.textContent = `Show all ${all.length} models`;
  document.getElementById("models").classList.toggle("many", group.rows.length > MANY);
  table.classList.toggle("plain", !document.getElementById("intervals").checked);
  const columns = tableColumns(group);
  table.tHead.replaceChildren(...header(columns));
  table.tBodies[0].replaceChildren(...shown.map((row) => element("tr", { onpointerenter: () => highlight(row), onpointerleave: () => highlight(null), onfocusin: () => highlight(row), onfocusout: () => highlight(null) },
    nameCell(row), ...columns.slice(1).map((column) => valueCell(column, row)))));
  document.getElementById("count").textContent = `${all.length === group.rows.length ? "" : `${all.length} of `}${group.rows.length} on ${group.label}`;
  document.getElementById("notes").textContent = group.notes[state.stop];
}

document.getElementById("more").addEventListener("click", () => {
  allCards = true;
  drawTable();
});
phone.addEventListener("change", () => {
  drawTable();
  drawOverview();
});
