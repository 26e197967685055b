// What a layer is made of: its attention heads over steps, its units at the cursor.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { floats, Mark } from "./data";
import { count, number } from "./format";
import { type Heads, type Units } from "./types";
import { texture } from "./paint";
import { type Scale } from "./plot";
import { offer, withdraw } from "./save";
import { cursor, tokens } from "./state";
import { ramps } from "./tokens";
import { Rules, type Ends, type Flag } from "./axis";

const UNPACKED = new WeakMap<object, Float32Array>();
function valuesOf(of: { values: string }): Float32Array {
  let found = UNPACKED.get(of);
  if (!found) {
    found = floats(of.values);
    UNPACKED.set(of, found);
  }
  return found;
}
const lookAt = (steps: number[], step: number | null): number => {
  let best = 0;
  steps.forEach((one, at) => {
    if (step === null || one <= step) best = at;
  });
  return best;
};
function ends(values: Float32Array): [number, number] {
  let low = Infinity,
    high = -Infinity;
  for (const one of values)
    if (one > 0 && Number.isFinite(one)) {
      low = Math.min(low, one);
      high = Math.max(high, one);
    }
  return [low, high];
}

/** One row a head; dark is a head that looks at few places. */
export function HeadMap({
  heads,
  scale,
  flags,
  ends: last,
  span,
}: {
  heads: Heads;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  span: [number, number];
}): JSX.Element {
  const t = tokens.value,
    ref = useRef<HTMLCanvasElement>(null);
  const pitch = heads.num > 24 ? 5 : 12,
    height = heads.num * pitch + 8;
  const values = valuesOf(heads),
    [smallest, high] = ends(values),
    low = Math.max(smallest, high * 1e-4);
  const log = high / low > 100,
    to = (value: number): number => (log ? Math.log(Math.max(value, low)) : value),
    from = to(high),
    until = to(low);
  useLayoutEffect(() => {
    const element = ref.current!,
      dpr = devicePixelRatio || 1;
    element.width = Math.round(scale.width * dpr);
    element.height = Math.round(height * dpr);
    element.style.width = `${scale.width}px`;
    element.style.height = `${height}px`;
    const context = element.getContext("2d")!,
      colors = ramps(t).value;
    context.clearRect(0, 0, element.width, element.height);
    heads.steps.forEach((step, at) => {
      const end =
        heads.steps[at + 1] ?? Math.min(span[1] + 1, step + Math.max(1, step - (heads.steps[at - 1] ?? step - 1)));
      const x0 = Math.round(Math.max(0, scale.x(step)) * dpr),
        x1 = Math.round(Math.min(scale.width, scale.x(end)) * dpr);
      if (x1 <= x0) return;
      for (let head = 0; head < heads.num; head++) {
        const value = values[at * heads.num + head],
          y = Math.round((4 + head * pitch) * dpr),
          tall = Math.round((pitch - 1) * dpr);
        context.fillStyle = Number.isFinite(value)
          ? colors[
              Math.max(0, Math.min(255, Math.round(((to(Math.max(value, 0)) - from) / (until - from || 1)) * 255)))
            ]
          : texture(context, Mark.NAN, t, dpr);
        context.fillRect(x0, y, x1 - x0, tall);
      }
    });
  }, [heads, scale.first, scale.last, scale.width, t]);
  useEffect(() => {
    offer("heads", {
      name: `Attention entropy of ${heads.module}`,
      head: ["step", "head", "nats"],
      rows: () =>
        heads.steps.flatMap((step, at) =>
          [...Array(heads.num).keys()].map((head) => [step, head, values[at * heads.num + head]]),
        ),
    });
    return () => withdraw("heads");
  }, [heads]);
  const now = lookAt(heads.steps, cursor.value);
  const lowest = [...Array(heads.num).keys()].reduce(
    (best, head) => (values[now * heads.num + head] < values[now * heads.num + best] ? head : best),
    0,
  );
  const every = pitch < 12 ? 4 : 1;
  return (
    <div class="panel track heads">
      <div class="gutter">
        <b>Attention entropy</b>
        <small>
          {heads.num} heads, nats{log ? ", log" : ""}
        </small>
        <small>
          dark: {smallest < low ? "under " : ""}
          {number(low)}, light: {number(high)}
        </small>
      </div>
      <div class="plot stack">
        <canvas
          ref={ref}
          role="img"
          data-panel="heads"
          aria-label={`Attention entropy of ${heads.num} heads over steps; at step ${count(heads.steps[now])} head ${lowest} is lowest with ${number(values[now * heads.num + lowest])} nats`}
        />
        <svg class="over" width={scale.width} height={height} aria-hidden="true">
          {[...Array(heads.num).keys()]
            .filter((head) => head % every === 0)
            .map((head) => (
              <text x="-8" y={4 + head * pitch + pitch / 2 + 3} text-anchor="end" class="tick">
                {head}
              </text>
            ))}
          <Rules scale={scale} height={height} flags={flags} ends={last} />
        </svg>
      </div>
      <div class="values heads">
        {every === 1 &&
          [...Array(heads.num).keys()].map((head) => (
            <span class={head === lowest ? "strong" : ""}>{number(values[now * heads.num + head])}</span>
          ))}
      </div>
    </div>
  );
}

