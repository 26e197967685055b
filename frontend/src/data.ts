// What the server sends, and how its packed arrays are opened.
import type { HeatData, Packed } from "./types";
export interface Line {
  start: number;
  size: number;
  count: number;
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
  marks: Uint8Array;
}
export interface Heat {
  kind: string;
  stat: string;
  start: number;
  size: number;
  count: number;
  rows: number[];
  place: Map<number, number>;
  values: Float32Array;
  marks: Uint8Array;
  usual: Float32Array;
}
export const Mark = { PLAIN: 0, MISSING: 1, SKIPPED: 2, FROZEN: 3, DEAD: 4, INF: 5, NAN: 6, EQUAL: 7 } as const;

function bytes(packed: string): Uint8Array {
  const raw = atob(packed);
  const out = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) out[at] = raw.charCodeAt(at);
  return out;
}
export const floats = (packed: string): Float32Array => new Float32Array(bytes(packed).buffer);
export const small = (packed: string): Uint8Array => bytes(packed);

const LINES = new WeakMap<Packed, Line>();
export function line(packed: Packed): Line {
  let found = LINES.get(packed);
  if (!found) {
    const mean = floats(packed.mean);
    found = {
      start: packed.start,
      size: packed.size,
      count: packed.count,
      mean,
      low: packed.low ? floats(packed.low) : mean,
      high: packed.high ? floats(packed.high) : mean,
      marks: small(packed.marks),
    };
    LINES.set(packed, found);
  }
  return found;
}
export function heat(packed: HeatData): Heat {
  return {
    kind: packed.kind,
    stat: packed.stat,
    start: packed.start,
    size: packed.size,
    count: packed.count,
    rows: packed.rows,
    place: new Map(packed.rows.map((row, at) => [row, at])),
    values: floats(packed.values),
    marks: small(packed.marks),
    usual: floats(packed.usual),
  };
}
/** The value of a line at a step: NaN for NaN, null where there is nothing. */
export function valueAt(of: Line, step: number): number | null {
  const at = Math.floor((step - of.start) / of.size);
  if (at < 0 || at >= of.count || of.marks[at] === Mark.MISSING) return null;
  return of.marks[at] === Mark.NAN ? NaN : of.marks[at] === Mark.INF ? Infinity : of.mean[at];
}
