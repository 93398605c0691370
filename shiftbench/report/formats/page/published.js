// Figures of papers: another look than measured ones, and where each comes from.
function paperTable({ source, heads, rows: models }) {
  return element("section", {}, element("h3", {}, source), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...["model", ...heads].map((head, i) => element("th", { scope: "col", class: i ? null : "name" }, head)))),
    element("tbody", {}, ...models.map(([model, ...values]) => element("tr", {}, element("th", { scope: "row", class: "name" }, model), ...values.map((value) => element("td", {}, value || "–"))))))));
}

function paper({ data, tables }) {
  return element("details", { class: "paper", open: data === state.group.data },
    element("summary", {}, element("b", {}, data), `, ${tables.length} published table${tables.length === 1 ? "" : "s"}`),
    element("div", { class: "sources" }, ...tables.map(paperTable)));
}

function drawPublished() {
  const first = (one) => (one.data === state.group.data ? 0 : 1);
  document.getElementById("published").hidden = !page.published.length;
  document.getElementById("papers").replaceChildren(...[...page.published].sort((a, b) => first(a) - first(b)).map(paper));
}
