// A list of any length of which only the rows in view are in the document, in their order.

import { keyed } from "./text.js";

const SPARE = 4;  // rows beyond each edge: a fast scroll shows no gap

export class VirtualList {
  constructor(box, { rowHeight, keyOf, make, update }) {
    this.box = box;
    this.list = box.querySelector("ul");
    Object.assign(this, { rowHeight, keyOf, make, update, items: [], isAsked: false });
    box.addEventListener("scroll", () => this.ask(), { passive: true });
    box.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.ask()).observe(box);
  }

  show(items) {
    this.items = items;
    this.list.style.height = `${items.length * this.rowHeight}px`;
    this.draw();
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => { this.isAsked = false; this.draw(); });
  }

  draw() {
    const { box, rowHeight, items } = this;
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - SPARE);
    const end = Math.min(items.length, first + Math.ceil(box.clientHeight / rowHeight) + 2 * SPARE);
    const shown = items.slice(first, end).map((item, place) => [first + place, item]);
    keyed(this.list, shown, ([, item]) => this.keyOf(item), this.make, (row, [index, item]) => {
      row.style.transform = `translateY(${index * rowHeight}px)`;
      row.dataset.index = String(index);
      row.setAttribute("aria-setsize", String(items.length));
      row.setAttribute("aria-posinset", String(index + 1));
      this.update(row, item);
    });
  }

  onKey(event) {
    const row = event.target.closest("li");
    if (!row) return;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    let next = null;
    if (event.key in steps) next = Number(row.dataset.index) + steps[event.key];
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = this.items.length - 1;
    if (next === null) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.items.length - 1, next)));
  }

  focus(index) {
    const top = index * this.rowHeight, { box } = this;
    const bottom = top + this.rowHeight - box.clientHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (bottom > box.scrollTop) box.scrollTop = bottom;
    this.draw();
    this.list.querySelector(`li[data-index="${index}"] a`)?.focus({ preventScroll: true });
  }
}
