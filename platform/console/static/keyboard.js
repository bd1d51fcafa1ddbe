/* Script of the keys: / searches, g and a letter open a page, ? shows all keys. Not while a field has the focus.
 * Fields of filters offer names. */
"use strict";

(() => {
  const PAUSE_MS = 150;
  let afterG = false;
  let timer;

  function typing(element) {
    return element.closest("input, textarea, select, [contenteditable]") !== null;
  }

  function openDialog(id) {
    const dialog = document.getElementById(id);
    if (!dialog || dialog.open) return;
    dialog.showModal();
    dialog.querySelector("input")?.select();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const link = afterG && document.querySelector(`#keys a[data-key="${CSS.escape(event.key)}"]`);
    afterG = event.key === "g" && !afterG;
    if (link) link.click();
    else if (event.key === "/") openDialog("search");
    else if (event.key === "?") openDialog("keys");
    else return;
    event.preventDefault();
  });

  // Return the results as HTML; null without an answer, and after the end of the session.
  async function results(text) {
    const path = `/console/search?${new URLSearchParams({ query: text })}`;
    const answer = await fetch(path, { redirect: "manual" }).catch(() => null);
    return answer?.ok ? answer.text() : null;
  }

  async function search(text) {
    const html = await results(text);
    const found = document.getElementById("found");
    // An answer to an older text is too late.
    if (document.getElementById("search-text").value !== text) return;
    found.innerHTML = html ?? '<p class="alarm warn">The search failed. Enter the text again.</p>';
    if (html !== null) found.dataset.text = text;
  }

  // The results may still be those of an earlier text.
  async function openFirst(field) {
    const found = document.getElementById("found");
    window.clearTimeout(timer);
    if (found.dataset.text !== field.value) await search(field.value);
    if (found.dataset.text === field.value) found.querySelector("a")?.click();
  }

  document.addEventListener("input", (event) => {
    const field = event.target;
    if (field.id !== "search-text" && !field.dataset.pick) return;
    window.clearTimeout(timer);
    timer = window.setTimeout(() => (field.dataset.pick ? offer(field) : search(field.value)), PAUSE_MS);
  });

  // Offer the names of tenants or apps to a field with data-pick, whose value is the id.
  async function offer(field) {
    const { value, list, dataset: { pick } } = field;
    const html = await results(value);
    if (html === null || field.value !== value) return;
    const found = document.createElement("template");
    found.innerHTML = html;
    const links = [...found.content.querySelectorAll(`[data-${pick}]`)];
    list.replaceChildren(...links.map((link) => new Option(link.textContent, link.dataset[pick])));
  }

  // The arrow keys move through the field and the results; the enter key in the field opens the first one.
  document.addEventListener("keydown", (event) => {
    const dialog = document.getElementById("search");
    if (!dialog?.open) return;
    const stops = [document.getElementById("search-text"), ...dialog.querySelectorAll("#found a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) stops[(stops.indexOf(document.activeElement) + step + stops.length) % stops.length].focus();
    else if (event.key === "Enter" && document.activeElement === stops[0]) openFirst(stops[0]);
    else return;
    event.preventDefault();
  });
})();
