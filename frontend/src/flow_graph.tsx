// The graph: ribbons as wide as the gradient, nodes by how far they are from usual, particles along the flow.
import { type JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Mark } from "./data";
import { freeSpots, regionsOf, turnsOf } from "./flow_regions";
import { type Reading, type Values, extent, lastedSince, read, widthOf } from "./flow_values";
import { count, number, ratio } from "./format";
import { type Layout, type Ribbon } from "./layout";
import { go, reducedMotion, runLink, selected, tokens } from "./state";
import { MONO, historyColor, inkOn } from "./tokens";
import { type FlowData } from "./types";

export function Graph({
  found,
  nodes,
  layout,
  step,
  link,
  playing,
}: {
  found: FlowData;
  nodes: Values;
  layout: Layout;
  step: number;
  link?: string;
  playing: boolean;
}): JSX.Element {
  const t = tokens.value;
  const [low, high] = useMemo(() => extent(nodes), [nodes]);
  const rowOf = useMemo(() => new Map(found.nodes.map((one) => [one.path, one.row])), [found]);
  const at = (path: string): Reading => read(nodes, rowOf.get(path) ?? -1, step);
  const critical = useMemo(
    () => criticalPath(layout, (path) => read(nodes, rowOf.get(path) ?? -1, step)),
    [layout, nodes, step],
  );
  const paint = (one: Reading): string =>
    one.mark === Mark.NAN || one.mark === Mark.INF
      ? "url(#hatch)"
      : one.value === null
        ? t.sunken
        : historyColor(t, one.level);
  const particles = useRef<SVGGElement>(null);
  useParticles(particles, layout, (ribbon) => widthOf(flowing(ribbon, at).value, low, high), t, playing);
  const regions = regionsOf(found, layout, at, (path, test) => lastedSince(nodes, rowOf.get(path) ?? -1, step, test)),
    turns = turnsOf(layout, at);
  const spots = useMemo(
    () => freeSpots(layout, turns),
    [layout, turns.map((one) => `${one.path} ${one.words}`).join()],
  );
  return (
    <svg
      class="graph"
      data-panel="flow"
      width={layout.width}
      height={layout.height}
      role="img"
      aria-label={`The gradient at step ${count(step)}: ${found.nodes.length} nodes. ${regions.map((one) => `${one.name}: ${one.note}`).join(". ")}`}
    >
      {layout.opened && (
        <g>
          <rect
            x={layout.opened.x}
            y={layout.opened.y}
            width={layout.opened.w}
            height={layout.opened.h}
            rx="6"
            fill={t.well}
            stroke={t.line}
          />
          <text x={layout.opened.x + 14} y={layout.opened.y + 19} class="mono strong">
            ▾ {found.opened}
          </text>
        </g>
      )}
      {regions.map((one) => (
        <g>
          {one.kind === "fading" ? (
            <path d={`M${one.x} ${one.y + 4}v-6h${one.w}v6`} fill="none" stroke={t.mark} />
          ) : (
            <rect
              x={one.x}
              y={one.y}
              width={one.w}
              height={one.h}
              rx="8"
              fill={one.kind === "dying" ? historyColor(t, -3) : "none"}
              fill-opacity={one.kind === "dying" ? 0.1 : 0}
              stroke={one.kind === "exploding" ? t.crit : t.ink3}
              stroke-dasharray={one.kind === "dying" ? "5 4" : undefined}
              stroke-width={one.kind === "exploding" ? 1.5 : 1.2}
            />
          )}
          {one.quiet ? null : one.kind === "exploding" ? (
            <text x={one.x + one.w / 2} y={one.y + one.h + 14} text-anchor="middle" class="strong critical">
              {one.name}, {one.note}
            </text>
          ) : (
            <>
              <text x={one.x + 2} y={one.y - (one.kind === "fading" ? 24 : 20)} class="strong">
                {one.name}
              </text>
              <text x={one.x + 2} y={one.y - (one.kind === "fading" ? 10 : 6)} class="tick">
                {one.note}
              </text>
            </>
          )}
        </g>
      ))}
      {layout.lanes.map((one) => (
        <text x="2" y={one.y + 4} class="tick">
          {one.label}
        </text>
      ))}
      {layout.columns.map((one) => (
        <text x={one.x} y={layout.height - 6} text-anchor="middle" class={one.strong ? "strong" : "tick"}>
          {one.label}
        </text>
      ))}
      {[...layout.ribbons]
        .sort((a, b) => Number(a.straight) - Number(b.straight))
        .map((ribbon) => {
          const now = flowing(ribbon, at),
            w = widthOf(now.value, low, high),
            cased = critical.has(ribbon.id);
          return (
            <g fill="none" stroke-linecap="butt">
              {cased && <path d={ribbon.d} stroke={t.ink} stroke-width={w + 3} />}
              <path
                d={ribbon.d}
                stroke={
                  ribbon.cut
                    ? t.line2
                    : now.mark === Mark.NAN || now.mark === Mark.INF
                      ? t.crit
                      : now.value === null
                        ? t.line2
                        : historyColor(t, now.level)
                }
                stroke-width={w}
                stroke-dasharray={ribbon.cut ? "3 4" : undefined}
              />
              {!cased && !ribbon.cut && (
                <path d={ribbon.d} stroke={t.mark} stroke-opacity=".25" stroke-width={w + 1.2} class="under" />
              )}
            </g>
          );
        })}
      <g ref={particles} class="particles" />
      {layout.boxes.map((one) => {
        const now = at(one.path),
          color = now.value === null || !Number.isFinite(now.value) ? t.sheet : historyColor(t, now.level),
          sign = found.signs[one.path];
        return (
          <g
            class="node"
            tabIndex={0}
            role="button"
            aria-label={`${one.path}, ${number(now.value)}${now.value !== null && Number.isFinite(now.value) ? `, ${ratio(2 ** now.level)}` : ""}`}
            onClick={() => {
              selected.value = one.path;
              if (link) go(runLink(link, "layers", { at: one.path, step }));
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter" && link) go(runLink(link, "layers", { at: one.path, step }));
            }}
          >
            <title>{`${one.path}  ${number(now.value)}`}</title>
            <rect
              x={one.x - one.w / 2}
              y={one.y - one.h / 2}
              width={one.w}
              height={one.h}
              rx="4"
              fill={one.role === "loss" ? t.ink : paint(now)}
              stroke={selected.value === one.path ? t.ink : sign ? t.crit : t.mark}
              stroke-width={selected.value === one.path || sign ? 1.5 : 0.8}
              stroke-opacity={sign ? 1 : 0.6}
            />
            {one.label && (
              <text
                x={one.x}
                y={one.y + 4}
                text-anchor="middle"
                class="mono"
                font-family={MONO}
                fill={
                  one.role === "loss"
                    ? t.sheet
                    : now.mark >= Mark.INF
                      ? t.crit
                      : now.value === null
                        ? t.ink2
                        : inkOn(color)
                }
              >
                {one.label}
              </text>
            )}
          </g>
        );
      })}
      {spots.map((one) => (
        <text x={one.x} y={one.y} text-anchor={one.anchor} class="strong halo2">
          {one.words}
        </text>
      ))}
    </svg>
  );
}
const flowing = (ribbon: Ribbon, at: (path: string) => Reading): Reading => {
  for (const path of ribbon.measuredBy) {
    const found = at(path);
    if (found.value !== null) return found;
  }
  return { value: null, level: 0, mark: Mark.MISSING };
};
/** From the loss to the input, always along the ribbon that carries most. */
export function criticalPath(layout: Layout, at: (path: string) => Reading): Set<number> {
  const out = new Set<number>();
  const into = new Map<string, Ribbon[]>();
  for (const ribbon of layout.ribbons) into.set(ribbon.target, [...(into.get(ribbon.target) ?? []), ribbon]);
  let here = layout.end;
  for (let guard = 0; guard < 2000; guard++) {
    const ways = (into.get(here) ?? []).filter((one) => !one.cut && !out.has(one.id));
    if (!ways.length) break;
    // On the river the gradient goes straight on, unless a branch carries far more than it usually does.
    const straight = ways.find((one) => one.straight),
      loud = ways
        .filter((one) => !one.straight)
        .map((one) => [one, flowing(one, at)] as const)
        .sort((a, b) => b[1].level - a[1].level)[0];
    const best =
      straight && !(loud && loud[1].level > 1.3 && loud[1].level > flowing(straight, at).level + 1)
        ? straight
        : loud
          ? ways
              .filter((one) => !one.straight)
              .sort((a, b) => (flowing(b, at).value ?? 0) - (flowing(a, at).value ?? 0))[0]
          : ways[0];
    out.add(best.id);
    here = best.source;
  }
  return out;
}
/** Particles run from the loss to the input, 60 px a second; still chevrons where motion is not wanted. */
function useParticles(
  group: { current: SVGGElement | null },
  layout: Layout,
  width: (ribbon: Ribbon) => number,
  t: { ink: string; sheet: string },
  playing: boolean,
): void {
  const widths = useRef(width);
  widths.current = width;
  useEffect(() => {
    const parent = group.current;
    if (!parent) return undefined;
    const NS = "http://www.w3.org/2000/svg";
    const still = reducedMotion.matches || !playing;
    const dots: { element: SVGElement; path: SVGPathElement; length: number; at: number; ribbon: Ribbon }[] = [];
    for (const ribbon of layout.ribbons) {
      if (ribbon.cut || dots.length > 600) continue;
      const path = document.createElementNS(NS, "path") as SVGPathElement;
      path.setAttribute("d", ribbon.d);
      const length = path.getTotalLength();
      const gap = still ? 48 : 96 / Math.max(1, widths.current(ribbon) / 4);
      for (let at = gap / 2; at < length; at += gap) {
        const element = document.createElementNS(NS, still ? "path" : "circle");
        if (still) {
          element.setAttribute("d", "M2 -2.2 -1 0 2 2.2");
          element.setAttribute("fill", "none");
          element.setAttribute("stroke", "currentColor");
        } else element.setAttribute("r", "1.1");
        parent.append(element);
        dots.push({ element, path, length, at, ribbon });
      }
    }
    const put = (dot: (typeof dots)[0]): void => {
      const a = dot.path.getPointAtLength(dot.at);
      if (still) {
        const b = dot.path.getPointAtLength(Math.min(dot.length, dot.at + 1));
        dot.element.setAttribute(
          "transform",
          `translate(${a.x.toFixed(1)} ${a.y.toFixed(1)}) rotate(${((Math.atan2(b.y - a.y, b.x - a.x) * 180) / Math.PI).toFixed(0)})`,
        );
      } else {
        dot.element.setAttribute("cx", a.x.toFixed(1));
        dot.element.setAttribute("cy", a.y.toFixed(1));
      }
    };
    dots.forEach(put);
    let frame = 0,
      before = performance.now();
    const tick = (now: number): void => {
      const moved = ((now - before) / 1000) * 60;
      before = now;
      for (const dot of dots) {
        dot.at -= moved;
        if (dot.at < 0) dot.at += dot.length;
        put(dot);
      }
      frame = requestAnimationFrame(tick);
    };
    if (!still) frame = requestAnimationFrame(tick);
    return () => {
      cancelAnimationFrame(frame);
      parent.replaceChildren();
    };
  }, [layout, playing, t]);
}
