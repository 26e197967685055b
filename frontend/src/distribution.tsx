// The distribution of a tensor over steps: by sign and power of two, and as percentiles.
import { type JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { type Ends, type Flag, Rules } from "./axis";
import { Mark, floats } from "./data";
import { KIND_NAMES, amount, count, number } from "./format";
import { texture } from "./paint";
import { type Scale } from "./plot";
import { cursor, tokens } from "./state";
import { ramps } from "./tokens";
import { type Pictures } from "./types";

const UNPACKED = new WeakMap<
  Pictures,
  { negative: Float32Array; positive: Float32Array; zero: Float32Array; percentiles: Record<string, Float32Array> }
>();
export function unpack(of: Pictures): {
  negative: Float32Array;
  positive: Float32Array;
  zero: Float32Array;
  percentiles: Record<string, Float32Array>;
} {
  let found = UNPACKED.get(of);
  if (!found) {
    found = {
      negative: floats(of.negative),
      positive: floats(of.positive),
      zero: floats(of.zero),
      percentiles: Object.fromEntries(Object.entries(of.percentiles).map(([name, packed]) => [name, floats(packed)])),
    };
    UNPACKED.set(of, found);
  }
  return found;
}
const SPECTRUM = 168;
export const power = (exponent: number): string =>
  `2${String(exponent)
    .replace("-", "⁻")
    .replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)])}`;
/** Every value by sign and power of two, over steps: mirrored at zero. */
export function Spectrum({
  pictures,
  scale,
  flags,
  ends,
  span,
  tensors,
  tensor,
  onTensor,
}: {
  pictures: Pictures;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  span: [number, number];
  tensors: string[];
  tensor: number;
  onTensor: (at: number) => void;
}): JSX.Element {
  const ref = useRef<HTMLCanvasElement>(null);
  const t = tokens.value;
  const bins = pictures.top - pictures.bottom;
  const half = SPECTRUM / 2;
  useLayoutEffect(() => {
    const element = ref.current!,
      dpr = devicePixelRatio || 1;
    element.width = Math.round(scale.width * dpr);
    element.height = SPECTRUM * dpr;
    element.style.width = `${scale.width}px`;
    element.style.height = `${SPECTRUM}px`;
    const context = element.getContext("2d")!,
      colors = ramps(t).value,
      { negative, positive, zero } = unpack(pictures);
    context.fillStyle = colors[0];
    context.fillRect(0, 0, Math.round(scale.x(Math.min(scale.last, span[1]) + 1) * dpr), element.height);
    const cell = (half * dpr) / Math.max(1, bins);
    pictures.steps.forEach((step, at) => {
      const end = pictures.steps[at + 1] ?? Math.min(span[1] + 1, step + (step - (pictures.steps[at - 1] ?? step - 1)));
      const x0 = Math.round(Math.max(0, scale.x(step)) * dpr),
        x1 = Math.round(Math.min(scale.width, scale.x(end)) * dpr);
      if (x1 <= x0) return;
      let most = 0,
        total = zero[at];
      for (let k = 0; k < bins; k++) {
        most = Math.max(most, positive[at * bins + k], negative[at * bins + k]);
        total += positive[at * bins + k] + negative[at * bins + k];
      }
      if (!total) {
        context.fillStyle = texture(context, Mark.NAN, t, dpr);
        context.fillRect(x0, 0, x1 - x0, element.height);
        return;
      }
      for (let k = 0; k < bins; k++) {
        const up = positive[at * bins + k],
          down = negative[at * bins + (bins - 1 - k)];
        const paint = (value: number, y: number): void => {
          if (!value) return;
          context.fillStyle = colors[Math.max(8, Math.min(255, Math.round((value / most) ** 0.6 * 255)))];
          context.fillRect(x0, Math.floor(y), x1 - x0, Math.ceil(cell));
        };
        paint(up, half * dpr - (k + 1) * cell);
        paint(down, half * dpr + k * cell);
      }
    });
    context.fillStyle = t.sheet;
    context.fillRect(0, Math.round(half * dpr), element.width, Math.max(1, dpr));
  }, [pictures, scale.first, scale.last, scale.width, t]);
  const ticks = [0.3, 0.75].map((share) => Math.round(pictures.bottom + bins * share));
  const y = (exponent: number, sign: number): number =>
    half - sign * ((exponent - pictures.bottom) / Math.max(1, bins)) * half;
  const name = KIND_NAMES[pictures.kind] ?? pictures.kind;
  return (
    <div class="panel track">
      <div class="gutter">
        <b>
          {name} of {pictures.site.split(".").slice(-2).join(".")}
        </b>
        <small>every value, by sign and power of two</small>
        {tensors.length > 1 && (
          <select
            aria-label="Tensor"
            value={String(Math.max(0, tensor))}
            onChange={(event) => onTensor(Number((event.target as HTMLSelectElement).value))}
          >
            {tensors.map((one, at) => (
              <option value={String(at)}>{one.split(".").slice(-2).join(".")}</option>
            ))}
          </select>
        )}
      </div>
      <div class="plot stack">
        <canvas
          ref={ref}
          role="img"
          data-panel="spectrum"
          aria-label={`Distribution of ${pictures.site} over steps: values between ${power(pictures.bottom)} and ${power(pictures.top)} either side of zero`}
        />
        <svg class="over" width={scale.width} height={SPECTRUM} aria-hidden="true">
          {ticks.flatMap((tick) =>
            [1, -1].map((sign) => (
              <text x="-8" y={y(tick, sign) + 4} text-anchor="end" class="tick">
                {sign > 0 ? "+" : "−"}
                {power(tick)}
              </text>
            )),
          )}
          <text x="-8" y={half + 4} text-anchor="end" class="tick">
            0
          </text>
          <Rules scale={scale} height={SPECTRUM} flags={flags} ends={ends} />
        </svg>
      </div>
      <div class="values">
        <b>{amount(pictures.count)}</b>
        <br />
        <small class="note">values</small>
      </div>
    </div>
  );
}
const FAN = 84;
export function Fan({
  pictures,
  scale,
  flags,
  ends,
  span,
}: {
  pictures: Pictures;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  span: [number, number];
}): JSX.Element {
  const t = tokens.value;
  const { percentiles } = unpack(pictures);
  const all = Object.values(percentiles)
    .flatMap((one) => [...one])
    .filter((value) => value > 0 && Number.isFinite(value));
  const low = Math.log2(Math.min(...all)),
    high = Math.log2(Math.max(...all));
  const y = (value: number): number =>
    FAN - 8 - ((Math.log2(Math.max(value, 2 ** low)) - low) / (high - low || 1)) * (FAN - 16);
  const x = (at: number): number => scale.x(pictures.steps[at]);
  const stops = [...pictures.steps.keys()].filter((at) => Number.isFinite(percentiles["50"][at]));
  const band = (a: string, b: string): string =>
    stops.length < 2
      ? ""
      : `M${stops.map((at) => `${x(at).toFixed(1)} ${y(percentiles[b][at]).toFixed(1)}`).join("L")}L${[...stops]
          .reverse()
          .map((at) => `${x(at).toFixed(1)} ${y(percentiles[a][at]).toFixed(1)}`)
          .join("L")}Z`;
  const color = t.s[2];
  const near = nearest(pictures, cursor.value ?? span[1]);
  const ticks = [Math.round(low + (high - low) * 0.25), Math.round(low + (high - low) * 0.8)];
  // A look that found no number at all, as every other line of the layer shows it.
  const blank = [...pictures.steps.keys()]
    .filter((at) => !stops.includes(at))
    .map((at): [number, number] => [
      Math.max(0, x(at)),
      Math.min(scale.width, scale.x(pictures.steps[at + 1] ?? span[1] + 1)),
    ])
    .filter(([a, b]) => b > a);
  if (!all.length) return <></>;
  return (
    <div class="panel track">
      <div class="gutter">
        <b>Percentiles of |x|</b>
        <small>p1 to p99, p5 to p95, p25 to p75, median</small>
      </div>
      <svg
        class="plot"
        data-panel="percentiles"
        width={scale.width}
        height={FAN}
        role="img"
        aria-label={`Percentiles of ${pictures.site}: median ${number(percentiles["50"][near])}, 99th percentile ${number(percentiles["99"][near])} at step ${count(pictures.steps[near] ?? 0)}`}
      >
        {ticks.map((tick) => (
          <g>
            <path d={`M0 ${y(2 ** tick).toFixed(1)}H${scale.width}`} stroke={t.line} />
            <text x="-8" y={y(2 ** tick) + 4} text-anchor="end" class="tick">
              {power(tick)}
            </text>
          </g>
        ))}
        {blank.map(([a, b]) => (
          <rect x={a.toFixed(1)} y="0" width={Math.max(2, b - a).toFixed(1)} height={FAN} fill="url(#hatch)" />
        ))}
        <svg width={scale.width} height={FAN}>
          <path d={band("1", "99")} fill={color} opacity=".14" />
          <path d={band("5", "95")} fill={color} opacity=".18" />
          <path d={band("25", "75")} fill={color} opacity=".25" />
          <path
            d={
              stops.length > 1
                ? `M${stops.map((at) => `${x(at).toFixed(1)} ${y(percentiles["50"][at]).toFixed(1)}`).join("L")}`
                : ""
            }
            fill="none"
            stroke={color}
            stroke-width="1.5"
          />
        </svg>
        <Rules scale={scale} height={FAN} flags={flags} ends={ends} />
      </svg>
      <div class="values">
        <b>{number(percentiles["50"][near])}</b>
      </div>
    </div>
  );
}
export const nearest = (pictures: Pictures, step: number): number => {
  let best = 0;
  pictures.steps.forEach((one, at) => {
    if (one <= step) best = at;
  });
  return best;
};
