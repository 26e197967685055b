// Where in the graph the gradient dies, explodes or fades, and where its labels find room.
import { type Reading } from "./flow_values";
import { count, number, ratio } from "./format";
import { type Box, type Layout } from "./layout";
import { type FlowData } from "./types";

interface Spot {
  words: string;
  x: number;
  y: number;
  anchor: "start" | "middle" | "end";
}
/** Where a node's words cover no ribbon and no other node: beside it, over it or under it. */
export function freeSpots(layout: Layout, turns: Turn[]): Spot[] {
  const drawn = layout.ribbons
    .filter((one) => !one.straight)
    .map((one) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", one.d);
      const length = path.getTotalLength();
      return Array.from({ length: Math.max(2, Math.ceil(length / 5)) }, (_, n) => path.getPointAtLength(n * 5));
    })
    .flat();
  const taken: [number, number, number, number][] = layout.boxes.map((one) => [
    one.x - one.w / 2,
    one.y - one.h / 2,
    one.x + one.w / 2,
    one.y + one.h / 2,
  ]);
  const frame = layout.opened;
  return turns.flatMap((turn) => {
    const box = layout.boxes.find((one) => one.path === turn.path);
    if (!box?.label) return [];
    const w = turn.words.length * 6.8,
      half = box.w / 2,
      inside = within(frame, box);
    const choices: Spot[] = [
      { words: turn.words, x: box.x + half + 7, y: box.y + 4, anchor: "start" },
      { words: turn.words, x: box.x - half - 7, y: box.y + 4, anchor: "end" },
      { words: turn.words, x: box.x, y: box.y - box.h / 2 - 6, anchor: "middle" },
      { words: turn.words, x: box.x, y: box.y + box.h / 2 + 14, anchor: "middle" },
    ];
    const cost = (one: Spot): number => {
      const x0 = one.anchor === "start" ? one.x : one.anchor === "end" ? one.x - w : one.x - w / 2,
        [x1, y0, y1] = [x0 + w, one.y - 11, one.y + 3];
      const hits = drawn.filter(
        (point) => point.x > x0 - 4 && point.x < x1 + 4 && point.y > y0 - 3 && point.y < y1 + 3,
      ).length;
      const crossed = taken.filter(([a, b, c, d]) => a < x1 + 3 && c > x0 - 3 && b < y1 && d > y0).length;
      const out =
        x0 < 4 ||
        x1 > layout.width - 4 ||
        (inside && frame !== null && (x0 < frame.x + 2 || x1 > frame.x + frame.w - 2))
          ? 1
          : 0;
      return hits + 8 * crossed + 6 * out;
    };
    const best = choices.map((one) => [one, cost(one)] as const).sort((a, b) => a[1] - b[1])[0][0];
    const x0 = best.anchor === "start" ? best.x : best.anchor === "end" ? best.x - w : best.x - w / 2;
    taken.push([x0, best.y - 11, x0 + w, best.y + 3]);
    return [best];
  });
}
interface Turn {
  path: string;
  level: number;
  words: string;
  note: string;
}
/** Where the gradient grows or shrinks far more than usual on its way through a node. */
export function turnsOf(layout: Layout, at: (path: string) => Reading): Turn[] {
  const out: Turn[] = [];
  for (const ribbon of layout.ribbons) {
    const before = at(ribbon.target),
      after = at(ribbon.source);
    const sound = (one: Reading): boolean => one.value !== null && Number.isFinite(one.value) && one.value > 0;
    if (ribbon.cut || ribbon.straight || !sound(before) || !sound(after)) continue;
    const level = after.level - before.level;
    if (Math.abs(level) < 2) continue;
    out.push({
      path: ribbon.source,
      level,
      words: level > 0 ? `◂▸ ×${number(2 ** level)}` : `▸◂ ${ratio(2 ** level)}`,
      note:
        level > 0
          ? `multiplies it by ${number(2 ** level)} more than usual`
          : `lets ${ratio(2 ** level)} of the usual through`,
    });
  }
  return out
    .sort((a, b) => Math.abs(b.level) - Math.abs(a.level))
    .filter((one, n, all) => all.findIndex((other) => other.path === one.path) === n)
    .slice(0, 3);
}
interface Region {
  /** Inside the opened module, where words would cover its parts. */ quiet?: boolean;
  kind: "dying" | "exploding" | "fading";
  name: string;
  since: string;
  note: string;
  x: number;
  y: number;
  w: number;
  h: number;
}
/** Stretches of neighbors that are all far from usual. */
export function regionsOf(
  found: FlowData,
  layout: Layout,
  at: (path: string) => Reading,
  began: (path: string, test: (level: number) => boolean) => number | null,
): Region[] {
  const out: Region[] = [];
  const { dying, exploding, fading } = found.thresholds;
  const boxes = layout.boxes.filter(
    (one) => one.role === "module" && at(one.path).value !== null && Number.isFinite(at(one.path).value!),
  );
  const inner = boxes.filter((one) => within(layout.opened, one)),
    outside = boxes.filter((one) => !inner.includes(one)).sort(alongFlow);
  const name = (run: Box[]): string => {
    const parts = [...new Set(run.map((one) => (inner.includes(one) ? one.path : one.layer || one.path)))];
    return parts.length > 1 ? `${parts[0]} to ${parts[parts.length - 1]}` : parts[0];
  };
  const since = (run: Box[], test: (level: number) => boolean): string => {
    const steps = run.map((one) => began(one.path, test)).filter((step): step is number => step !== null);
    return steps.length ? `since step ${count(Math.min(...steps))}` : "";
  };
  const heat = (run: Box[]): void => {
    if (run.length)
      out.push({
        kind: "exploding",
        quiet: run.some((one) => inner.includes(one)),
        name: "Exploding",
        since: since(run, (level) => level >= exploding),
        note: `${name(run)}, up to ${ratio(2 ** Math.max(...run.map((one) => at(one.path).level)))}`,
        ...clear(
          layout,
          around(run, 10),
          run.some((one) => inner.includes(one)),
        ),
      });
  };
  for (const run of stretchesOf(outside, (one) => at(one.path).level >= exploding)) heat(run);
  heat(inner.filter((one) => at(one.path).level >= exploding));
  for (const [kind, limit] of [
    ["dying", dying],
    ["fading", fading],
  ] as const) {
    const is = (level: number): boolean => level <= limit && (kind === "dying" || level > dying);
    for (const run of stretchesOf(outside, (one) => is(at(one.path).level))) {
      if (new Set(run.map((one) => one.layer)).size < 2) continue;
      const worst = Math.min(...run.map((one) => at(one.path).level));
      out.push({
        kind,
        name: kind === "dying" ? "Dying" : "Fading",
        since: since(run, (level) => level <= limit),
        note: `${name(run)}, ${ratio(2 ** worst)} of usual`,
        ...clear(layout, around(run, 14), false),
      });
    }
  }
  return out.slice(0, 4);
}
/** In the order in which the picture is read: rows of a folded chain, then from left to right. */
const alongFlow = (a: Box, b: Box): number => (a.band ?? 0) - (b.band ?? 0) || a.x - b.x;
/** Neighbors that all pass; a stretch does not go on over the end of a row. */
function stretchesOf(boxes: Box[], passes: (one: Box) => boolean): Box[][] {
  const out: Box[][] = [];
  let open = false;
  for (const one of boxes) {
    if (!passes(one)) {
      open = false;
      continue;
    }
    const last = out[out.length - 1];
    if (open && (last[0].band ?? 0) === (one.band ?? 0)) last.push(one);
    else out.push([one]);
    open = true;
  }
  return out;
}
const within = (frame: Layout["opened"], one: Box): boolean =>
  frame !== null && one.x > frame.x && one.x < frame.x + frame.w && one.y > frame.y && one.y < frame.y + frame.h;
/** A region outside the opened module ends where that begins. */
function clear<R extends { x: number; y: number; w: number; h: number }>(
  layout: Layout,
  region: R,
  inside: boolean,
): R {
  const frame = layout.opened,
    gap = 6;
  if (
    !frame ||
    inside ||
    region.y > frame.y + frame.h ||
    region.x > frame.x + frame.w + gap ||
    region.x + region.w < frame.x - gap
  )
    return region;
  if (region.x < frame.x) return { ...region, w: frame.x - gap - region.x };
  const x = frame.x + frame.w + gap;
  return { ...region, x, w: Math.max(20, region.x + region.w - x) };
}
function around(boxes: Box[], pad: number): { x: number; y: number; w: number; h: number } {
  const x0 = Math.min(...boxes.map((one) => one.x - one.w / 2)) - pad,
    x1 = Math.max(...boxes.map((one) => one.x + one.w / 2)) + pad;
  const y0 = Math.min(...boxes.map((one) => one.y - one.h / 2)) - pad,
    y1 = Math.max(...boxes.map((one) => one.y + one.h / 2)) + pad;
  return { x: x0, y: y0, w: x1 - x0, h: y1 - y0 };
}
