// What the gradient is at a node and a step, and how far from usual.
import { Mark, floats, small } from "./data";
import { type FlowData } from "./types";

export interface Values {
  start: number;
  size: number;
  count: number;
  values: Float32Array;
  marks: Uint8Array;
  usual: Float32Array;
}
export const nodeValues = (found: FlowData): Values => ({
  start: found.start,
  size: found.size,
  count: found.count,
  values: floats(found.values),
  marks: small(found.marks),
  usual: floats(found.usual),
});
export interface Reading {
  value: number | null;
  level: number;
  mark: number;
}
export function read(of: Values, row: number, step: number): Reading {
  if (row < 0) return { value: null, level: 0, mark: Mark.MISSING };
  const column = Math.max(0, Math.min(of.count - 1, Math.floor((step - of.start) / of.size)));
  const mark = of.marks[row * of.count + column],
    value = of.values[row * of.count + column],
    usual = of.usual[row];
  if (mark === Mark.NAN || mark === Mark.INF) return { value: mark === Mark.NAN ? NaN : Infinity, level: 0, mark };
  if (mark !== Mark.PLAIN && mark !== Mark.DEAD) return { value: null, level: 0, mark };
  const level = usual > 0 ? Math.log2(Math.abs(value) / usual) : 0;
  return { value: Math.abs(value), level: Number.isFinite(level) ? level : level < 0 ? -6 : 6, mark };
}
/** Width of a ribbon: log of the gradient between the smallest and the largest on the screen. */
export function widthOf(value: number | null, low: number, high: number): number {
  if (value === null || !Number.isFinite(value) || value <= 0) return 2;
  return 1.5 + 14 * Math.max(0, Math.min(1, (Math.log(value) - low) / (high - low || 1))) ** 1.7;
}
export function extent(of: Values): [number, number] {
  const logs: number[] = [];
  for (let at = 0; at < of.values.length; at++)
    if (of.marks[at] === Mark.PLAIN && of.values[at] > 0) logs.push(Math.log(of.values[at]));
  logs.sort((a, b) => a - b);
  return logs.length ? [logs[Math.floor(logs.length * 0.02)], logs[Math.floor(logs.length * 0.999)]] : [0, 1];
}
/** From which step on, up to this one, a node has been so; null where it is not. */
export function lastedSince(of: Values, row: number, step: number, test: (level: number) => boolean): number | null {
  let found: number | null = null;
  for (
    let column = Math.max(0, Math.min(of.count - 1, Math.floor((step - of.start) / of.size)));
    row >= 0 && column >= 0;
    column--
  ) {
    const at = of.start + column * of.size,
      now = read(of, row, at);
    if (now.value === null || !Number.isFinite(now.value) || !test(now.level)) break;
    found = at;
  }
  return found;
}
