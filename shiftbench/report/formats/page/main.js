// Wiring: the tools change the state, and the state is drawn.
const tool = (id) => document.getElementById(id);

function remember(key, value) {
  try {
    if (value !== undefined) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch {
    return null; // storage can be switched off for files opened from disk
  }
}

const THEMES = ["auto", "light", "dark"];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let theme = remember("shiftbench-theme") ?? "auto";
function showTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (prefersDark.matches ? "dark" : "light") : theme;
  tool("theme").textContent = `Theme: ${theme}`;
}
tool("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  remember("shiftbench-theme", theme);
  showTheme();
});
prefersDark.addEventListener("change", showTheme);

function update() {
  tool("sort").value = state.column;
  tool("shift-text").textContent = `${state.stop} step${state.stop === 1 ? "" : "s"}`;
  drawTable();
  drawCharts();
}

function chooseGroup(group) {
  const began = state.stop === state.group.stop; // then the next one begins at its own
  state.group = group;
  const last = group.notes.length - 1;
  state.stop = began ? group.stop : Math.min(state.stop, last);
  if (!columnNamed(state.column)) {
    state.column = modelColumn(group).name;
    state.descending = false;
  }
  tool("data").value = page.groups.indexOf(group);
  tool("shift").max = last;
  tool("shift").value = state.stop;
  tool("shift-label").hidden = last === 0;
  tool("all-label").hidden = group.columns.every((column) => column.front);
  tool("intervals").checked = page.intervals && group.rows.length < CROWD;
  tool("sort").replaceChildren(...group.columns.map((column) => element("option", { value: column.name }, column.title)));
  state.drawn = new Set(rows().slice(0, DRAWN_AT_FIRST));
  update();
  drawOverview();
  drawPublished();
}

tool("data").replaceChildren(...page.groups.map((group, index) => element("option", { value: index }, group.label)));
tool("data-label").hidden = page.groups.length < 2;
tool("tools").addEventListener("submit", (event) => event.preventDefault());
tool("data").addEventListener("change", (event) => chooseGroup(page.groups[event.target.value]));
tool("sort").addEventListener("change", (event) => sortBy(columnNamed(event.target.value)));
tool("intervals").addEventListener("change", () => drawTable());
tool("all").addEventListener("change", (event) => {
  state.all = event.target.checked;
  drawTable();
});
tool("shift").addEventListener("input", (event) => {
  state.stop = Number(event.target.value);
  update();
});
tool("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  update();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) drawCharts();
  width = innerWidth;
});

showTheme();
chooseGroup(state.group);
followLink();
