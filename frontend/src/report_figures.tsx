// The numbered figures of the report, and its facts.
import { type ComponentChildren, type JSX } from "preact";
import { useMemo } from "preact/hooks";
import { type Ends, type Flag, colorOf } from "./axis";
import { line, heat as unpackHeat } from "./data";
import { Graph } from "./flow_graph";
import { nodeValues } from "./flow_values";
import { amount, clock, count, day, duration, number, plural } from "./format";
import { StateSign } from "./glyphs";
import { HeatGrid } from "./heat";
import { visibleRows } from "./heat_cells";
import { layOut } from "./layout";
import { type Scale, sentence } from "./plot";
import { LineChart } from "./tracks";
import { type EvidenceData, type FlowData, type HeatData, type ReportData, type RunData } from "./types";

/** A quantity keeps its color on every screen: gradients s2, entropy s3; what has none of its own takes the next free one. */
export const hueOf = (one: EvidenceData, at: number): string =>
  one.kind.includes("gradient") || /gradient/.test(one.label)
    ? "s2"
    : /entropy/.test(one.label)
      ? "s3"
      : ["s4", "s5", "s6"][at];
/** Inside a sentence; names of layers stay as they are. */
export const lower = (words: string): string =>
  /^[A-Z][a-z]/.test(words) ? words.charAt(0).toLowerCase() + words.slice(1) : words;
export function Figure({
  n,
  id,
  text,
  children,
  key_,
}: {
  n: number;
  id: string;
  text: ComponentChildren;
  children: ComponentChildren;
  key_?: JSX.Element;
}): JSX.Element {
  return (
    <figure id={`figure-${id}`}>
      {children}
      <figcaption>
        <span>
          <b>Figure {n}.</b> {text}
        </span>
        {key_}
      </figcaption>
    </figure>
  );
}
export function Curve({
  label,
  note = "",
  of,
  color,
  scale,
  flags,
  ends,
  log,
}: {
  label: string;
  note?: string;
  of: ReturnType<typeof line>;
  color: string;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  log?: boolean;
}): JSX.Element {
  const finite = [...of.mean].filter((value, at) => of.marks[at] === 0 && value > 0);
  const isLog =
    log ??
    (finite.length > 0 &&
      finite.length === [...of.marks].filter((mark) => mark === 0).length &&
      Math.max(...finite) / Math.min(...finite) > 100);
  return (
    <div class="panel track">
      <div class="gutter">
        <b>{label}</b>
        {(note || isLog) && <small>{note || "log"}</small>}
      </div>
      <LineChart
        id={label}
        scale={scale}
        height={56}
        lines={[{ of, color: colorOf(color) }]}
        log={isLog}
        flags={flags}
        ends={ends}
        label={sentence(label, of, scale, number)}
      />
      <div class="values" />
    </div>
  );
}
export function HeatFigure({
  packed,
  run,
  scale,
  flags,
  ends,
}: {
  packed: HeatData;
  run: RunData;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
}): JSX.Element {
  const heat = useMemo(() => unpackHeat(packed), [packed]),
    tree = packed.tree ?? [];
  const open = new Set(packed.rows.filter((row) => tree[row][2] >= 0).map((row) => tree[tree[row][2]][0]));
  const rows = visibleRows(tree, open).filter((row) => heat.place.has(row));
  return (
    <div
      class="stillheat"
      ref={(el) => {
        if (el) el.style.height = `${rows.length * 13}px`;
      }}
    >
      <HeatGrid
        tree={tree}
        rows={rows}
        heat={heat}
        scale={scale}
        span={run.span}
        flags={flags}
        ends={ends}
        raw={false}
        open={open}
        kind={packed.kind}
        stat={packed.stat}
        rowHeight={13}
        height={rows.length * 13}
        onToggle={() => undefined}
        onOpen={() => undefined}
      />
    </div>
  );
}
export function FlowFigure({ flow, step, w }: { flow: FlowData; step: number; w: number }): JSX.Element {
  const layout = useMemo(() => {
      const made = layOut(flow.nodes, flow.edges, flow.opened, w, 420),
        at = made.boxes.map((one) => one.y);
      // A chain in one row does not need the height of a river, nor two of them.
      const needed = at.length ? Math.max(...at) - Math.min(...at) + 110 : 420;
      return needed < 340 ? layOut(flow.nodes, flow.edges, flow.opened, w, needed) : made;
    }, [flow, w]),
    values = useMemo(() => nodeValues(flow), [flow]);
  return <Graph found={flow} nodes={values} layout={layout} step={step} playing={false} />;
}
export function Facts({ data }: { data: ReportData }): JSX.Element {
  const { run, model } = data.run;
  const seconds = run.startedAt && run.endedAt ? run.endedAt - run.startedAt : null;
  const rows: [string, ComponentChildren][] = [
    [
      "Run",
      <>
        {run.name} <span class="mono">{run.id}</span>
      </>,
    ],
    [
      "State",
      <span class="stand">
        <StateSign of={run.state} />
        {run.stateText}
      </span>,
    ],
    ["Started", `${day(run.startedAt)}, ${clock(run.startedAt)}`],
    ["Length", seconds ? duration(seconds) : ""],
    ["Model", [model.type, model.numParameters ? amount(model.numParameters) : ""].filter(Boolean).join(", ")],
    ["Precision", model.precision],
    ["Optimizer", model.optimizers.join(", ")],
    ["Ranks", String(model.numRanks)],
    [
      "Recorded",
      `${count(data.run.verdict.lookedAt.numSites)} of ${plural(data.run.verdict.lookedAt.numSitesExpected, "site")}`,
    ],
  ];
  return (
    <dl class="runfacts">
      {rows
        .filter(([, value]) => value)
        .map(([name, value]) => (
          <div>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
