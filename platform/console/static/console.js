/* Script of the console: charts that follow the server's events. Pages work without it, except for charts.
 *
 * A chart is <div class="chart" data-chart="NAME" data-unit="UNIT">. Its data are the page's element
 * <script type="application/json" id="chart-data">: {NAME: {time: [s], series: [{label, values}], stacked,
 * bars, days, limits: [{label, value}], marks: [{at, text, tone}], top}}, then the events "charts" of the page's
 * stream, in the same format. The texts of a chart's marks are the list <ol data-marks="NAME">. With
 * data-span-s all charts have one time axis of this length, and one cursor.
 *
 * Times are the reader's, as those of the page; with "days" they are days of the report, as it counts them.
 *
 * A restarted server knows nothing of the time before: what the page has of it stays, with a gap after it. */
"use strict";

(() => {
  const charts = new Map();
  const COLOURS = 8;
  const HISTORY_S = 1800;
  const SHORTEST_S = 0.02; // least end of an axis of durations, whose labels are whole milliseconds

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
    if (unit === "%") return `${(100 * value).toFixed(value && Math.abs(value) < 0.1 ? 1 : 0)} %`;
    if (unit === "s") return value < 1 ? `${Math.round(1000 * value)} ms` : `${plain(value)} s`;
    if (unit) return `${number(value)}${unit.startsWith("/") ? "" : " "}${unit}`;
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
    const day = localTime.day(time);
    if (step >= 86400) return day;
    const shown = localTime.clock(time).slice(0, step < 60 ? 8 : 5);
    const same = before !== undefined && new Date(1000 * before).getDate() === time.getDate();
    return same ? shown : `${shown}\n${day}`;
  }

  // Format as local time of the day.
  function timeOfDay(seconds) {
    return localTime.clock(new Date(1000 * seconds)).slice(0, 5);
  }

  // Length of the common time axis in seconds; 0 if each chart is as long as its data.
  function span() {
    return Number(document.getElementById("chart-data").dataset.spanS || 0);
  }

  // Sums of the layers up to each one; a time without any value is a gap.
  function stacked(series) {
    const sums = [];
    return series.map((each) => each.values.map((value, at) => {
      if (series.every((layer) => layer.values[at] === null)) return null;
      return (sums[at] = (sums[at] || 0) + (value || 0));
    }));
  }

  // When the process of the server began, in UTC epoch seconds.
  function startOfServer() {
    return Number(document.querySelector("[data-started]")?.dataset.started || 0);
  }

  // Return the data of a restarted server behind what is left of the time before, with a gap at `start`.
  function joined(past, data, start) {
    const length = span() || HISTORY_S;
    const now = data.time.map((_, at) => at).filter((at) => data.time[at] > start);
    const newest = now.length ? data.time[now.at(-1)] : start;
    if (start <= newest - length) return data;
    const kept = past.time.map((_, at) => at).filter((at) => past.time[at] >= newest - length && past.time[at] < start);
    const labels = [...new Set([...data.series, ...(kept.length ? past.series : [])].map((each) => each.label))];
    const part = (from, label, indices) => {
      const values = from.series.find((each) => each.label === label)?.values;
      return indices.map((at) => values?.[at] ?? null);
    };
    return {
      ...data,
      time: [...kept.map((at) => past.time[at]), start, ...now.map((at) => data.time[at])],
      series: labels.map((label) => ({
        label, values: [...part(past, label, kept), null, ...part(data, label, now)],
      })),
    };
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

    // Keep the present data as those before a restart of the server.
    keep(start) {
      if (this.data?.time.length) Object.assign(this, { past: this.data, start });
    }

    show(data) {
      if (this.past) data = joined(this.past, data, this.start);
      const names = JSON.stringify([data.series.map((each) => each.label), data.limits || []]);
      const again = this.plot && names === this.names;
      this.data = data;
      this.names = names;
      if (again) this.plot.setData(this.columns());
      else this.build();
      this.describe();
      this.fillTable();
    }

    // Format a time beside the one before, which may be undefined; a day of the report once.
    label(seconds, step, before) {
      if (!this.data.days) return clock(seconds, step, before);
      const [day, last] = [seconds, before ?? 0].map((each) => new Date(1000 * each).toISOString().slice(0, 10));
      return day === last ? "" : day;
    }

    // Ends of the time axis. uPlot's own ends are 1,000 days apart if there is one time only.
    range() {
      const { time, days } = this.data;
      if (!time.length) return [null, null];
      const [first, last] = [time[0], time.at(-1)];
      if (span()) return [last - span(), last];
      if (first < last) return [first, last];
      return days ? [first - 43200, last + 43200] : [last - 60, last];
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
        cursor: { y: false, drag: { x: false, y: false }, sync: span() ? { key: "page", setSeries: false } : undefined },
        tzDate: (seconds) => (this.data.days ? uPlot.tzDate(new Date(1000 * seconds), "UTC") : new Date(1000 * seconds)),
        scales: { x: { range: () => this.range() }, y: { range: (_, low, high) => [Math.min(0, low), this.data.top || (high > 0 ? Math.max(high * 1.08, unit === "s" ? SHORTEST_S : 0) : 1)] } },
        axes: [{ ...axis, space: 80, values: (_, ticks, at, space, step) =>
          ticks.map((tick, number_) => this.label(tick, step, ticks[number_ - 1])) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => number(tick, unit.length > 2 ? "" : unit)) }],
        series: [{}, ...lines, ...bounds],
        bands,
        hooks: {
          setCursor: [(plot) => this.showValues(plot.cursor.idx)],
          draw: [(plot) => this.drawMarks(plot, text)],
        },
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

    restarted() {
      return this.past && this.data.time[0] <= this.start ? `restarted ${timeOfDay(this.start)}` : "";
    }

    // Vertical lines: those of the data with their numbers, or else that of a restart with its text.
    drawMarks(plot, colour_) {
      const marks = (this.data.marks || []).map((each, at) => ({ ...each, label: String(at + 1) }));
      if (!marks.length && this.restarted()) marks.push({ at: this.start, label: this.restarted() });
      const { left, top, width, height } = plot.bbox;
      const { ctx } = plot;
      ctx.save();
      ctx.setLineDash([2, 4]);
      ctx.font = `${12 * devicePixelRatio}px system-ui`;
      let labelled = -Infinity;
      for (const mark of marks) {
        const at = plot.valToPos(mark.at, "x", true);
        if (at < left || at > left + width) continue;
        ctx.strokeStyle = ctx.fillStyle = mark.tone ? colour(mark.tone) : colour_;
        ctx.beginPath();
        ctx.moveTo(at, top);
        ctx.lineTo(at, top + height);
        ctx.stroke();
        if (at < labelled + 18 * devicePixelRatio) continue; // its number would cover the one before
        labelled = at;
        ctx.textAlign = at > left + width / 2 ? "right" : "left";
        ctx.fillText(` ${mark.label} `, at, top + 12 * devicePixelRatio);
      }
      ctx.restore();
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
        + ([...parts, this.restarted()].filter(Boolean).join(", ") || "nothing"));
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
        row.insertCell().textContent = this.label(this.data.time[at], 1, this.data.time[at + 1]);
        for (const each of this.data.series) row.insertCell().textContent = number(each.values[at], this.unit);
      }
      this.table.querySelector(".wide").replaceChildren(table);
    }
  }

  // List the marks of the charts, in local time, the latest first.
  function listMarks(data) {
    document.querySelectorAll("[data-marks]").forEach((list) => {
      const items = (data[list.dataset.marks]?.marks || []).map((mark) => {
        const item = document.createElement("li");
        if (mark.tone) item.className = mark.tone;
        const time = document.createElement("time");
        time.dateTime = new Date(1000 * mark.at).toISOString();
        time.title = time.dateTime;
        time.textContent = timeOfDay(mark.at);
        item.append(time, ` ${mark.text}`);
        return item;
      });
      list.replaceChildren(...items.reverse());
    });
  }

  function faded(rgb) {
    return rgb.replace("rgb(", "rgba(").replace(")", ", 0.22)");
  }

  let known = 0;

  function showCharts(data) {
    const start = startOfServer();
    if (known && start > known) for (const chart of charts.values()) chart.keep(start);
    known = start;
    document.querySelectorAll("[data-chart]").forEach((box) => {
      if (!charts.has(box)) charts.set(box, new Chart(box));
    });
    for (const [box, chart] of charts) {
      if (!box.isConnected) charts.delete(box);
      else if (data[box.dataset.chart]) chart.show(data[box.dataset.chart]);
    }
    listMarks(data);
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
  // Copy the text of the element that a button with data-copy names.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
  // Ask for confirmation before a form with data-confirm, or by a button with it, is sent.
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  }, true);
  // Show the parameters whose name or meaning has the text of a field with data-find.
  document.addEventListener("input", ({ target }) => {
    if (!target.matches("[data-find]")) return;
    const word = target.value.trim().toLowerCase();
    for (const each of target.closest("details").querySelectorAll(".param")) {
      each.hidden = !each.textContent.toLowerCase().includes(word);
    }
  });
  // A button with data-after-change works once a field of its form was changed.
  const enable = (within, on) => within?.querySelectorAll("[data-after-change]").forEach((each) => { each.disabled = !on; });
  document.addEventListener("htmx:load", ({ target }) => enable(target, false));
  document.addEventListener("input", ({ target }) => enable(target.form, true));
  // A link to a dialog opens it, and one to a field selects its text.
  document.addEventListener("DOMContentLoaded", () => {
    const named = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
    if (named?.popover) named.showPopover();
    else if (named?.matches("main input")) named.select();
  });
  // The focus is in a dialog that opens: in its first field, or on the button that closes it.
  document.addEventListener("toggle", ({ target, newState }) => {
    if (!target.popover || newState !== "open") return;
    target.querySelector(".field :is(input, select, textarea), [popovertargetaction=hide]")?.focus();
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