const WIDTH = 346;
/** Every unit a cell, by what reached it; a bar where nothing did. */
export function UnitMap({ units }: { units: Units }): JSX.Element {
  const t = tokens.value,
    ref = useRef<HTMLCanvasElement>(null);
  const values = valuesOf(units),
    now = lookAt(units.steps, cursor.value);
  const [lowest, high] = ends(values),
    low = Math.max(lowest, high * 1e-5);
  const columns = Math.min(units.num, Math.max(16, Math.ceil(Math.sqrt(units.num * 6)))),
    rows = Math.ceil(units.num / columns);
  const cell = WIDTH / columns,
    tall = Math.max(3, Math.min(14, cell));
  const silent = values.subarray(now * units.num, (now + 1) * units.num).filter((one) => one === 0).length;
  useLayoutEffect(() => {
    const element = ref.current!,
      dpr = devicePixelRatio || 1;
    element.width = WIDTH * dpr;
    element.height = Math.ceil(rows * tall * dpr);
    element.style.width = `${WIDTH}px`;
    element.style.height = `${rows * tall}px`;
    const context = element.getContext("2d")!,
      colors = ramps(t).value;
    context.clearRect(0, 0, element.width, element.height);
    for (let unit = 0; unit < units.num; unit++) {
      const value = values[now * units.num + unit];
      const share = high > low ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 0.5;
      context.fillStyle =
        value === 0
          ? texture(context, Mark.DEAD, t, dpr)
          : !Number.isFinite(value)
            ? texture(context, Mark.NAN, t, dpr)
            : colors[Math.max(0, Math.min(255, Math.round(share * 255)))];
      const x = Math.round((unit % columns) * cell * dpr),
        y = Math.round(Math.floor(unit / columns) * tall * dpr);
      context.fillRect(
        x,
        y,
        Math.max(1, Math.round(cell * dpr) - (cell > 4 ? 1 : 0)),
        Math.max(1, Math.round(tall * dpr) - (tall > 3 ? 1 : 0)),
      );
    }
  }, [units, now, t]);
  useEffect(() => {
    offer("units", {
      name: `Units of ${units.site}`,
      head: ["step", "unit", units.what],
      rows: () =>
        units.steps.flatMap((step, at) =>
          [...Array(units.num).keys()].map((unit) => [step, unit, values[at * units.num + unit]]),
        ),
    });
    return () => withdraw("units");
  }, [units]);
  const words = `${count(silent)} of ${count(units.num)} ${units.word}`;
  return (
    <section>
      <h2>
        <span>Units of {units.site.split(".").slice(-2).join(".")}</span>
        <small>
          {words}, step {count(units.steps[now])}
        </small>
      </h2>
      <canvas
        ref={ref}
        class="unitmap"
        role="img"
        data-panel="units"
        aria-label={`Units of ${units.site} at step ${count(units.steps[now])}: ${words}`}
      />
      <p class="note">
        {units.what === "unit_gradient" ? "Largest gradient of each unit" : "How strongly each unit fired"},{" "}
        {number(low)} to {number(high)}, log.
      </p>
    </section>
  );
}
