/* Script of the console: charts that follow the server's events. Pages work without it, except for charts.
 *
 * A chart is <div class="chart" data-chart="NAME" data-unit="UNIT">. Its data are the page's element
 * <script type="application/json" id="chart-data">: {NAME: {time: [s], series: [{label, values}], stacked,
 * bars, limits: [{label, value}], top}}, then the events "charts" of the page's stream, in the same format. */
"use strict";

(() => {
  const charts = new Map();
  const COLOURS = 8;

  function colour(name) {
    const probe = document.createElement("span");
    probe.className = "unseen";
    document.body.append(probe);
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function number(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "%") return `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`;
    if (unit === "s") return value < 1 ? `${Math.round(1000 * value)} ms` : `${plain(value)} s`;
    const size = Math.abs(value);
    for (const [least, by, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
      if (size >= least) return plain(value / by) + letter;
    }
    return plain(value);
  }

  function plain(value) {
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
  }

  // Format as 24-hour time; the first tick of a day has the date.
  function clock(seconds, step, before) {
    const time = new Date(1000 * seconds);
    const two = (value) => String(value).padStart(2, "0");
    const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
    if (step >= 86400) return day;
    const hour = `${two(time.getHours())}:${two(time.getMinutes())}`;
    const shown = step < 60 ? `${hour}:${two(time.getSeconds())}` : hour;
    const same = before !== undefined && new Date(1000 * before).getDate() === time.getDate();
    return same ? shown : `${shown}\n${day}`;
  }

  function stacked(series) {
    const sums = [];
    return series.map((each) => each.values.map((value, at) => (sums[at] = (sums[at] || 0) + (value || 0))));
  }

  class Chart {
    constructor(box) {
      this.box = box;
      this.unit = box.dataset.unit || "";
      this.keys = box.parentElement.querySelector(".keys");
      this.table = box.parentElement.querySelector("details.table");
      if (this.table) this.table.addEventListener("toggle", () => this.fillTable());
      new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(box);
    }

    size() {
      return { width: Math.max(200, this.box.clientWidth), height: this.box.clientHeight };
    }

    show(data) {
      const names = JSON.stringify([data.series.map((each) => each.label), data.limits || []]);
      const again = this.plot && names === this.names;
      this.data = data;
      this.names = names;
      if (again) this.plot.setData(this.columns());
      else this.build();
      this.describe();
      this.fillTable();
    }

    columns() {
      const { time, series, limits } = this.data;
      const values = this.data.stacked ? stacked(series) : series.map((each) => each.values);
      if (this.data.bars) values.reverse(); // the highest sums behind
      const lines = (limits || []).map((limit) => time.map(() => limit.value));
      return [time, ...values, ...lines];
    }

    build() {
      if (this.plot) this.plot.destroy();
      const { series, limits } = this.data;
      const text = colour("soft");
      const grid = { stroke: colour("line"), width: 1 };
      const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui" };
      const unit = this.unit;
      const lines = series.map((each, at) => ({
        label: each.label,
        stroke: colour(`series-${(at % COLOURS) + 1}`),
        width: 2,
        dash: at >= COLOURS ? [6, 4] : undefined,
        points: { show: !this.data.bars && each.values.filter((value) => value !== null).length < 12, size: 4 },
      }));
      if (this.data.bars) {
        const width = this.data.time.length > 1 ? [0.7, 60] : [0.1, 60];
        for (const line of lines) Object.assign(line, { width: 0, fill: line.stroke, paths: uPlot.paths.bars({ size: width }) });
        lines.reverse();
      }
      const bounds = (limits || []).map((each) => ({
        label: each.label, stroke: colour("bad"), width: 1.5, dash: [4, 4], points: { show: false },
      }));
      const layers = this.data.stacked && !this.data.bars;
      const bands = layers
        ? lines.slice(1).map((line, at) => ({ series: [at + 2, at + 1], fill: faded(line.stroke) }))
        : [];
      if (layers && lines.length) lines[0].fill = faded(lines[0].stroke);
      this.plot = new uPlot({
        ...this.size(),
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { y: { range: (_, low, high) => [Math.min(0, low), this.data.top || (high > 0 ? high * 1.08 : 1)] } },
        axes: [{ ...axis, space: 80, values: (_, ticks, at, space, step) =>
          ticks.map((tick, number_) => clock(tick, step, ticks[number_ - 1])) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => number(tick, unit)) }],
        series: [{}, ...lines, ...bounds],
        bands,
        hooks: { setCursor: [(plot) => this.showValues(plot.cursor.idx)] },
      }, this.columns(), this.box);
      this.box.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
      if (this.keys) {
        this.keys.replaceChildren(...series.map((each, at) => {
          const item = document.createElement("li");
          const line = document.createElement("i");
          line.className = `key-${(at % COLOURS) + 1}`;
          item.append(line, document.createTextNode(each.label + " "), document.createElement("b"));
          return item;
        }));
      }
      this.showValues(null);
    }

    showValues(at) {
      if (!this.keys || !this.data) return;
      const index = at === null || at === undefined ? this.data.time.length - 1 : at;
      this.data.series.forEach((each, number_) => {
        const item = this.keys.children[number_];
        if (item) item.lastChild.textContent = number(each.values[index], this.unit);
      });
    }

    describe() {
      const last = this.data.time.length - 1;
      const parts = this.data.series.map((each) => `${each.label} ${number(each.values[last], this.unit)}`);
      this.box.setAttribute("role", "img");
      this.box.setAttribute("aria-label", `${this.box.dataset.title || this.box.dataset.chart}, at the end: `
        + (parts.join(", ") || "nothing"));
      this.showValues(this.plot.cursor.idx);
    }

    fillTable() {
      if (!this.table || !this.table.open || !this.data) return;
      const table = document.createElement("table");
      const head = table.createTHead().insertRow();
      for (const label of ["time", ...this.data.series.map((each) => each.label)]) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = label;
        head.append(cell);
      }
      const body = table.createTBody();
      for (let at = this.data.time.length - 1, rows = 0; at >= 0 && rows < 30; at -= 1, rows += 1) {
        const row = body.insertRow();
        row.insertCell().textContent = new Date(1000 * this.data.time[at]).toLocaleTimeString();
        for (const each of this.data.series) row.insertCell().textContent = number(each.values[at], this.unit);
      }
      this.table.querySelector(".wide").replaceChildren(table);
    }
  }

  function faded(rgb) {
    return rgb.replace("rgb(", "rgba(").replace(")", ", 0.22)");
  }

  function showCharts(data) {
    document.querySelectorAll("[data-chart]").forEach((box) => {
      if (!charts.has(box)) charts.set(box, new Chart(box));
    });
    for (const [box, chart] of charts) {
      if (!box.isConnected) charts.delete(box);
      else if (data[box.dataset.chart]) chart.show(data[box.dataset.chart]);
    }
  }

  function showLive(on) {
    document.querySelectorAll(".live").forEach((mark) => {
      mark.classList.toggle("on", on);
      mark.classList.toggle("off", !on);
      const text = on ? "live" : "disconnected, reconnecting";
      if (mark.textContent !== text) mark.textContent = text;
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    const first = document.getElementById("chart-data");
    if (first) showCharts(JSON.parse(first.textContent));
  });
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (event.detail.type === "charts") {
      event.preventDefault();
      showCharts(JSON.parse(event.detail.data));
    } else if (event.detail.type === "over") {
      window.location.reload();
    }
  });
  document.addEventListener("htmx:sseOpen", () => showLive(true));
  document.addEventListener("htmx:sseError", () => showLive(false));
  document.addEventListener("htmx:sseClose", (event) => {
    if (event.detail.type === "message") document.querySelectorAll(".live").forEach((mark) => mark.remove());
    else showLive(false);
  });
  // Ask for confirmation before a form with data-confirm is sent.
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  }, true);
  // Show rejected changes, too: by default htmx drops responses that are not successful.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status >= 400 && event.detail.xhr.status !== 401) {
      event.detail.shouldSwap = true;
      event.detail.isError = false;
    }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts.values()) if (chart.data) chart.build();
  });
})();
