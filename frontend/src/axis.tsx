// The axis that everything with steps shares: ticks, cursor, numbered events.
import { type JSX } from "preact";
import { count } from "./format";
import { type Scale, stepTicks } from "./plot";
import { cursor, tokens } from "./state";

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
export const inside = (scale: Scale, step: number): boolean => step >= scale.first && step <= scale.last;
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
