"use strict";
const hovers = matchMedia("(hover: hover)").matches;
const dark = matchMedia("(prefers-color-scheme: dark)");
function fitted(place, figure) {  // a sphere is seen under a fixed vertical angle: where there is less width than height, from farther off
  if (!figure.layout.scene) return figure;
  const { data, layout } = structuredClone(figure), far = Math.max(1, place.clientHeight / place.clientWidth);
  const eye = layout.scene.camera && layout.scene.camera.eye;
  if (eye) for (const axis of ["x", "y", "z"]) eye[axis] *= far;
  if (far > 1) for (const trace of data) if (trace.colorbar) Object.assign(trace.colorbar, { orientation: "h", x: .5, y: 1, yanchor: "top" });
  return { data, layout };
}
function themed(layout) {
  const css = getComputedStyle(document.documentElement), ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
  const soft = css.getPropertyValue("--soft").trim();
  const out = structuredClone(layout);
  delete out.template;
  out.modebar = { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink };
  out.font = { color: ink, size: 12, family: "system-ui, sans-serif" };
  for (const key of Object.keys(out)) if (/^[xy]axis/.test(key)) Object.assign(out[key], { gridcolor: line, zerolinecolor: line, linecolor: soft, automargin: true });
  if (out.scene) for (const key of ["xaxis", "yaxis", "zaxis"]) out.scene[key] = Object.assign({ color: soft, gridcolor: line, showbackground: false }, out.scene[key]);
  for (const note of (out.annotations || [])) if (!note.font || !note.font.color) note.font = Object.assign({}, note.font, { color: ink });
  return out;
}
async function unpacked(id) {  // the base64 of gzip in a script element
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const drawn = new Map();
function draw(place, figures) {
  if (drawn.has(place)) return;
  const figure = fitted(place, figures[place.dataset.figure]);
  drawn.set(place, figure);
  Plotly.newPlot(place, { data: figure.data, layout: themed(figure.layout),
    config: { responsive: true, displaylogo: false, displayModeBar: hovers ? "hover" : false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
      toImageButtonOptions: { format: "svg", filename: place.dataset.figure } } });
}
async function start() {
  const places = [...document.querySelectorAll(".plot")];
  const [library, archive] = await Promise.all(["library", "figures"].map(unpacked));
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  const figures = JSON.parse(archive), all = () => places.forEach(place => draw(place, figures));
  const seen = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
    seen.unobserve(entry.target);
    draw(entry.target, figures);
  }), { rootMargin: "400px" });
  places.forEach(place => seen.observe(place));
  const fit = () => [...drawn.keys()].forEach(place => Plotly.Plots.resize(place));
  addEventListener("beforeprint", () => { all(); fit(); });
  addEventListener("afterprint", fit);
  dark.addEventListener("change", () => drawn.forEach((figure, place) => Plotly.relayout(place, themed(figure.layout))));
  document.documentElement.dataset.figures = places.length;
}
start().catch(error => {
  const note = Object.assign(document.createElement("p"), { className: "problem", textContent: `The figures cannot be drawn here: ${error}` });
  document.querySelector("header").append(note);
});
for (const button of document.querySelectorAll(".counts button")) button.addEventListener("click", () => {
  const shown = button.getAttribute("aria-pressed") === "false";
  button.setAttribute("aria-pressed", shown);
  for (const row of document.querySelectorAll(`#scorecard [data-kind="${button.dataset.kind}"] tr[data-verdict="${button.dataset.verdict}"]`)) row.hidden = !shown;
});
