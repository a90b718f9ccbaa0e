// Figures as texts, and the cells of tables, for all parts of the page.

export const amount = (value, unit = "") => {
  if (value === null || value === undefined) return "–";
  const steps = ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < steps.length - 1) { value /= 1000; step += 1; }
  const digits = step > 0 && Math.abs(value) < 100 ? 1 : 0;
  return `${value.toFixed(digits)}${steps[step] || unit ? " " : ""}${steps[step]}${unit}`;
};

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

// A duration in one or two units: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min.
export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};

export const cell = (row, content, kind) => {
  const td = row.insertCell();
  if (kind) td.className = kind;
  if (content instanceof Node) td.append(content); else td.textContent = content;
  return td;
};
