"use strict";
// Draws charts as they come into view, in the reader's colours; sorts and filters tables. Loads nothing.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")];
  const started = new Map(); // plot -> promise of its drawing
  const PRINTED_WIDTH = 1000; // pixels: what a landscape page takes

  async function unpacked(plot) {
    const text = document.getElementById(`${plot.id}-data`).textContent;
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function colours(printing) {
    const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const [ink, back] = printing ? ["#000000", "#ffffff"] : [of("--ink"), of("--back")];
    return { "font.color": ink, paper_bgcolor: back, plot_bgcolor: back };
  }

  async function draw(plot) {
    const figure = await unpacked(plot);
    const theme = colours(false);
    figure.layout.font = { ...figure.layout.font, color: theme["font.color"], family: "system-ui, sans-serif" };
    figure.layout.paper_bgcolor = theme.paper_bgcolor;
    figure.layout.plot_bgcolor = theme.plot_bgcolor;
    const config = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: "reset", typesetMath: false };
    await Plotly.newPlot(plot, figure.data, figure.layout, config);
    for (const button of document.querySelectorAll(`[data-of="${plot.id}"]`)) button.hidden = false;
  }

  function drawn(plot) {
    if (!started.has(plot)) started.set(plot, draw(plot).catch((problem) => {
      plot.textContent = "This browser can't draw the chart; its words are below, its numbers in the table.";
      console.warn(problem);
    }));
    return started.get(plot);
  }

  function recolour(printing) {
    for (const plot of started.keys()) {
      if (!plot.layout) continue; // not drawn yet, or it can't be
      const size = printing ? { width: PRINTED_WIDTH } : { width: null, autosize: true };
      Plotly.relayout(plot, { ...colours(printing), ...size });
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); drawn(entry.target); }
  }, { rootMargin: "600px" });
  plots.forEach((plot) => near.observe(plot));
  dark.addEventListener("change", () => recolour(false));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.dataset.was = each.open ? "1" : ""; each.open = true; });
    recolour(true);
  });
  window.addEventListener("afterprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.open = each.dataset.was === "1"; });
    recolour(false);
  });

  const print = document.getElementById("print");
  print.hidden = false;
  print.addEventListener("click", async () => {
    print.disabled = true;
    for (const plot of plots) await drawn(plot);
    print.disabled = false;
    window.print();
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-save]");
    if (!button) return;
    const plot = document.getElementById(button.dataset.of);
    const scale = button.dataset.save === "png" ? 2 : 1;
    Plotly.downloadImage(plot, {
      format: button.dataset.save, filename: `tiercache-${plot.id}`, scale, width: plot.offsetWidth, height: plot.offsetHeight,
    });
  });

  function sorted(table, place, down) {
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[place];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const missing = (row) => row.cells[place].textContent === "–";
    const rows = [...body.rows].sort((a, b) => {
      if (missing(a) !== missing(b)) return missing(a) ? 1 : -1; // what wasn't measured never comes first
      const [x, y] = [key(a), key(b)];
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    });
    body.append(...rows);
  }

  for (const button of document.querySelectorAll("table.sortable thead button")) {
    button.addEventListener("click", () => {
      const heading = button.closest("th");
      const down = heading.getAttribute("aria-sort") === "ascending";
      heading.parentElement.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      sorted(heading.closest("table"), heading.cellIndex, down);
    });
  }

  for (const box of document.querySelectorAll("input.filter")) {
    const table = box.closest("section").querySelector("table.sortable");
    const count = box.parentElement.querySelector("output");
    box.addEventListener("input", () => {
      const wanted = box.value.trim().toLowerCase();
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = wanted ? `${shown} of ${table.tBodies[0].rows.length}` : "";
    });
  }
})();
