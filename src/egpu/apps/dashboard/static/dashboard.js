// The pages need a script for three things: a token in the address, a warning without answers, and a card's chart.
"use strict";

// `egpu up` prints an address that ends in #token=…. Browsers never send or log this part; it goes into the form.
const login = document.getElementById("login");
if (login !== null && location.hash.startsWith("#token=")) {
  login.elements.token.value = decodeURIComponent(location.hash.slice("#token=".length));
  history.replaceState(null, "", location.pathname);
  login.submit();
}

const stale = document.getElementById("stale");
for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(name, () => { stale.hidden = false; });
}
document.addEventListener("htmx:beforeOnLoad", (event) => {
  if (event.detail.xhr.status < 400) stale.hidden = true;
});

const CHART_HEIGHT = 280;
const CHART_MILLISECONDS = 5000;
const CLOCK_PIXELS = 80;
const chart = document.getElementById("chart");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Compute in one colour, memory in another; allocation as a thin line, use as a filled area.
function line(name) {
  const stroke = name.startsWith("core") ? colour("--accent") : colour("--warn");
  const label = name.replace("core", "compute").replace("given", "allocated");
  return name.endsWith("given") ? { label, stroke, width: 1, dash: [6, 4] } : { label, stroke, width: 2, fill: stroke + "30" };
}

// 15:04:05 in every language.
function clock(seconds) {
  return new Date(1000 * seconds).toTimeString().slice(0, 8);
}

function drawn(history) {
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const options = {
    width: chart.clientWidth - 20,
    height: CHART_HEIGHT,
    series: [{ value: (_, seconds) => (seconds === null ? "–" : clock(seconds)) }, ...history.names.map(line)],
    axes: [{ ...axis, space: CLOCK_PIXELS, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 60, values: (_, ticks) => ticks.map((tick) => `${tick} %`) }],
    scales: { y: { range: (_, least, most) => [0, Math.max(100, most)] } },
  };
  chart.replaceChildren();
  return new uPlot(options, [history.times, ...history.series], chart);
}

async function follow() {
  let plot = null;
  let latest = null;
  const redraw = () => { if (latest !== null) plot = drawn(latest); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", () => plot?.setSize({ width: chart.clientWidth - 20, height: CHART_HEIGHT }));
  for (;;) {
    const answer = await fetch(chart.dataset.source).catch(() => null);
    if (answer?.ok) {
      latest = await answer.json();
      if (plot === null) redraw();
      else plot.setData([latest.times, ...latest.series]);
    }
    await new Promise((resume) => setTimeout(resume, CHART_MILLISECONDS));
  }
}

if (chart !== null) follow();
