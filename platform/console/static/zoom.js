/* Script of pictures that are zoomed and moved: <div id="…" data-zoom tabindex="0"><svg viewBox="…">.
 *
 * With the focus: + and - zoom, arrow keys move, 0 shows all, the wheel zooms; Ctrl and the wheel zoom
 * always. A drag moves. A button with data-zooms="ID" data-by="2" zooms by 2; by 0 it shows all. A live
 * page that exchanges the picture keeps the shown part. */
"use strict";

(() => {
  const STEP = 1.5;
  const MOVE = 0.2;
  const MOST = 100;
  const KEYS = { "+": STEP, "=": STEP, "-": 1 / STEP, 0: 0 };
  const ARROWS = { ArrowLeft: [-MOVE, 0], ArrowRight: [MOVE, 0], ArrowUp: [0, -MOVE], ArrowDown: [0, MOVE] };
  const wholes = new WeakMap(); // the view box of the server, by picture
  const views = new Map(); // the shown part [x, y, width, height], by the id of the box; none: all
  let drag = null;

  const picture = (box) => box.querySelector("svg");
  const shown = (box) => views.get(box.id) || wholes.get(picture(box));

  function show(box, view) {
    const [left, top, width, height] = wholes.get(picture(box));
    const [w, h] = [Math.max(view[2], width / MOST), Math.max(view[3], height / MOST)];
    const within = (at, low, high) => Math.min(Math.max(at, low), high);
    if (w < width) views.set(box.id, [within(view[0], left, left + width - w), within(view[1], top, top + height - h), w, h]);
    else views.delete(box.id);
    draw(box);
  }

  function draw(box) {
    picture(box).setAttribute("viewBox", shown(box).join(" "));
    box.classList.toggle("zoomed", views.has(box.id));
  }

  function zoom(box, by, point) {
    const [x, y, w, h] = shown(box);
    const [atX, atY] = point || [x + w / 2, y + h / 2];
    show(box, by ? [atX - (atX - x) / by, atY - (atY - y) / by, w / by, h / by] : wholes.get(picture(box)));
  }

  function move(box, [right, down]) {
    const [x, y, w, h] = shown(box);
    show(box, [x + right * w, y + down * h, w, h]);
  }

  // Place of a pointer in the units of a picture.
  function place(matrix, event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
    return [point.x, point.y];
  }

  const matrixOf = (box) => picture(box).getScreenCTM().inverse();
  const boxOf = (event) => event.target.closest?.("[data-zoom]");

  document.addEventListener("keydown", (event) => {
    const box = boxOf(event);
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in KEYS) zoom(box, KEYS[event.key]);
    else if (event.key in ARROWS) move(box, ARROWS[event.key]);
    else return;
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zooms]");
    if (button) zoom(document.getElementById(button.dataset.zooms), Number(button.dataset.by));
  });
  document.addEventListener("wheel", (event) => {
    const box = boxOf(event);
    if (!box || !(event.ctrlKey || box === document.activeElement)) return;
    zoom(box, event.deltaY < 0 ? STEP : 1 / STEP, place(matrixOf(box), event));
    event.preventDefault();
  }, { passive: false });
  document.addEventListener("pointerdown", (event) => {
    const box = boxOf(event);
    if (!box || !views.has(box.id)) return;
    const matrix = matrixOf(box);
    drag = { box, matrix, from: place(matrix, event), view: shown(box) };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = place(drag.matrix, event);
    const [left, top, w, h] = drag.view;
    show(drag.box, [left + drag.from[0] - x, top + drag.from[1] - y, w, h]);
  });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { drag = null; });

  // A picture whose view box is not the shown part is one of the server.
  function adopt() {
    for (const box of document.querySelectorAll("[data-zoom]")) {
      const text = picture(box).getAttribute("viewBox");
      if (wholes.has(picture(box)) && text === shown(box).join(" ")) continue;
      wholes.set(picture(box), text.split(" ").map(Number));
      draw(box);
    }
  }

  document.addEventListener("htmx:sseMessage", adopt);
  adopt();
})();
