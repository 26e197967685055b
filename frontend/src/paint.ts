// Cells on a canvas: colors from the ramps, a texture for everything that is not a plain number.
import { Mark, type Heat } from "./data";
import { RANGE, ramps, type Tokens } from "./tokens";

type Context = CanvasRenderingContext2D;
const TILES = new Map<string, CanvasPattern | null>();

function tile(context: Context, key: string, w: number, h: number, draw: (c: Context) => void): CanvasPattern | null {
  let found = TILES.get(key);
  if (found === undefined) {
    const canvas = document.createElement("canvas");
    canvas.width = w;
    canvas.height = h;
    draw(canvas.getContext("2d")!);
    found = context.createPattern(canvas, "repeat");
    TILES.set(key, found);
  }
  return found;
}

/** The texture of a mark, anchored to the canvas so that neighbors join up. */
export function texture(context: Context, mark: number, t: Tokens, dpr: number): CanvasPattern | string {
  const px = (n: number): number => Math.max(1, Math.round(n * dpr));
  const key = `${mark}-${t.sheet}-${dpr}`;
  switch (mark) {
    case Mark.NAN: {
      const n = px(8);
      return (
        tile(context, key, n, n, (c) => {
          c.fillStyle = t.critTint;
          c.fillRect(0, 0, n, n);
          c.strokeStyle = t.crit;
          c.lineWidth = 1.35 * dpr;
          c.beginPath();
          for (const at of [-n, 0, n]) {
            c.moveTo(at - 2, n + 2);
            c.lineTo(at + n + 2, -2);
          }
          c.stroke();
        }) ?? t.crit
      );
    }
    case Mark.INF: {
      const n = px(5);
      return (
        tile(context, key, n, n, (c) => {
          c.fillStyle = t.critTint;
          c.fillRect(0, 0, n, n);
          c.fillStyle = t.crit;
          c.fillRect(0, 0, px(1.2), n);
          c.fillRect(0, 0, n, px(1.2));
        }) ?? t.crit
      );
    }
    case Mark.MISSING: {
      const n = px(4);
      return (
        tile(context, key, n, n, (c) => {
          c.fillStyle = t.sheet;
          c.fillRect(0, 0, n, n);
          c.fillStyle = t.mark;
          c.globalAlpha = 0.75;
          c.fillRect(0, 0, px(1), px(1));
        }) ?? t.sheet
      );
    }
    case Mark.FROZEN: {
      const n = px(4);
      return (
        tile(context, key, n, n, (c) => {
          c.fillStyle = t.well;
          c.fillRect(0, 0, n, n);
          c.fillStyle = t.line2;
          c.fillRect(0, 0, px(1), n);
        }) ?? t.well
      );
    }
    case Mark.EQUAL:
      return t.sunken;
    default:
      return t.sunken;
  }
}

export interface Look {
  raw: boolean;
  low: number;
  high: number;
  log: boolean;
}
export function valueRange(heat: Heat): Look {
  let low = Infinity,
    high = -Infinity;
  for (let at = 0; at < heat.values.length; at++) {
    const value = heat.values[at];
    if (heat.marks[at] === Mark.PLAIN && Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!Number.isFinite(low)) {
    low = 0;
    high = 1;
  }
  return { raw: true, low, high, log: low > 0 && high / low > 100 };
}

/** One row of cells between y and y + height, in device pixels. */
export function paintRow(
  context: Context,
  heat: Heat,
  at: number,
  x: (step: number) => number,
  y: number,
  height: number,
  t: Tokens,
  dpr: number,
  look: Look,
  right: number,
): void {
  const { history, value: valueRamp } = ramps(t);
  const usual = heat.usual[at];
  const log2Usual = Math.log2(usual);
  const lowLog = Math.log(look.low),
    highLog = Math.log(look.high);
  for (let column = 0; column < heat.count; column++) {
    const start = heat.start + column * heat.size;
    const x0 = Math.max(0, Math.round(x(start))),
      x1 = Math.min(right, Math.round(x(start + heat.size)));
    if (x1 <= x0) continue;
    const place = at * heat.count + column;
    const mark = heat.marks[place];
    const value = Math.abs(heat.values[place]);
    let off = 0;
    if (mark === Mark.PLAIN) {
      if (look.raw) {
        const given = heat.values[place];
        const share = look.log
          ? (Math.log(Math.abs(given)) - lowLog) / (highLog - lowLog || 1)
          : (given - look.low) / (look.high - look.low || 1);
        context.fillStyle =
          valueRamp[Math.max(0, Math.min(255, Math.round((Number.isFinite(share) ? share : 0) * 255)))];
      } else {
        let level = Math.log2(value) - log2Usual;
        if (value === 0 && usual === 0) level = 0;
        if (Number.isNaN(level)) level = 0;
        off = level > RANGE ? 1 : level < -RANGE ? -1 : 0;
        context.fillStyle = history[Math.max(0, Math.min(255, Math.round(((level + RANGE) / (2 * RANGE)) * 255)))];
      }
      context.fillRect(x0, y, x1 - x0, height);
      if (off && x1 - x0 >= 5 * dpr) {
        // a notch: beyond the end of the scale
        const middle = (x0 + x1) / 2,
          tip = off > 0 ? y + 2 * dpr : y + height - 2 * dpr,
          base = off > 0 ? y + 5 * dpr : y + height - 5 * dpr;
        context.fillStyle = t.sheet;
        context.beginPath();
        context.moveTo(middle - 3 * dpr, base);
        context.lineTo(middle, tip);
        context.lineTo(middle + 3 * dpr, base);
        context.fill();
      }
      continue;
    }
    context.fillStyle = texture(context, mark, t, dpr);
    context.fillRect(x0, y, x1 - x0, height);
    if (mark === Mark.DEAD) {
      context.fillStyle = t.ink2;
      context.fillRect(x0, y + Math.round(height / 2 - 2 * dpr), x1 - x0, Math.round(4 * dpr));
    }
    if (mark === Mark.SKIPPED) {
      context.fillStyle = t.mark;
      context.fillRect(x0 + (x1 - x0) * 0.2, y + Math.round(height / 2), (x1 - x0) * 0.6, Math.max(1, dpr));
    }
  }
}

/** A small picture of a whole run for the list: levels in sixteenths around 128. */
export function paintThumb(
  canvas: HTMLCanvasElement,
  rows: number,
  count: number,
  levels: Uint8Array,
  marks: Uint8Array,
  t: Tokens,
  width: number,
  height: number,
): void {
  const dpr = devicePixelRatio || 1;
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  const context = canvas.getContext("2d")!;
  const { history } = ramps(t);
  for (let row = 0; row < rows; row++) {
    const y0 = Math.round((row * canvas.height) / rows),
      y1 = Math.round(((row + 1) * canvas.height) / rows);
    for (let column = 0; column < count; column++) {
      const x0 = Math.round((column * canvas.width) / count),
        x1 = Math.round(((column + 1) * canvas.width) / count);
      const at = row * count + column;
      context.fillStyle =
        marks[at] === Mark.PLAIN
          ? history[Math.max(0, Math.min(255, Math.round((((levels[at] - 128) / 16 + RANGE) / (2 * RANGE)) * 255)))]
          : texture(context, marks[at], t, dpr);
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
    }
  }
}
