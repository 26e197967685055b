// Lines over steps, and the whole run at a glance.
import { type JSX } from "preact";
import { useRef } from "preact/hooks";
import { type Ends, type Flag, Rules, colorOf, cursorX, inside } from "./axis";
import { type Line, Mark, line, small, valueAt } from "./data";
import { count, duration, number, plural } from "./format";
import { type Scale, niceStep, paths, rangeOf, sentence, stretches, tickLabel, valueTicks, yOf } from "./plot";
import { clamped } from "./pointer";
import { cursor, following, isPhone, tokens, view } from "./state";
import { SANS } from "./tokens";
import { type Limit, type Minimap, type Track } from "./types";

export interface Drawn {
  of: Line;
  color: string;
  dash?: string;
  label?: string;
}
/** One or more lines in a box of their own height. */
export function LineChart({
  id,
  scale,
  height,
  lines,
  log,
  limits = [],
  flags,
  ends,
  label,
  quiet = false,
}: {
  id: string;
  scale: Scale;
  height: number;
  lines: Drawn[];
  log: boolean;
  limits?: Limit[];
  flags: Flag[];
  ends?: Ends | null;
  label: string;
  quiet?: boolean;
}): JSX.Element {
  const t = tokens.value;
  const range = rangeOf(
    lines.map((one) => one.of),
    scale,
    log,
    limits.map((one) => one.value),
  );
  const y = yOf(range, height, quiet ? 9 : 8);
  const ticks = quiet ? [] : valueTicks(range, height > 64 ? 3 : 2);
  const near = limits.filter((one) => one.value >= range.low && one.value <= range.high);
  return (
    <svg
      class="plot"
      data-panel={id}
      width={scale.width}
      height={height}
      role="img"
      aria-label={label}
      font-family={SANS}
    >
      {ticks.map((tick) => (
        <g>
          <path d={`M0 ${y(tick).toFixed(1)}H${scale.width}`} stroke={t.line} fill="none" />
          <text x="-8" y={y(tick) + 4} text-anchor="end" class="tick" font-size="10.5" fill={t.ink3}>
            {tickLabel(tick)}
          </text>
        </g>
      ))}
      {[Mark.NAN, Mark.INF].map((mark) =>
        lines
          .slice(0, 1)
          .map((one) =>
            stretches(one.of, scale, mark).map(([x, w]) => (
              <rect
                x={x.toFixed(1)}
                y="0"
                width={Math.max(2, Math.min(w, (ends ? scale.x(ends.step + 1) : Infinity) - x)).toFixed(1)}
                height={height}
                fill="url(#hatch)"
              />
            )),
          ),
      )}
      {near.map((one) => (
        <g>
          <path d={`M0 ${y(one.value).toFixed(1)}H${scale.width}`} stroke={t.mark} stroke-dasharray="4 3" fill="none" />
          <text x="6" y={y(one.value) - 4} class="tick" font-size="10.5" fill={t.ink3}>
            {one.label}
          </text>
        </g>
      ))}
      {lines.map((one) => {
        const drawn = paths(one.of, scale, y, range.log);
        return (
          <g>
            {drawn.band && <path d={drawn.band} fill={one.color} opacity=".2" />}
            <path
              d={drawn.mean}
              fill="none"
              stroke={one.color}
              stroke-width="1.5"
              stroke-linejoin="round"
              stroke-dasharray={one.dash}
            />
          </g>
        );
      })}
      <Rules scale={scale} height={height} flags={flags} ends={ends} words={id === "loss"} />
      {lines.map((one) => (
        <Dot of={one.of} color={one.color} scale={scale} y={y} log={range.log} />
      ))}
    </svg>
  );
}
function Dot({
  of,
  color,
  scale,
  y,
  log,
}: {
  of: Line;
  color: string;
  scale: Scale;
  y: (v: number) => number;
  log: boolean;
}): JSX.Element | null {
  const step = cursor.value;
  if (step === null || !inside(scale, step)) return null;
  const value = valueAt(of, step);
  if (value === null || !Number.isFinite(value) || (log && value <= 0)) return null;
  return (
    <circle
      cx={cursorX(scale, step)}
      cy={y(value)}
      r="2.5"
      fill={color}
      stroke={tokens.value.sheet}
      stroke-width="1.5"
    />
  );
}
export function TrackRow({
  track,
  scale,
  flags,
  ends,
}: {
  track: Track;
  scale: Scale;
  flags: Flag[];
  ends?: Ends | null;
}): JSX.Element {
  const height = track.tall ? (track.key === "loss" ? 72 : 56) : 28;
  const of = line(track.series);
  return (
    <div class={`panel track${track.tall ? "" : " short"}`}>
      <div class="gutter">
        <b>{isPhone.value && track.key === "grad_norm" ? "Gradient" : track.label}</b>
        {!isPhone.value && track.note && <small>{track.note}</small>}
      </div>
      <LineChart
        id={track.key}
        scale={scale}
        height={height}
        lines={[{ of, color: colorOf(track.color) }]}
        log={track.log}
        limits={track.limits}
        flags={flags}
        ends={ends}
        quiet={!track.tall}
        label={sentence(track.label, of, scale, number)}
      />
      <div class="values">
        <TrackValue of={of} unit={track.unit} last={track.last} />
      </div>
    </div>
  );
}
function TrackValue({ of, unit, last }: { of: Line; unit: string; last: number | string | null }): JSX.Element {
  const value = cursor.value === null ? last : valueAt(of, cursor.value);
  const words = number(value);
  return (
    <b class={words === "NaN" || words.endsWith("Inf") ? "crit" : ""}>
      {words}
      {words && unit ? ` ${unit}` : ""}
    </b>
  );
}
export function MinimapRow({
  data,
  scaleWidth,
  window,
  words,
}: {
  data: Minimap;
  scaleWidth: number;
  window: [number, number];
  words?: string;
}): JSX.Element {
  const t = tokens.value;
  const height = 44;
  const [first, last] = data.span;
  const total = Math.max(1, last + 1 - first);
  const w = scaleWidth;
  const x = (step: number): number => ((step - first) / total) * w;
  const scale: Scale = { first, last, width: w, x, step: (px) => Math.round(first + (px / w) * total) };
  const of = line(data.loss);
  const y = yOf(rangeOf([of], scale, false), height - 8, 5);
  const drawn = paths(of, scale, y, false);
  const level = small(data.trouble.level);
  const colors = ["", t.history[7], t.history[8], ""];
  const strips: JSX.Element[] = [];
  for (let at = 0; at < level.length; at++) {
    if (!level[at]) continue;
    let end = at;
    while (end + 1 < level.length && level[end + 1] === level[at]) end++;
    const x0 = x(data.trouble.start + at * data.trouble.size),
      x1 = x(data.trouble.start + (end + 1) * data.trouble.size);
    strips.push(
      <rect
        x={x0}
        y={height - 7}
        width={Math.max(1.5, x1 - x0)}
        height="3"
        fill={level[at] === 3 ? t.crit : colors[level[at]]}
      />,
    );
    at = end;
  }
  const x0 = Math.max(1, x(window[0])),
    x1 = Math.min(w - 1, x(window[1] + 1));
  const drag = useRef<number | null>(null);
  const move = (event: PointerEvent): void => {
    if (drag.current === null) return;
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const middle = scale.step(event.clientX - box.left) - drag.current,
      half = Math.round((window[1] - window[0]) / 2);
    following.value = false;
    view.value = clamped([middle - half, middle - half + (window[1] - window[0])], data.span);
  };
  const size = niceStep(total, Math.max(2, w / 200));
  const ticks: number[] = [];
  for (let at = Math.ceil(first / size) * size; at < last; at += size) if (x(at) > 30 && x(at) < w - 60) ticks.push(at);
  return (
    <div class="panel minimap">
      <div class="gutter">
        <b>Whole run</b>
        <small>{words ?? `${plural(data.numSteps, "step")}${data.seconds ? `, ${duration(data.seconds)}` : ""}`}</small>
      </div>
      <svg
        class="plot"
        width={w}
        height={height}
        role="img"
        aria-label={`The whole run: ${sentence("loss", of, scale, number)}. Shown: steps ${count(window[0])} to ${count(window[1])}`}
        onPointerDown={(event) => {
          (event.currentTarget as Element).setPointerCapture(event.pointerId);
          const at = scale.step(event.clientX - (event.currentTarget as Element).getBoundingClientRect().left);
          drag.current = at >= window[0] && at <= window[1] ? at - Math.round((window[0] + window[1]) / 2) : 0;
          move(event);
        }}
        onPointerMove={move}
        onPointerUp={() => {
          drag.current = null;
        }}
        onDblClick={() => {
          following.value = false;
          view.value = data.span;
        }}
      >
        {ticks.map((tick) => (
          <g>
            <path d={`M${x(tick)} 0V5`} stroke={t.mark} />
            <text x={x(tick) + 4} y="12" class="tick">
              {count(tick)}
            </text>
          </g>
        ))}
        {stretches(of, scale, Mark.NAN).map(([at, width]) => (
          <rect x={at} y="3" width={Math.max(2, width)} height={height - 12} fill="url(#hatch)" />
        ))}
        <path d={drawn.band} fill={t.mark} opacity=".25" />
        <path d={drawn.mean} fill="none" stroke={t.mark} stroke-width="1" />
        {strips}
        <rect
          x={x0}
          y="2"
          width={Math.max(6, x1 - x0)}
          height={height - 4}
          rx="3"
          fill="none"
          stroke={t.ink}
          stroke-width="1.5"
        />
      </svg>
      <div class="values" />
    </div>
  );
}
