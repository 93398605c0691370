// Wiring: the tools change the state, and the state is drawn.
const tool = (id) => document.getElementById(id);
const datasets = [...new Set(page.records.map((r) => r.data.name))].sort();

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
  tool("shift-text").textContent = `${state.s} step${state.s === 1 ? "" : "s"}`;
  drawTable();
  drawCharts();
}

function chooseData(name) {
  state.data = name;
  if (!shownColumns().includes(state.column)) {
    state.column = "top1";
    state.descending = true;
  }
  tool("sort").replaceChildren(...shownColumns().map((column) => element("option", { value: column }, title(column))));
  state.drawn = new Set(rows().slice(0, DRAWN_AT_FIRST).map((record) => record.index));
  update();
}

const furthest = Math.max(0, ...page.attacks.map((attack) => attack.ticks.length - 1));
tool("shift").max = furthest;
tool("shift").value = state.s;
tool("shift-label").hidden = furthest === 0;
tool("data").replaceChildren(...datasets.map((name) => element("option", { value: name }, name)));
tool("data-label").hidden = datasets.length < 2;
tool("tools").addEventListener("submit", (event) => event.preventDefault());
tool("data").addEventListener("change", (event) => chooseData(event.target.value));
tool("sort").addEventListener("change", (event) => sortBy(event.target.value));
tool("shift").addEventListener("input", (event) => {
  state.s = Number(event.target.value);
  update();
});
tool("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  update();
});

showTheme();
chooseData(datasets[0]);
