"use strict";
(() => {
  const data = JSON.parse(document.getElementById("carried").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const floats = (text) => new Float32Array(bytes(text).buffer);
  const values = floats(data.values), ratios = floats(data.ratios), usual = floats(data.usual), state = bytes(data.state);
  const rows = data.labels.length, columns = data.steps.length;
  const MEASURED = 0, INF = 2, NAN = 3;
  const GUTTER = 190, BARS = 180, VALUE = 130, ROW = 17, TOP = 22;
  const at = (row, column) => row * columns + column;
  const element = (id) => document.getElementById(id);
  const canvas = element("cells"), slider = element("scrub"), play = element("play"), speed = element("speed");
  const calm = matchMedia("(prefers-reduced-motion: reduce)"), dark = matchMedia("(prefers-color-scheme: dark)");
  let cursor = columns - 1, chosen = data.row, timer = 0, picture = null, width = 0;

  // ---- numbers as people read them ----
  const count = (value) => value.toLocaleString("en-US");
  const number = (value) => {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : "Inf";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) {
      const [mantissa, power] = value.toExponential(2).split("e");
      return `${mantissa} × 10${[...String(Number(power))].map((d) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(d)]).join("")}`;
    }
    return size >= 1000 ? count(Math.round(value)) : value.toPrecision(3);
  };
  const ratio = (log2) => {
    const factor = 2 ** Math.abs(log2);
    if (Number.isNaN(log2) || factor < 1.5) return Number.isNaN(log2) ? "" : "usual";
    const text = factor < 9.95 ? factor.toFixed(1).replace(".0", "") : count(Number(factor.toPrecision(3)));
    return log2 > 0 ? `×${text}` : `1/${text}`;
  };
  const cell = (row, column) => {
    const what = state[at(row, column)];
    if (what === NAN) return "NaN";
    if (what === INF) return "Inf";
    if (what !== MEASURED) return "missing";
    return `${number(values[at(row, column)])}, ${ratio(ratios[at(row, column)]) || "usual"}`;
  };

  // ---- colors ----
  const look = () => data.looks[dark.matches ? "dark" : "light"];
  const mix = (stops, share) => {
    const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2), part = place - low;
    const channel = (stop, shift) => (parseInt(stop.slice(1), 16) >> shift) & 255;
    return [16, 8, 0].map((s) => Math.round(channel(stops[low], s) * (1 - part) + channel(stops[low + 1], s) * part));
  };

  // ---- the whole heatmap, drawn once for a size and a look ----
  const paint = () => {
    const paper = look(), scale = devicePixelRatio || 1;
    width = Math.max(200, element("plot").clientWidth - GUTTER - BARS - VALUE - 24);
    const size = Math.max(1, Math.floor(width * scale));
    picture = document.createElement("canvas");
    picture.width = size; picture.height = Math.max(1, Math.floor(rows * ROW * scale));
    const ink = picture.getContext("2d");
    const step = size / columns, high = ROW * scale;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const left = Math.floor(column * step), wide = Math.floor((column + 1) * step) - left || 1;
        const what = state[at(row, column)], level = ratios[at(row, column)];
        if (what === MEASURED && !Number.isNaN(level)) {
          ink.fillStyle = `rgb(${mix(paper.history, (Math.max(-6, Math.min(6, level)) + 6) / 12)})`;
        } else if (what === MEASURED) ink.fillStyle = paper.sunken;
        else if (what === INF || what === NAN) ink.fillStyle = paper.tint;
        else continue;
        ink.fillRect(left, Math.floor(row * high), wide, Math.ceil(high - scale));
      }
      textures(ink, row, step, high, scale, paper);
    }
  };
  // Anchored to the plot, so that neighbors join up: slanted lines for NaN, upright ones for Inf, dots where nothing came.
  const textures = (ink, row, step, high, scale, paper) => {
    for (let column = 0; column < columns; column++) {
      const what = state[at(row, column)];
      if (what === MEASURED) continue;
      let last = column;
      while (last + 1 < columns && state[at(row, last + 1)] === what) last++;
      const left = column * step, right = (last + 1) * step, top = row * high, bottom = top + high - scale;
      ink.save();
      ink.beginPath(); ink.rect(left, top, right - left, bottom - top); ink.clip();
      ink.strokeStyle = paper.crit; ink.fillStyle = paper.mark; ink.lineWidth = 1.35 * scale;
      ink.beginPath();
      if (what === NAN) {
        for (let x = Math.floor((left - high) / (8 * scale)) * 8 * scale; x < right; x += 8 * scale) {
          ink.moveTo(x, bottom); ink.lineTo(x + high, bottom - high);
        }
      } else if (what === INF) {
        for (let x = Math.floor(left / (5 * scale)) * 5 * scale; x < right; x += 5 * scale) { ink.moveTo(x, top); ink.lineTo(x, bottom); }
      } else {
        for (let x = Math.ceil(left / (4 * scale)) * 4 * scale; x < right; x += 4 * scale) ink.fillRect(x, top + high / 2, scale, scale);
      }
      ink.stroke();
      ink.restore();
      column = last;
    }
  };

  // ---- one moment ----
  const fit = (ink, text, room) => {
    if (ink.measureText(text).width <= room) return text;
    let keep = text.length;
    while (keep > 4 && ink.measureText(text.slice(0, keep / 2) + "…" + text.slice(-keep / 2)).width > room) keep -= 2;
    return text.slice(0, keep / 2) + "…" + text.slice(-keep / 2);
  };
  const draw = () => {
    const paper = look(), scale = devicePixelRatio || 1;
    const whole = GUTTER + width + BARS + VALUE, tall = TOP + rows * ROW;
    canvas.width = Math.floor(whole * scale); canvas.height = Math.floor(tall * scale);
    canvas.style.width = `${whole}px`; canvas.style.height = `${tall}px`;
    const ink = canvas.getContext("2d");
    ink.scale(scale, scale);
    ink.drawImage(picture, GUTTER, TOP, width, rows * ROW);
    ink.textBaseline = "middle";
    ink.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    const bars = GUTTER + width + 12, longest = BARS - 24;
    for (let row = 0; row < rows; row++) {
      const middle = TOP + row * ROW + ROW / 2;
      ink.fillStyle = row === chosen ? paper.ink : paper.ink2;
      ink.textAlign = "right";
      ink.fillText(fit(ink, data.labels[row], GUTTER - 12), GUTTER - 8, middle);
      ink.textAlign = "left";
      const what = state[at(row, cursor)], value = values[at(row, cursor)];
      ink.fillStyle = what >= INF ? paper.crit : paper.series;
      if (what === MEASURED && value > 0) ink.fillRect(bars, middle - 4, longest * length(value), 8);
      if (usual[row] > 0) { ink.fillStyle = paper.ink; ink.fillRect(bars + longest * length(usual[row]), middle - 6, 1.25, 12); }
      ink.fillStyle = what >= INF ? paper.crit : paper.ink2;
      ink.fillText(cell(row, cursor), bars + BARS - 12, middle);
      if (row === chosen) { ink.strokeStyle = paper.ink; ink.lineWidth = 1.25; ink.strokeRect(GUTTER, middle - ROW / 2, width, ROW - 1); }
    }
    axis(ink, paper);
  };
  const axis = (ink, paper) => {
    const x = GUTTER + (cursor + 0.5) * (width / columns), text = count(data.steps[cursor]);
    ink.font = "11px system-ui, sans-serif"; ink.fillStyle = paper.ink3;
    const half = ink.measureText(text).width / 2 + 5, middle = Math.min(Math.max(x, GUTTER + half), GUTTER + width - half);
    const first = count(data.steps[0]), last = count(data.lastStep);
    // A number half under the chip would read as another number.
    ink.textAlign = "left";
    if (GUTTER + ink.measureText(first).width + 4 < middle - half) ink.fillText(first, GUTTER, 9);
    ink.textAlign = "right";
    if (GUTTER + width - ink.measureText(last).width - 4 > middle + half) ink.fillText(last, GUTTER + width, 9);
    ink.fillStyle = paper.ink; ink.fillRect(x - 0.5, 18, 1, TOP - 18 + rows * ROW);
    ink.fillRect(middle - half, 1, 2 * half, 17);
    ink.fillStyle = paper.sheet; ink.textAlign = "center"; ink.fillText(text, middle, 10);
  };
  const length = (value) => {
    const [low, high] = data.range;
    return high > low ? Math.max(0.01, Math.min(1, Math.log(value / low) / Math.log(high / low))) : 0.5;
  };

  // ---- moving through it ----
  const show = (column, row = chosen) => {
    cursor = Math.min(Math.max(column, 0), columns - 1);
    chosen = Math.min(Math.max(row, 0), rows - 1);
    slider.value = String(cursor);
    slider.setAttribute("aria-valuetext", `step ${count(data.steps[cursor])}`);
    element("step").textContent = count(data.steps[cursor]);
    element("said").textContent = `${data.labels[chosen]}, step ${count(data.steps[cursor])}: ${cell(chosen, cursor)}`;
    draw();
  };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
  const start = () => {
    if (cursor === columns - 1) show(0);
    // Who asked for less motion gets two steps a second.
    const pause = calm.matches ? 500 : 1000 / Number(speed.value);
    timer = setInterval(() => { if (cursor >= columns - 1) stop(); else show(cursor + 1); }, pause);
    play.textContent = "Pause";
  };
  const toggle = () => (timer ? stop() : start());
  const point = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left - GUTTER, y = event.clientY - box.top - TOP;
    if (y >= 0) show(x >= 0 && x < width ? Math.floor((x / width) * columns) : cursor, Math.floor(y / ROW));
    else if (x >= 0 && x < width) show(Math.floor((x / width) * columns));
  };
  const keys = {
    " ": toggle, ArrowLeft: (far) => show(cursor - far), ArrowRight: (far) => show(cursor + far),
    j: () => show(cursor, chosen + 1), k: () => show(cursor, chosen - 1), ArrowDown: () => show(cursor, chosen + 1),
    ArrowUp: () => show(cursor, chosen - 1), Home: () => show(0), End: () => show(columns - 1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === speed || (event.target === play && event.key === " ")) return;
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(event.shiftKey ? 10 : 1); }
  });
  play.addEventListener("click", toggle);
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  speed.addEventListener("change", () => { if (timer) { stop(); start(); } });
  canvas.addEventListener("pointerdown", (event) => { stop(); canvas.setPointerCapture(event.pointerId); point(event); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) point(event); });
  const again = () => { paint(); show(cursor); };
  addEventListener("resize", again);
  dark.addEventListener("change", again);

  const ramp = element("ramp").getContext("2d");
  const key = () => {
    for (let x = 0; x < 96; x++) { ramp.fillStyle = `rgb(${mix(look().history, x / 95)})`; ramp.fillRect(x, 0, 1, 10); }
  };
  dark.addEventListener("change", key);
  slider.max = String(columns - 1);
  speed.value = data.speed;
  key();
  again();
  show(data.column);
})();
