// The gradient on the model's graph: scrub and play through the steps, critical path, regions, bars by layer.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, Latest } from "./api";
import { Empty, TroubleScreen } from "./chrome";
import { floats, Mark, small, type RunData, type Trouble } from "./data";
import { count, KIND_NAMES, number, percent, ratio } from "./format";
import { Icon, Severity } from "./glyphs";
import { handleKeys } from "./keys";
import { layOut, type Box, type FlowEdge, type FlowNode, type Layout, type Ribbon } from "./layout";
import { paintRow } from "./paint";
import { scaleOf, stepTicks, tickLabel, type Scale } from "./plot";
import { flagsOf } from "./run";
import { offer, withdraw } from "./save";
import type { RunSession } from "./session";
import { cursor, go, isPhone, kind, overlay, reducedMotion, runLink, selected, tokens, view, width } from "./state";
import { historyColor, inkOn, MONO } from "./tokens";
import { placed } from "./tracks";

export interface Values {
  start: number;
  size: number;
  count: number;
  values: Float32Array;
  marks: Uint8Array;
  usual: Float32Array;
}
export interface FlowData {
  kind: string;
  hasGraph: boolean;
  opened: string;
  nodes: FlowNode[];
  edges: FlowEdge[];
  numSites: number;
  numEdges: number;
  start: number;
  size: number;
  count: number;
  numRows: number;
  values: string;
  marks: string;
  usual: string;
  layers: { paths: string[]; labels: string[]; count: number; values: string; marks: string; usual: string };
  signs: Record<string, string>;
  thresholds: { dying: number; exploding: number; fading: number };
}
export const nodeValues = (found: FlowData): Values => ({
  start: found.start,
  size: found.size,
  count: found.count,
  values: floats(found.values),
  marks: small(found.marks),
  usual: floats(found.usual),
});
interface Reading {
  value: number | null;
  level: number;
  mark: number;
}

function read(of: Values, row: number, step: number): Reading {
  if (row < 0) return { value: null, level: 0, mark: Mark.MISSING };
  const column = Math.max(0, Math.min(of.count - 1, Math.floor((step - of.start) / of.size)));
  const mark = of.marks[row * of.count + column],
    value = of.values[row * of.count + column],
    usual = of.usual[row];
  if (mark === Mark.NAN || mark === Mark.INF) return { value: mark === Mark.NAN ? NaN : Infinity, level: 0, mark };
  if (mark !== Mark.PLAIN && mark !== Mark.DEAD) return { value: null, level: 0, mark };
  const level = usual > 0 ? Math.log2(Math.abs(value) / usual) : 0;
  return { value: Math.abs(value), level: Number.isFinite(level) ? level : level < 0 ? -6 : 6, mark };
}

