// One model in detail: every score with its interval, its images, and where the numbers come from.
const dialog = document.getElementById("detail");

function scoreTable(group, row) {
  const plain = group.columns.slice(1).filter((column) => !column.curve).map((column) => [column, cellAt(column, row, 0)]).filter(([, content]) => content?.interval);
  const scores = [...plain.map(([column, { text, interval, n }]) => [column.title, text, interval, n]), ...row.detail.scores];
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...["", "score", "95% interval", "n"].map((t) => element("th", { scope: "col" }, t)))),
    element("tbody", {}, ...scores.map(([title, ...texts]) => element("tr", {}, element("th", { scope: "row", class: "name" }, title), ...texts.map((text) => element("td", {}, text)))))));
}

function curveTable(group, row) {
  const curves = curveColumns(group).map((column) => [column, column.cells.map((_, s) => cellAt(column, row, s)).filter(Boolean)]).filter(([, cells]) => cells.length);
  if (!curves.length) return null;
  const most = Math.max(...curves.map(([, cells]) => cells.length));
  return element("section", {}, element("h3", {}, "By max shift, in steps"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, element("th"), ...Array.from({ length: most }, (_, s) => element("th", { scope: "col" }, String(s))))),
    element("tbody", {}, ...curves.map(([column, cells]) => element("tr", {}, element("th", { scope: "row", class: "name" }, column.title, element("small", { class: "note" }, `step ${column.curve.ticks[1] ?? "–"} ${column.curve.unit}, n=${cells[0].n}`)),
      ...cells.map((content) => element("td", {}, content.text, element("small", {}, content.interval)))))))));
}

function facts([name, entries]) {
  return element("section", {}, element("h3", {}, name), element("dl", {}, ...entries.flatMap(([key, text]) => [element("dt", {}, key), element("dd", {}, text)])));
}

function imageSections({ broken, classes, examples, histograms: margins }) {
  return [
    broken.length ? brokenMaps(broken) : null,
    classes ? classTable(classes) : null,
    examples.length ? exampleLists(examples) : null,
    margins.length ? histograms(margins) : null,
  ];
}

function openDetail(group, row) {
  const { line, maps, images, facts: sections } = row.detail;
  const hint = curveColumns(group).length ? element("p", { class: "note" }, "No map of accuracy: this run stopped looking at an image once it was wrong. Run with --full-grid to evaluate every offset.") : null;
  dialog.replaceChildren(element("div", { class: "sheet" },
    element("div", { class: "top" }, element("div", {}, element("h2", { id: "detail-title" }, ...breakable(row.model)),
      element("p", { class: "note" }, `${line} · `, element("a", { href: linkOf(group, row) }, "link to this model"))),
      element("button", { type: "button", class: "quiet", onclick: () => dialog.close(), autofocus: true }, "Close")),
    element("p", { class: "note" }, element("span", { class: row.verified ? "tag good" : "tag" }, row.verified ? "verified" : "not verified"), ` ${row.verified || "No image of this record was re-measured."}`),
    row.mode ? element("p", { class: "note" }, `Searched with ${row.mode}: scores with ≤ are upper bounds.`) : null,
    scoreTable(group, row), curveTable(group, row),
    maps ? accuracyMaps(maps) : hint,
    ...(images ? imageSections(images) : []),
    element("div", { class: "facts" }, ...sections.map(facts))));
  dialog.showModal();
  dialog.scrollTop = 0;
}

/** Opens what the address names: `#model=NAME&data=NAME`. */
function followLink() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const notice = document.getElementById("missing");
  notice.hidden = true;
  if (dialog.open) dialog.close();
  if (!wanted.has("model")) return;
  const [model, data] = [wanted.get("model"), wanted.get("data")];
  const groups = [...page.groups.filter((group) => group.label === data), ...page.groups.filter((group) => data === null || group.data === data)];
  const group = groups.find((one) => one.rows.some((row) => row.model === model));
  if (!group) {
    notice.textContent = `This page has no ${model}${data === null ? "" : ` on ${data}`}.`;
    notice.hidden = false;
    return;
  }
  if (state.group !== group) chooseGroup(group);
  openDetail(group, group.rows.find((row) => row.model === model));
}

// A click on the backdrop lands on the dialog itself; inside, it lands on the sheet.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
// The event comes late: another model may be open by then.
dialog.addEventListener("close", () => {
  if (!dialog.open && location.hash) history.replaceState(null, "", location.href.split("#")[0]);
});
addEventListener("hashchange", followLink);
