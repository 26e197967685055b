// Steps to pixels, ticks, and paths: what every picture with an axis shares.
import { Mark, type Line } from "./data";
import { count } from "./format";

export interface Scale {
  first: number;
  last: number;
  width: number;
  x: (step: number) => number;
  step: (x: number) => number;
}
/** Steps first..last inclusive over the width; a step's cell begins at x(step) and ends at x(step + 1). */
export function scaleOf(first: number, last: number, width: number): Scale {
  const span = Math.max(1, last + 1 - first);
  return {
    first,
    last,
    width,
    x: (step) => ((step - first) / span) * width,
    step: (x) => Math.max(first, Math.min(last, Math.floor(first + (x / width) * span))),
  };
}

const NICE = [1, 2, 5];
export function niceStep(span: number, most: number): number {
  let size = 1;
  for (let power = 0; ; power++)
    for (const base of NICE) {
      size = base * 10 ** power;
      if (span / size <= most) return size;
    }
}
export function stepTicks(scale: Scale, most: number): number[] {
  const size = niceStep(scale.last - scale.first + 1, most);
  const out: number[] = [];
  for (let at = Math.ceil(scale.first / size) * size; at <= scale.last; at += size) out.push(at);
  return out;
}

export interface Range {
  low: number;
  high: number;
  log: boolean;
}
export function rangeOf(lines: Line[], scale: Scale, log: boolean, limits: number[] = []): Range {
  let low = Infinity,
    high = -Infinity;
  for (const one of lines) {
    for (let at = 0; at < one.count; at++) {
      const start = one.start + at * one.size;
      if (start > scale.last || start + one.size <= scale.first) continue;
      const a = one.low[at],
        b = one.high[at];
      if (Number.isFinite(a) && (!log || a > 0)) low = Math.min(low, a);
      if (Number.isFinite(b) && (!log || b > 0)) high = Math.max(high, b);
    }
  }
  for (const value of limits)
    if (Number.isFinite(value) && (!log || value > 0) && Number.isFinite(low)) {
      const near = log
        ? value < high * 1e3 && value > low / 1e3
        : value < high + 2 * (high - low || Math.abs(high)) && value > low - 2 * (high - low || Math.abs(low));
      if (near) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  if (!Number.isFinite(low)) return { low: 0, high: 1, log: false };
  if (log) return { low: low / 1.3, high: high * 1.3, log };
  const pad = (high - low) * 0.12 || Math.abs(high) * 0.05 || 0.5;
  return { low: low - pad, high: high + pad, log };
}
export function yOf(range: Range, height: number, pad = 5): (value: number) => number {
  const f = range.log ? Math.log10 : (v: number) => v;
  const low = f(range.low),
    high = f(range.high);
  return (value) => height - pad - ((f(value) - low) / (high - low || 1)) * (height - 2 * pad);
}
export function valueTicks(range: Range, most = 3): number[] {
  if (range.log) {
    const low = Math.ceil(Math.log10(range.low)),
      high = Math.floor(Math.log10(range.high));
    const every = Math.max(1, Math.ceil((high - low + 1) / most));
    const out: number[] = [];
    for (let power = low; power <= high; power += every) out.push(10 ** power);
    return out.length ? out : [range.low * 1.3];
  }
  const span = range.high - range.low;
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((base) => base * power).find((one) => span / one <= most) ?? rough;
  const out: number[] = [];
  for (let at = Math.ceil(range.low / size) * size; at <= range.high + size * 1e-9; at += size)
    out.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return out;
}
export function tickLabel(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const power = Math.floor(Math.log10(size) + 1e-9),
      mantissa = value / 10 ** power;
    const sup = String(power)
      .replace("-", "⁻")
      .replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)]);
    return Math.abs(mantissa - 1) < 1e-6 ? `10${sup}` : `${Number(mantissa.toPrecision(2))}×10${sup}`;
  }
  return size >= 1000 ? count(value) : String(Number(value.toPrecision(3)));
}

/** The mean as a path with gaps where there is no number; the band between lowest and highest as another. */
export function paths(
  of: Line,
  scale: Scale,
  y: (value: number) => number,
  log: boolean,
): { mean: string; band: string } {
  let mean = "",
    band = "",
    open = false;
  let top: string[] = [],
    bottom: string[] = [];
  const close = (): void => {
    if (top.length > 1) band += `M${top.join("L")}L${bottom.reverse().join("L")}Z`;
    top = [];
    bottom = [];
  };
  for (let at = 0; at < of.count; at++) {
    const start = of.start + at * of.size;
    if (start + of.size < scale.first || start > scale.last) continue;
    const value = of.mean[at];
    if (of.marks[at] === Mark.MISSING) {
      if (of.size > 1 || true) continue;
    }
    if (!Number.isFinite(value) || (log && value <= 0) || of.marks[at] >= Mark.INF) {
      open = false;
      close();
      continue;
    }
    const x = (Math.max(0, scale.x(start)) + Math.min(scale.width, scale.x(start + of.size))) / 2;
    const point = `${x.toFixed(1)} ${y(value).toFixed(1)}`;
    mean += `${open ? "L" : "M"}${point}`;
    open = true;
    if (of.low !== of.mean) {
      top.push(`${x.toFixed(1)} ${y(of.high[at]).toFixed(1)}`);
      bottom.push(`${x.toFixed(1)} ${y(Math.max(of.low[at], log ? 1e-300 : -Infinity)).toFixed(1)}`);
    }
  }
  close();
  return { mean, band };
}
/** Stretches of bins with a mark, as [x, width]. */
export function stretches(of: Line, scale: Scale, mark: number): [number, number][] {
  const out: [number, number][] = [];
  let begin = -1;
  for (let at = 0; at <= of.count; at++) {
    const is = at < of.count && of.marks[at] === mark;
    if (is && begin < 0) begin = at;
    if (!is && begin >= 0) {
      const a = Math.max(0, scale.x(of.start + begin * of.size)),
        b = Math.min(scale.width, scale.x(of.start + at * of.size));
      if (b > a) out.push([a, b - a]);
      begin = -1;
    }
  }
  return out;
}
/** A sentence for a line: "Loss, steps 1,772 to 1,946: 3.11 at first, 7.86 at most, NaN from 1,934". */
export function sentence(label: string, of: Line, scale: Scale, words: (value: number) => string): string {
  let first: number | null = null,
    last = 0,
    low = Infinity,
    high = -Infinity,
    broken: number | null = null,
    brokenWord = "";
  for (let at = 0; at < of.count; at++) {
    const start = of.start + at * of.size;
    if (start > scale.last || start + of.size <= scale.first) continue;
    if (of.marks[at] >= Mark.INF && broken === null) {
      broken = start;
      brokenWord = of.marks[at] === Mark.NAN ? "NaN" : "Inf";
    }
    if (!Number.isFinite(of.mean[at])) continue;
    if (first === null) first = of.mean[at];
    last = of.mean[at];
    low = Math.min(low, of.low[at]);
    high = Math.max(high, of.high[at]);
  }
  if (first === null)
    return `${label}, steps ${count(scale.first)} to ${count(scale.last)}: ${broken === null ? "nothing recorded" : `${brokenWord} throughout`}`;
  return `${label}, steps ${count(scale.first)} to ${count(scale.last)}: ${words(first)} at first, ${words(last)} at last, between ${words(low)} and ${words(high)}${broken === null ? "" : `, ${brokenWord} from ${count(broken)}`}`;
}