export function FlowScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, setFound] = useState<FlowData | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [playing, setPlaying] = useState(false);
  const data = session.data.value,
    shown = view.value;
  const latest = useRef<Latest<FlowData> | null>(null);
  const what = ["gradient", "activation_gradient", "update"].includes(kind.value)
    ? kind.value
    : data?.kinds.includes("gradient")
      ? "gradient"
      : kind.value;
  useEffect(() => {
    latest.current = new Latest<FlowData>((value) => {
      setFound(value);
      setTrouble(null);
    }, setTrouble);
    return () => latest.current?.stop();
  }, [session]);
  useEffect(() => {
    if (data && shown && what)
      latest.current?.put(() =>
        ask<FlowData>(`runs/${session.key}/flow`, {
          kind: what,
          first: shown[0],
          last: Math.min(shown[1], data.span[1]),
          width: 600,
          v: data.version,
        }),
      );
  }, [data?.version, shown?.[0], shown?.[1], what]);
  useLayoutEffect(
    () => handleKeys({ session, play: () => setPlaying((now) => !now), up: () => go(runLink(session.key)) }),
    [session],
  );
  usePlay(playing, setPlaying, data, shown);
  useFlowTable(found);
  const nodes = useMemo<Values | null>(() => found && nodeValues(found), [found]);
  const layers = useMemo<Values | null>(
    () =>
      found && {
        start: found.start,
        size: found.size,
        count: found.layers.count,
        values: floats(found.layers.values),
        marks: small(found.layers.marks),
        usual: floats(found.layers.usual),
      },
    [found],
  );
  const [ref, box] = useSize();
  const layout = useMemo(
    () =>
      found && (isPhone.value || box[0] > 40)
        ? isPhone.value
          ? layOut(found.nodes, found.edges, found.opened, 1000, 460)
          : layOut(found.nodes, found.edges, found.opened, box[0], box[1])
        : null,
    [found?.nodes.map((one) => one.path).join("\n"), found?.opened, box[0], box[1]],
  );
  const step = Math.min(cursor.value ?? data?.verdict.cause?.firstStep ?? data?.span[1] ?? 0, data?.span[1] ?? 0);
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!data || !shown) return <main class="screen" id="main" />;
  if (!data.kinds.length)
    return (
      <main class="screen" id="main">
        <Empty
          title="No gradients were recorded."
          text="Watch the model and its optimizer."
          command="stethoscope run train.py"
        />
      </main>
    );
  return (
    <main class="screen flow" id="main">
      <div class="flowhead">
        <h1>
          {found && nodes && layers ? (
            <Headline found={found} nodes={nodes} layers={layers} step={step} />
          ) : (
            "Reading the graph."
          )}
        </h1>
        {!isPhone.value && (
          <div class="segments" role="radiogroup" aria-label="What flows">
            {["gradient", "activation_gradient", "update"]
              .filter((one) => data.kinds.includes(one))
              .map((one) => (
                <button
                  type="button"
                  role="radio"
                  aria-checked={what === one}
                  class={what === one ? "on" : ""}
                  onClick={() => {
                    kind.value = one;
                  }}
                >
                  {KIND_NAMES[one]}
                </button>
              ))}
          </div>
        )}
        {!isPhone.value && (
          <button
            type="button"
            class="button"
            onClick={() => {
              overlay.value = "save";
            }}
          >
            <Icon name="download" size={14} />
            Export
          </button>
        )}
      </div>
      <div class="flowbody">
        <div class="flowmain">
          <p class="note flownote">
            <Icon name="back" size={22} />{" "}
            {isPhone.value ? (
              "The graph itself needs a wider screen; this is what it shows."
            ) : (
              <>The gradient runs from the loss on the right to the input on the left.</>
            )}
            {found && !found.hasGraph ? " The graph was not recorded: modules stand in their order." : ""}
          </p>
          <div class="canvas" ref={ref}>
            {found && nodes && layout && !isPhone.value && (
              <Graph found={found} nodes={nodes} layout={layout} step={step} link={session.key} playing={playing} />
            )}
          </div>
          {found && layers && (
            <Bars
              found={found}
              layers={layers}
              step={step}
              layout={layout}
              w={isPhone.value ? width.value - 24 : box[0]}
            />
          )}
        </div>
        {found && nodes && layers && layout && (
          <FlowSide found={found} nodes={nodes} layers={layers} layout={layout} step={step} />
        )}
      </div>
      {found && layers && (
        <Scrubber
          data={data}
          found={found}
          layers={layers}
          step={step}
          shown={shown}
          playing={playing}
          onPlay={() => setPlaying(!playing)}
        />
      )}
    </main>
  );
}

