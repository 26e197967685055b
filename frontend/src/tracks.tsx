// Axis, lines and the whole run at a glance: all on one x scale, with one cursor and one set of numbered events.
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { line, Mark, small, valueAt, type Limit, type Line, type Minimap, type Track } from "./data";
import { count, duration, number, plural } from "./format";
import {
  niceStep,
  paths,
  rangeOf,
  sentence,
  stepTicks,
  stretches,
  tickLabel,
  valueTicks,
  yOf,
  type Scale,
} from "./plot";
import { cursor, following, isPhone, tokens, view } from "./state";
import { SANS } from "./tokens";

/** A numbered event; or a named one, as a chip of its own or as words beside its line. */
export interface Flag {
  n: number;
  step: number;
  chip?: string;
  words?: string;
}
export interface Ends {
  step: number;
  label: string;
  live: boolean;
}
export const colorOf = (name: string): string =>
  name === "ink" ? tokens.value.ink : name === "mark" ? tokens.value.mark : tokens.value.s[Number(name.slice(1)) - 1];

/** Patterns that SVG pictures refer to; one copy in the page. */
export function Patterns(): JSX.Element {
  const t = tokens.value;
  return (
    <svg width="0" height="0" class="patterns" aria-hidden="true">
      <defs>
        <HatchPattern t={t} />
      </defs>
    </svg>
  );
}
export function HatchPattern({ t }: { t: { crit: string; critTint: string } }): JSX.Element {
  return (
    <pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse">
      <rect width="8" height="8" fill={t.critTint} />
      <path d="M-2 10 10-2M-2 2 2-2M6 10l4-4" stroke={t.crit} stroke-width="1.35" />
    </pattern>
  );
}

/** The cursor and the events as lines through a panel. */
export function Rules({
  scale,
  height,
  flags,
  ends,
  words = false,
}: {
  scale: Scale;
  height: number;
  flags: Flag[];
  ends?: Ends | null;
  words?: boolean;
}): JSX.Element {
  const t = tokens.value;
  return (
    <g>
      {flags
        .filter((flag) => inside(scale, flag.step))
        .map((flag) => (
          <path
            d={`M${scale.x(flag.step).toFixed(1)} 0V${height}`}
            stroke={t.ink}
            stroke-width={flag.chip ? 1.25 : 1}
            stroke-dasharray={flag.chip ? undefined : "1 3"}
            fill="none"
          />
        ))}
      {ends && inside(scale, ends.step) && (
        <path
          d={`M${scale.x(ends.step + 1).toFixed(1)} 0V${height}`}
          stroke={ends.live ? t.accent : t.ink}
          stroke-width={ends.live ? 1.5 : 1}
          fill="none"
        />
      )}
      {ends && words && inside(scale, ends.step) && (
        <text x={Math.min(scale.x(ends.step + 1) + 5, scale.width + 2)} y="13" class={ends.live ? "now" : "tick"}>
          {ends.label}
        </text>
      )}
      <CursorRule scale={scale} height={height} />
    </g>
  );
}
const inside = (scale: Scale, step: number): boolean => step >= scale.first && step <= scale.last;
export const cursorX = (scale: Scale, step: number): number =>
  scale.x(step) + Math.min(scale.x(step + 1) - scale.x(step), 12) / 2;
function CursorRule({ scale, height }: { scale: Scale; height: number }): JSX.Element | null {
  const step = cursor.value;
  if (step === null || !inside(scale, step)) return null;
  const x = cursorX(scale, step).toFixed(1);
  return <path d={`M${x} 0V${height}`} stroke={tokens.value.ink} stroke-width="1.25" fill="none" />;
}

/** Where the discs stand: over their step, or beside the one before where they would cover each other. */
export function placed(flags: Flag[], scale: Scale): number[] {
  const out: number[] = [];
  for (const flag of flags) out.push(Math.max(scale.x(flag.step), out.length ? out[out.length - 1] + 18 : -Infinity));
  // At the end of the axis they stand before their step rather than outside.
  for (let n = out.length - 1, most = scale.width + 2; n >= 0; n--, most = out[n + 1] - 18)
    out[n] = Math.min(out[n], most);
  return out;
}

