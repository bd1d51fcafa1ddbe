/* Script of times: each is shown in the reader's time zone, and in UTC on hover; a field takes one in it.
 *
 * The server writes <time datetime="2026-01-31T14:05:09Z">2026-01-31 14:05:09 UTC</time>, which stays so
 * without this script. Parts of a page that are exchanged are followed by an observer. A field with the
 * attribute data-utc has and sends UTC; its label names the zone in an element with data-zone. */
"use strict";

const localTime = (() => {
  const two = (value) => String(value).padStart(2, "0");

  function day(date) {
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  }

  function clock(date) {
    return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  }

  function show(time) {
    if (!time.textContent.endsWith(" UTC")) return;
    const date = new Date(time.dateTime);
    time.title = time.textContent;
    time.textContent = `${day(date)} ${clock(date)}`;
  }

  /** Let a field take local time. One with a text that is no time stays as it is, beside its error. */
  function take(field) {
    const date = new Date(field.value);
    if (field.value && Number.isNaN(date.getTime())) return;
    const local = field.value && `${day(date)}T${clock(date)}`;
    field.value = ""; // a date in UTC is no value of the other type
    field.type = "datetime-local";
    field.step = 1;
    field.value = local;
    field.labels[0].querySelector("[data-zone]").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
    field.form.addEventListener("formdata", (event) => {
      if (field.value) event.formData.set(field.name, new Date(field.value).toISOString());
    });
  }

  const showAll = () => document.querySelectorAll("time[datetime]").forEach(show);
  document.addEventListener("DOMContentLoaded", () => {
    showAll();
    document.querySelectorAll("input[data-utc]").forEach(take);
    new MutationObserver(showAll).observe(document.body, { childList: true, characterData: true, subtree: true });
  });
  return { day, clock };
})();