function useSize(): [(el: HTMLDivElement | null) => void, [number, number]] {
  const [size, setSize] = useState<[number, number]>([0, 0]);
  const element = useRef<HTMLDivElement | null>(null);
  useLayoutEffect(() => {
    const measure = (): void => {
      if (element.current) setSize([element.current.clientWidth, element.current.clientHeight]);
    };
    measure();
    const watch = new ResizeObserver(measure);
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, [element.current]);
  return [
    (el) => {
      element.current = el;
    },
    size,
  ];
}

function usePlay(
  playing: boolean,
  setPlaying: (on: boolean) => void,
  data: RunData | null,
  shown: [number, number] | null,
): void {
  // In a layout effect: from the key that stops it on, no step more.
  useLayoutEffect(() => {
    if (!playing || !data || !shown) return undefined;
    const last = Math.min(shown[1], data.span[1]);
    if ((cursor.value ?? last) >= last) cursor.value = shown[0];
    const timer = setInterval(
      () => {
        const next = (cursor.value ?? shown[0]) + 1;
        if (next > last) {
          setPlaying(false);
          return;
        }
        cursor.value = next;
      },
      reducedMotion.matches ? 500 : 50,
    );
    return () => clearInterval(timer);
  }, [playing, data?.version, shown?.[0], shown?.[1]]);
}

function Headline({
  found,
  nodes,
  layers,
  step,
}: {
  found: FlowData;
  nodes: Values;
  layers: Values;
  step: number;
}): JSX.Element {
  const read_ = found.layers.paths.map((path, row) => ({ path, ...read(layers, row, step) }));
  const parts = found.nodes
    .filter((one) => one.row >= 0)
    .map((one) => ({ path: one.path, ...read(nodes, one.row, step) }));
  const broken = read_.filter((one) => one.mark === Mark.NAN || one.mark === Mark.INF);
  const word = (KIND_NAMES[found.kind] ?? found.kind).toLowerCase();
  if (broken.length)
    return (
      <>
        At step {count(step)}, the {word} is {broken.some((one) => one.mark === Mark.NAN) ? "NaN" : "Inf"} in{" "}
        {broken.length === read_.length ? "every layer" : `${count(broken.length)} of ${count(read_.length)} layers`}.
      </>
    );
  const total = read_.reduce((sum, one) => sum + (one.value ?? 0) ** 2, 0);
  const most = [...read_].sort((a, b) => (b.value ?? 0) - (a.value ?? 0))[0];
  const off = parts.sort((a, b) => Math.abs(b.level) - Math.abs(a.level))[0];
  if (!most || !total) return <>At step {count(step)}, nothing was recorded.</>;
  const share = (most.value ?? 0) ** 2 / total;
  if (share > 0.5)
    return (
      <>
        At step {count(step)}, <span class="name">{most.path}</span> takes {percent(share)} of the {word}.
      </>
    );
  if (off && Math.abs(off.level) > 1.5)
    return (
      <>
        At step {count(step)}, the {word} of <span class="name">{off.path}</span> is{" "}
        {off.level > 0 ? ratio(2 ** off.level).replace("×", "") : ratio(2 ** off.level)}{" "}
        {off.level > 0 ? "times" : "of"} its usual size.
      </>
    );
  return (
    <>
      At step {count(step)}, every layer has its usual {word}.
    </>
  );
}

/** Width of a ribbon: log of the gradient between the smallest and the largest on the screen. */
function widthOf(value: number | null, low: number, high: number): number {
  if (value === null || !Number.isFinite(value) || value <= 0) return 2;
  return 1.5 + 14 * Math.max(0, Math.min(1, (Math.log(value) - low) / (high - low || 1))) ** 1.7;
}
function extent(of: Values): [number, number] {
  const logs: number[] = [];
  for (let at = 0; at < of.values.length; at++)
    if (of.marks[at] === Mark.PLAIN && of.values[at] > 0) logs.push(Math.log(of.values[at]));
  logs.sort((a, b) => a - b);
  return logs.length ? [logs[Math.floor(logs.length * 0.02)], logs[Math.floor(logs.length * 0.999)]] : [0, 1];
}

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
function criticalPath(layout: Layout, at: (path: string) => Reading): Set<number> {
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

/** From which step on, up to this one, a node has been so; null where it is not. */
function lastedSince(of: Values, row: number, step: number, test: (level: number) => boolean): number | null {
  let found: number | null = null;
  for (
    let column = Math.max(0, Math.min(of.count - 1, Math.floor((step - of.start) / of.size)));
    row >= 0 && column >= 0;
    column--
  ) {
    const at = of.start + column * of.size,
      now = read(of, row, at);
    if (now.value === null || !Number.isFinite(now.value) || !test(now.level)) break;
    found = at;
  }
  return found;
}

interface Spot {
  words: string;
  x: number;
  y: number;
  anchor: "start" | "middle" | "end";
}
/** Where a node's words cover no ribbon and no other node: beside it, over it or under it. */
function freeSpots(layout: Layout, turns: Turn[]): Spot[] {
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
function turnsOf(layout: Layout, at: (path: string) => Reading): Turn[] {
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
function regionsOf(
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

function Bars({
  found,
  layers,
  step,
  w,
}: {
  found: FlowData;
  layers: Values;
  step: number;
  layout: Layout | null;
  w: number;
}): JSX.Element {
  const t = tokens.value,
    h = 150,
    left = 76,
    right = 40;
  w = Math.max(w, left + right + 20);
  const [low, high] = useMemo(() => extent(layers), [layers]);
  const floor = low - (high - low) * 0.15;
  const y = (value: number): number =>
    h - 12 - Math.max(0, Math.min(1, (Math.log(value) - floor) / (high - floor || 1))) * (h - 24);
  const n = found.layers.paths.length,
    cell = (w - left - right) / Math.max(1, n),
    bar = Math.min(28, cell * 0.62);
  const ticks: number[] = [];
  for (let power = Math.ceil(floor / Math.LN10); power <= Math.floor(high / Math.LN10); power++)
    ticks.push(10 ** power);
  const kept = ticks.filter((_, at) => at % Math.ceil(ticks.length / 3) === 0);
  return (
    <div class="bars">
      <div class="barslabel">
        <b>{KIND_NAMES[found.kind]} L2</b>
        <small>
          bar now,
          <br />
          tick usual
        </small>
      </div>
      <svg
        data-panel="bars"
        width={w}
        height={h}
        role="img"
        aria-label={`${KIND_NAMES[found.kind]} L2 of each layer at step ${count(step)}: ${found.layers.labels
          .map((label, row) => `${label} ${number(read(layers, row, step).value)}`)
          .slice(0, 30)
          .join(", ")}`}
      >
        {kept.map((tick) => (
          <g>
            <path d={`M${left} ${y(tick)}H${w - right}`} stroke={t.line} />
            <text x={w - right + 6} y={y(tick) + 4} class="tick">
              {tickLabel(tick)}
            </text>
          </g>
        ))}
        {found.layers.labels.map((label, row) => {
          const now = read(layers, row, step),
            x = left + (row + 0.5) * cell;
          const usual = layers.usual[row];
          return (
            <g>
              <title>{`${label} ${number(now.value)}`}</title>
              {now.value !== null &&
                (Number.isFinite(now.value) ? (
                  now.value > 0 && (
                    <rect
                      x={x - bar / 2}
                      y={y(now.value)}
                      width={bar}
                      height={h - 12 - y(now.value)}
                      fill={historyColor(t, now.level)}
                      stroke={t.mark}
                      stroke-opacity=".5"
                      stroke-width=".6"
                    />
                  )
                ) : (
                  <rect x={x - bar / 2} y="8" width={bar} height={h - 20} fill="url(#hatch)" />
                ))}
              {usual > 0 && (
                <path d={`M${x - bar * 0.65} ${y(usual)}h${bar * 1.3}`} stroke={t.ink} stroke-width="1.25" />
              )}
              {n <= 40 && (
                <text x={x} y={h - 1} text-anchor="middle" class="tick">
                  {/\.(\d+)$/.exec(label)?.[1] ?? (label.length * 6 < cell + 8 ? label : "")}
                </text>
              )}
            </g>
          );
        })}
        <path d={`M${left} ${h - 12}H${w - right}`} stroke={t.line2} />
      </svg>
    </div>
  );
}

function FlowSide({
  found,
  nodes,
  layers,
  layout,
  step,
}: {
  found: FlowData;
  nodes: Values;
  layers: Values;
  layout: Layout;
  step: number;
}): JSX.Element {
  const t = tokens.value;
  const rowOf = new Map(found.nodes.map((one) => [one.path, one.row]));
  const at = (path: string): Reading => read(nodes, rowOf.get(path) ?? -1, step);
  const critical = criticalPath(layout, at);
  const byId = new Map(layout.ribbons.map((one) => [one.id, one]));
  // The set holds the ribbons in the order in which they were walked, from the loss on.
  const way = [...critical]
    .flatMap((id) => byId.get(id)!.measuredBy)
    .filter((path, n, all) => all.indexOf(path) === n && at(path).value !== null);
  const loud = way
    .map((path) => ({ path, ...at(path) }))
    .sort((a, b) => Math.abs(b.level) - Math.abs(a.level))
    .slice(0, 9)
    .map((one) => one.path);
  const kept = way.filter((path) => loud.includes(path));
  const [low, high] = extent(layers);
  const regions = regionsOf(found, layout, at, (path, test) => lastedSince(nodes, rowOf.get(path) ?? -1, step, test)),
    turns = turnsOf(layout, at);
  return (
    <aside class="side flowside">
      <section>
        <h2>
          <span>Critical path</span>
          <small>{(KIND_NAMES[found.kind] ?? "").toLowerCase()} L2, loss to input</small>
        </h2>
        <ul class="path">
          {kept.map((path) => {
            const one = at(path);
            return (
              <li>
                <span class="mono" title={path}>
                  {path}
                </span>
                <svg width="62" height="9" aria-hidden="true">
                  <rect width="62" height="9" fill={t.sunken} />
                  <rect
                    width={
                      one.value && one.value > 0 && Number.isFinite(one.value)
                        ? Math.max(2, Math.min(62, ((Math.log(one.value) - low) / (high - low || 1)) * 62))
                        : 62
                    }
                    height="9"
                    fill={one.value !== null && Number.isFinite(one.value) ? historyColor(t, one.level) : "url(#hatch)"}
                  />
                </svg>
                <b>{number(one.value)}</b>
              </li>
            );
          })}
        </ul>
      </section>
      <section>
        <h2>
          <span>Regions</span>
        </h2>
        {regions.length + turns.length ? (
          <ul class="regions">
            {regions.map((one) => (
              <li>
                <Severity of={one.kind === "exploding" ? "Critical" : "Warning"} size={11} />
                <div>
                  <b>{one.name}</b> {one.since}
                  <p>{one.note}</p>
                </div>
              </li>
            ))}
            {turns.map((one) => (
              <li>
                <span class="turn">{one.level > 0 ? "◂▸" : "▸◂"}</span>
                <div>
                  <b>{one.level > 0 ? "Amplifier" : "Bottleneck"}</b>
                  <p>
                    <span class="mono">{one.path}</span> {one.note}
                  </p>
                </div>
              </li>
            ))}
          </ul>
        ) : (
          <p class="note">Every layer is near its usual size at this step.</p>
        )}
      </section>
      <section>
        <h2>
          <span>How to read it</span>
        </h2>
        <ul class="legend">
          <li>
            <svg width="120" height="20" aria-hidden="true">
              {[2, 5, 9, 16].map((h, n) => (
                <rect x={n * 31} y={10 - h / 2} width="22" height={h} fill={t.mark} />
              ))}
            </svg>
            <span>width, L2, log</span>
          </li>
          <li>
            <svg width="120" height="12" aria-hidden="true">
              <rect width="120" height="10" fill="url(#ramph)" />
              <path d="M60 0V11" stroke={t.ink} />
            </svg>
            <span>1/64, usual, ×64</span>
          </li>
          <li>
            <svg width="120" height="12" aria-hidden="true">
              <path d="M0 2H120M0 10H120" stroke={t.ink} stroke-width="1.5" />
            </svg>
            <span>critical path</span>
          </li>
          <li>
            <svg width="120" height="18" aria-hidden="true">
              <rect x="1" y="1" width="52" height="16" rx="5" fill="none" stroke={t.ink3} stroke-dasharray="5 4" />
              <rect x="66" y="1" width="52" height="16" rx="5" fill="none" stroke={t.crit} stroke-width="1.5" />
            </svg>
            <span>dying, exploding</span>
          </li>
        </ul>
        <svg width="0" height="0" aria-hidden="true">
          <defs>
            <linearGradient id="ramph">
              {t.history.map((stop, n) => (
                <stop offset={n / (t.history.length - 1)} stop-color={stop} />
              ))}
            </linearGradient>
          </defs>
        </svg>
      </section>
    </aside>
  );
}

function Scrubber({
  data,
  found,
  layers,
  step,
  shown,
  playing,
  onPlay,
}: {
  data: RunData;
  found: FlowData;
  layers: Values;
  step: number;
  shown: [number, number];
  playing: boolean;
  onPlay: () => void;
}): JSX.Element {
  const t = tokens.value;
  const box = useRef<HTMLDivElement>(null),
    canvas = useRef<HTMLCanvasElement>(null);
  const [w, setW] = useState(600);
  useLayoutEffect(() => {
    const measure = (): void => setW(box.current!.clientWidth);
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  const rows = found.layers.paths.length,
    h = 48;
  const scale: Scale = scaleOf(shown[0], Math.min(shown[1], data.span[1]), w);
  useLayoutEffect(() => {
    const element = canvas.current!,
      dpr = devicePixelRatio || 1;
    element.width = w * dpr;
    element.height = h * dpr;
    element.style.width = `${w}px`;
    element.style.height = `${h}px`;
    const context = element.getContext("2d")!,
      heat = {
        kind: found.kind,
        stat: "norm",
        start: layers.start,
        size: layers.size,
        count: layers.count,
        rows: [...Array(rows).keys()],
        place: new Map<number, number>(),
        values: layers.values,
        marks: layers.marks,
        usual: layers.usual,
      };
    for (let row = 0; row < rows; row++) {
      const y0 = Math.round((row * element.height) / rows),
        y1 = Math.round(((row + 1) * element.height) / rows);
      paintRow(
        context,
        heat,
        row,
        (at) => scale.x(at) * dpr,
        y0,
        Math.max(1, y1 - y0),
        t,
        dpr,
        { raw: false, low: 0, high: 0, log: false },
        element.width,
      );
    }
  }, [layers, w, t, shown[0], shown[1]]);
  const drag = useRef(false);
  const move = (event: PointerEvent): void => {
    if (drag.current) cursor.value = scale.step(event.clientX - box.current!.getBoundingClientRect().left);
  };
  const flags = flagsOf(data).filter((flag) => flag.step >= scale.first && flag.step <= scale.last),
    discs = placed(flags, scale);
  const x = scale.x(step + 0.5);
  return (
    <div class="scrubber">
      <button type="button" class="round" aria-label={playing ? "Pause" : "Play"} onClick={onPlay}>
        <Icon name={playing ? "pause" : "play"} />
      </button>
      <div class="count">
        <b>{count(step)}</b>
        <small>{playing ? `playing, ${reducedMotion.matches ? 2 : 20} steps a second` : "paused"}</small>
      </div>
      <div
        class="strip"
        ref={box}
        role="slider"
        tabIndex={0}
        aria-label="Step"
        aria-valuemin={scale.first}
        aria-valuemax={scale.last}
        aria-valuenow={step}
        onPointerDown={(event) => {
          drag.current = true;
          (event.currentTarget as Element).setPointerCapture(event.pointerId);
          move(event);
        }}
        onPointerMove={move}
        onPointerUp={() => {
          drag.current = false;
        }}
        onWheel={(event) => {
          cursor.value = Math.max(scale.first, Math.min(scale.last, step + Math.sign(event.deltaY)));
          event.preventDefault();
        }}
      >
        <canvas ref={canvas} aria-hidden="true" data-panel="scrubber" />
        <svg width={w} height={h + 36} aria-hidden="true">
          {flags.map((flag, n) => (
            <g>
              <path d={`M${scale.x(flag.step)} 18V${h + 18}`} stroke={t.ink} stroke-dasharray="1 3" />
              <circle cx={discs[n]} cy="8" r="7.5" fill={t.ink} />
              <text x={discs[n]} y="11.6" text-anchor="middle" class="flag">
                {flag.n}
              </text>
            </g>
          ))}
          <path d={`M${x - 5} 10h10v7l-5 5-5-5Z`} fill={t.ink} />
          <path d={`M${x} 20V${h + 20}`} stroke={t.ink} stroke-width="2" />
          {stepTicks(scale, Math.max(2, w / 150))
            .filter((tick) => scale.x(tick) > 12 && scale.x(tick) < w - 12)
            .map((tick) => (
              <text x={scale.x(tick)} y={h + 32} text-anchor="middle" class="tick">
                {count(tick)}
              </text>
            ))}
        </svg>
      </div>
    </div>
  );
}

function useFlowTable(found: FlowData | null): void {
  useEffect(() => {
    if (!found) return undefined;
    offer("flow", {
      name: "Gradient flow",
      head: ["node", "step", "value"],
      rows: () => {
        const values = floats(found.values);
        return found.nodes
          .filter((one) => one.row >= 0)
          .flatMap((one) =>
            Array.from({ length: found.count }, (_, at) => [
              one.path,
              found.start + at * found.size,
              values[one.row * found.count + at],
            ]),
          );
      },
    });
    return () => withdraw("flow");
  }, [found]);
}