const clusterStart = (discs: number[], n: number): number => {
  let at = n;
  while (at > 0 && discs[at] - discs[at - 1] < 19) at--;
  return discs[at];
};

export function Axis({
  scale,
  flags,
  ends,
  left,
  right,
}: {
  scale: Scale;
  flags: Flag[];
  ends?: Ends | null;
  left: string;
  right?: string;
}): JSX.Element {
  const t = tokens.value;
  const named = flags.filter((flag) => (flag.chip || flag.words) && inside(scale, flag.step));
  const shown = flags.filter((flag) => !flag.chip && !flag.words && inside(scale, flag.step));
  const at = cursor.value !== null && inside(scale, cursor.value) ? cursor.value : null;
  const discs = placed(shown, scale);
  const taken = discs.map((x) => [x - 26, x + 56] as [number, number]);
  // A chip stands to the right of its line where there is room; words after it give way to it.
  const labels = named.map((flag) => {
    const text = flag.chip ?? flag.words ?? "",
      w = text.length * 6.6 + (flag.chip ? 16 : 8),
      x = scale.x(flag.step);
    return { flag, text, w, x: Math.max(0, Math.min(scale.width - w, flag.chip ? x : x + 4)) };
  });
  for (const one of labels) taken.push([one.x - 22, one.x + one.w + 22]);
  if (at !== null) taken.push([cursorX(scale, at) - 40, cursorX(scale, at) + 40]);
  const ticks = stepTicks(scale, Math.max(2, scale.width / 110));
  const free = (x: number): boolean => taken.every(([a, b]) => x < a || x > b) && x > 14 && x < scale.width - 14;
  const labelled = new Set<number>();
  shown.forEach((flag, n) => {
    const x = discs[n],
      next = discs[n + 1];
    const cx = at === null ? null : cursorX(scale, at);
    const flips = x > scale.width - 44,
      start = clusterStart(discs, n),
      prior = discs[discs.indexOf(start) - 1];
    if (flips && (start < 44 || (prior !== undefined && start - prior < 62))) return;
    if ((next === undefined || next - x > 62) && (cx === null || cx < x - 30 || cx > x + 84)) labelled.add(flag.n);
  });
  const chip = at === null ? "" : count(at),
    hasChip = named.some((flag) => flag.chip);
  return (
    <div class="panel axis">
      <div class="gutter">{left}</div>
      <svg
        class="plot"
        width={scale.width}
        height="30"
        role="img"
        aria-label={`Steps ${count(scale.first)} to ${count(scale.last)}`}
      >
        <path d={`M0 29.5H${scale.width}`} stroke={t.line2} fill="none" />
        {ticks.map((tick) => (
          <path d={`M${scale.x(tick).toFixed(1)} 25V29`} stroke={t.line2} fill="none" />
        ))}
        {ticks
          .filter((tick) => free(scale.x(tick)))
          .map((tick) => (
            <text x={scale.x(tick)} y="18" text-anchor="middle" class="tick">
              {count(tick)}
            </text>
          ))}
        {shown.map((flag, n) => (
          <g>
            <path d={`M${scale.x(flag.step).toFixed(1)} 22V30`} stroke={t.ink} stroke-dasharray="1 3" />
            <circle cx={discs[n]} cy="14" r="8" fill={t.ink} />
            <text x={discs[n]} y="17.8" text-anchor="middle" class="flag">
              {flag.n}
            </text>
            {labelled.has(flag.n) && (
              <text
                x={discs[n] > scale.width - 44 ? clusterStart(discs, n) - 13 : discs[n] + 13}
                y="18"
                text-anchor={discs[n] > scale.width - 44 ? "end" : "start"}
                class="strong"
              >
                {count(flag.step)}
              </text>
            )}
          </g>
        ))}
        {labels
          .filter(
            (one) =>
              one.flag.chip ||
              at === null ||
              cursorX(scale, at) + 26 < one.x ||
              cursorX(scale, at) - 26 > one.x + one.w,
          )
          .map((one) => (
            <g>
              <path
                d={`M${scale.x(one.flag.step).toFixed(1)} 20V30`}
                stroke={t.ink}
                stroke-width={one.flag.chip ? 1.25 : 1}
                stroke-dasharray={one.flag.chip ? undefined : "1 3"}
              />
              {one.flag.chip && <rect x={one.x} y="4" width={one.w} height="20" rx="4" fill={t.ink} />}
              <text x={one.x + one.w / 2} y="18" text-anchor="middle" class={one.flag.chip ? "flag big" : "strong"}>
                {one.text}
              </text>
            </g>
          ))}
        {ends?.live && inside(scale, ends.step) && <circle cx={scale.x(ends.step + 1)} cy="29" r="3" fill={t.accent} />}
        {at !== null && !named.some((flag) => flag.chip && flag.step === at) && (
          <g>
            <path d={`M${cursorX(scale, at)} 20V30`} stroke={t.ink} stroke-width="1.25" />
            <rect
              x={cursorX(scale, at) - chip.length * 3.6 - 7}
              y="4"
              width={chip.length * 7.2 + 14}
              height="20"
              rx="4"
              fill={hasChip ? t.sheet : t.ink}
              stroke={t.ink}
              stroke-width={hasChip ? 1.25 : 0}
            />
            <text x={cursorX(scale, at)} y="18" text-anchor="middle" class={hasChip ? "strong" : "flag big"}>
              {chip}
            </text>
          </g>
        )}
      </svg>
      <div class="values note">{right ?? (at === null ? "" : `at ${count(at)}`)}</div>
    </div>
  );
}

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

