// The key of a heatmap.
import { type JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { type Heat, Mark } from "./data";
import { number } from "./format";
import { texture, valueRange } from "./paint";
import { tokens } from "./state";

/** What the colors mean: ends of the scale written out, and a sample of each texture that is in the picture. */
export function HeatKey({
  heat,
  raw,
  ends,
  extra,
}: {
  heat: Heat | null;
  raw: boolean;
  ends?: [string, string];
  extra?: [string, number][];
}): JSX.Element {
  const t = tokens.value;
  const look = heat && raw ? valueRange(heat) : null;
  const stops = raw ? t.value : t.history;
  const present = new Set<number>();
  if (heat) for (const mark of heat.marks) present.add(mark);
  const words: [string, number][] = (
    [
      ["NaN", Mark.NAN],
      ["Inf", Mark.INF],
      ["missing", Mark.MISSING],
      ["frozen", Mark.FROZEN],
      ["all zero", Mark.DEAD],
      ["skipped", Mark.SKIPPED],
    ] as [string, number][]
  ).filter(([, mark]) => present.has(mark));
  const shown = ends ?? (look ? [number(look.low), number(look.high) + (look.log ? ", log" : "")] : ["1/64", "×64"]);
  return (
    <div class="key">
      <span>{shown[0]}</span>
      <svg width="112" height="11" aria-hidden="true">
        <defs>
          <linearGradient id={raw ? "rampv" : "ramph"}>
            {stops.map((stop, at) => (
              <stop offset={at / (stops.length - 1)} stop-color={stop} />
            ))}
          </linearGradient>
        </defs>
        <rect width="112" height="11" fill={`url(#${raw ? "rampv" : "ramph"})`} />
        {!raw && <path d="M56 -1V12" stroke={t.ink} />}
      </svg>
      <span>{shown[1]}</span>
      {[...words, ...(extra ?? [])].map(([word, mark]) => (
        <span class="sample">
          <Swatch mark={mark} />
          {word}
        </span>
      ))}
    </div>
  );
}
export function Swatch({ mark }: { mark: number }): JSX.Element {
  const t = tokens.value;
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const dpr = devicePixelRatio || 1,
      element = ref.current!;
    element.width = 16 * dpr;
    element.height = 12 * dpr;
    const context = element.getContext("2d")!;
    context.fillStyle = texture(context, mark, t, dpr);
    context.fillRect(0, 0, element.width, element.height);
    if (mark === Mark.DEAD) {
      context.fillStyle = t.ink2;
      context.fillRect(0, 4 * dpr, element.width, 4 * dpr);
    }
    if (mark === Mark.SKIPPED) {
      context.fillStyle = t.mark;
      context.fillRect(4 * dpr, 5 * dpr, 8 * dpr, dpr);
    }
  });
  return <canvas ref={ref} class="swatch" aria-hidden="true" />;
}
