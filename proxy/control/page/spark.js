// A line of ten minutes, as one SVG path. A charting library would bring a canvas and some twenty
// elements for each of hundreds of lines, and 50 kB; a path is what these need.

const WIDTH = 120, HEIGHT = 26, PAD = 2;  // those of the template

// Commands of the line; where nothing is known there is a gap.
export function linePath(values, most, { width = WIDTH, height = HEIGHT, pad = PAD } = {}) {
  const step = values.length > 1 ? (width - 2 * pad) / (values.length - 1) : 0;
  const top = most > 0 ? most : 1;
  let isDown = false, path = "";
  values.forEach((value, place) => {
    if (value === null || value === undefined) { isDown = false; return; }
    const x = (pad + place * step).toFixed(1);
    const y = (height - pad - (height - 2 * pad) * Math.min(1, value / top)).toFixed(1);
    path += `${isDown ? "L" : "M"}${x} ${y}`;
    isDown = true;
  });
  return path;
}

export const makeSpark = () =>
  document.getElementById("spark-template").content.firstElementChild.cloneNode(true);

// `most` is the top of the scale: members of one group share it, so that their lines compare.
export function showSpark(svg, values, { most, isBad = false, label }) {
  const path = linePath(values ?? [], most);
  const line = svg.firstElementChild;
  if (line.getAttribute("d") !== path) line.setAttribute("d", path);
  svg.classList.toggle("bad", isBad);
  if (svg.getAttribute("aria-label") !== label) svg.setAttribute("aria-label", label);
}
