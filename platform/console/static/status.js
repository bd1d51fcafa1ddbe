/* Script of the status line: whether the server answers, and since when it does not.
 *
 * A page's event stream has the event "status" every few seconds, with the status line. If nothing was
 * heard for a while, or the stream broke, the line is requested at /console/status; without an answer
 * the page shows so, greys what it has, and asks again with increasing pauses. A page without a stream
 * asks all the time. The element with data-started has the time at which the server's process began. */
"use strict";

(() => {
  const SILENT_MS = 6_000;
  const ANSWER_MS = 4_000;
  const FIRST_RETRY_MS = 1_000;
  const LAST_RETRY_MS = 15_000;
  let line, banner, timer, shown;
  let heard = Date.now();
  let retry = FIRST_RETRY_MS;
  let asking = false;
  let leaving = false;

  // Local time; a time of another day has its date.
  function clock(date) {
    const time = localTime.clock(date);
    return date.toDateString() === new Date().toDateString() ? time : `${localTime.day(date)} ${time}`;
  }

  function show(html) {
    if (shown === html) return;
    shown = html;
    line.innerHTML = html;
  }

  function hear(html) {
    heard = Date.now();
    retry = FIRST_RETRY_MS;
    show(html);
    document.body.classList.remove("away");
    banner?.remove();
    banner = null;
    schedule(SILENT_MS);
  }

  function lose() {
    if (!banner) {
      document.body.classList.add("away");
      banner = document.createElement("p");
      banner.id = "away";
      banner.setAttribute("role", "alert");
      banner.textContent = `No data since ${clock(new Date(heard))}: the server does not answer. `
        + `${line.dataset.remedy || ""} This page shows its last state, and continues when the server answers.`;
      line.after(banner);
    }
    schedule(retry);
    retry = Math.min(2 * retry, LAST_RETRY_MS);
  }

  function schedule(pause) {
    window.clearTimeout(timer);
    timer = window.setTimeout(ask, pause);
  }

  async function ask() {
    if (asking || leaving) return;
    asking = true;
    try {
      const answer = await fetch("/console/status", {
        cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(ANSWER_MS),
      });
      if (answer.type === "opaqueredirect" || answer.status === 401) window.location.reload();
      else if (answer.ok) hear(await answer.text());
      else lose();
    } catch {
      if (!leaving) lose();
    } finally {
      asking = false;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    line = document.getElementById("status");
    if (line) hear(line.innerHTML.trim());
  });
  document.addEventListener("htmx:sseOpen", (event) => {
    if (line) event.detail.source.addEventListener("status", (status) => hear(status.data.trim()));
  });
  document.addEventListener("htmx:sseError", () => line && ask());
  document.addEventListener("visibilitychange", () => line && !document.hidden && ask());
  window.addEventListener("pagehide", () => { leaving = true; });
  window.addEventListener("pageshow", () => { leaving = false; });
})();