/** Drag to zoom, wheel with a modifier to zoom, hover for the cursor. */
export function usePointer(
  scale: Scale,
  span: [number, number],
  pick?: (y: number) => void,
): Record<string, (event: never) => void> {
  const drag = useRef<{ x: number; moved: boolean } | null>(null);
  const local = (event: MouseEvent): number =>
    event.clientX - (event.currentTarget as Element).getBoundingClientRect().left;
  return {
    onMouseMove: ((event: MouseEvent) => {
      const x = local(event);
      if (drag.current && Math.abs(x - drag.current.x) > 5) drag.current.moved = true;
      cursor.value = Math.max(span[0], Math.min(span[1], scale.step(x)));
    }) as never,
    onMouseDown: ((event: MouseEvent) => {
      if (event.button === 0) drag.current = { x: local(event), moved: false };
    }) as never,
    onMouseUp: ((event: MouseEvent) => {
      const begun = drag.current;
      drag.current = null;
      if (!begun) return;
      if (!begun.moved) {
        pick?.(event.clientY - (event.currentTarget as Element).getBoundingClientRect().top);
        return;
      }
      const [a, b] = [scale.step(begun.x), scale.step(local(event))].sort((p, q) => p - q);
      if (b - a >= 4) {
        following.value = false;
        view.value = [a, b];
      }
    }) as never,
    onWheel: ((event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      following.value = false;
      if (event.ctrlKey || event.metaKey)
        view.value = zoomed(scale, span, event.deltaY > 0 ? 1.25 : 0.8, scale.step(local(event)));
      else
        view.value = moved(
          scale,
          span,
          Math.sign(event.deltaX) * Math.max(1, Math.round((scale.last - scale.first) * 0.04)),
        );
    }) as never,
  };
}
export function zoomed(scale: Scale, span: [number, number], factor: number, around: number): [number, number] {
  const width = Math.max(8, Math.round((scale.last - scale.first + 1) * factor));
  const share = (around - scale.first) / Math.max(1, scale.last - scale.first);
  const first = Math.round(around - share * width);
  return clamped([first, first + width - 1], span);
}
export const moved = (scale: Scale, span: [number, number], by: number): [number, number] =>
  clamped([scale.first + by, scale.last + by], span);
function clamped([first, last]: [number, number], span: [number, number]): [number, number] {
  const width = last - first;
  if (width >= span[1] - span[0]) return span;
  if (first < span[0]) return [span[0], span[0] + width];
  if (last > span[1]) return [span[1] - width, span[1]];
  return [first, last];
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
