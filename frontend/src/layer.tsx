// One layer: tree with a history strip a row, its lines and its distribution on the shared axis, details beside.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ask, Latest } from "./api";
import { TroubleScreen } from "./chrome";
import {
  floats,
  line,
  Mark,
  valueAt,
  type FindingRow,
  type Packed,
  type RunData,
  type Track,
  type Trouble,
} from "./data";
import { amount, count, KIND_NAMES, number, percent, since } from "./format";
import { Severity } from "./glyphs";
import { handleKeys } from "./keys";
import { paintRow, texture } from "./paint";
import { scaleOf, sentence, type Scale } from "./plot";
import { endsOf, flagsOf, scaleFor, usePlotWidth } from "./run";
import { offer, withdraw } from "./save";
import type { RunSession } from "./session";
import { cursor, go, isPhone, kind, runLink, selected, tokens, view, width } from "./state";
import { ramps } from "./tokens";
import { HeadMap, UnitMap } from "./parts";
import { Axis, colorOf, LineChart, Rules, type Ends, type Flag } from "./tracks";

export interface Pictures {
  site: string;
  kind: string;
  steps: number[];
  bottom: number;
  top: number;
  negative: string;
  positive: string;
  zero: string;
  count: number;
  percentiles: Record<string, string>;
  table: Record<string, Packed>;
}
export interface Heads {
  module: string;
  steps: number[];
  num: number;
  values: string;
}
export interface Units {
  site: string;
  what: string;
  word: string;
  steps: number[];
  num: number;
  values: string;
}
export interface LayerData {
  path: string;
  heads: Heads | null;
  units: Units | null;
  head: {
    type: string;
    detail: string;
    numParameters: number;
    shape: number[];
    dtype: string;
    source: { file: string; line: number } | null;
  };
  tensors: string[];
  tensor: string;
  tracks: Track[];
  pictures: Pictures | null;
  findings: FindingRow[];
  numSites: number;
  histogramEvery: number | null;
}

export function LayerScreen({ session }: { session: RunSession }): JSX.Element {
  const narrow = width.value < 1100,
    phone = isPhone.value;
  const left = phone ? 88 : 168,
    right = phone ? 12 : 96;
  const center = usePlotWidth(session, left, right);
  const [found, setFound] = useState<LayerData | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [tensor, setTensor] = useState(-1);
  const data = session.data.value,
    shown = view.value,
    tree = session.tree.value,
    plot = session.plotWidth.value;
  const path = selected.value || tree.find((row) => row[6] && !row[4])?.[0] || tree[0]?.[0] || "";
  const latest = useRef<Latest<LayerData> | null>(null);
  useEffect(() => {
    latest.current = new Latest<LayerData>((value) => {
      setFound(value);
      setTrouble(null);
    }, setTrouble);
    return () => latest.current?.stop();
  }, [session]);
  useEffect(() => {
    setTensor(-1);
  }, [path]);
  useEffect(() => {
    if (!data || !shown || !path || !plot) return;
    latest.current?.put(() =>
      ask<LayerData>(`runs/${session.key}/layer`, {
        path,
        first: shown[0],
        last: shown[1],
        width: Math.round(plot / 2),
        step: tensor,
        v: data.version,
      }),
    );
  }, [path, data?.version, shown?.[0], shown?.[1], plot, tensor]);
  useLayerKeys(session, path);
  useEffect(() => {
    if (!narrow) session.heatWidth.value = 60;
    return () => {
      session.heatWidth.value = 0;
    };
  }, [session, narrow]);
  useLayerTables(found);
  const inTree = tree.find((row) => row[0] === path);
  return (
    <main class="screen layer" id="main">
      {!narrow && <Tree session={session} path={path} />}
      <div class="middle" ref={center.ref}>
        {trouble && !found && <TroubleScreen trouble={trouble} />}
        {found && data && shown && (
          <>
            <LayerHead data={data} found={found} session={session} severity={inTree?.[6] ?? ""} />
            <LayerTracks
              data={data}
              found={found}
              scale={scaleFor(data, shown, plot)}
              onTensor={setTensor}
              tensor={tensor}
            />
          </>
        )}
      </div>
      {!phone && found && data && <Side found={found} />}
    </main>
  );
}

function neighbors(session: RunSession, path: string): [string | null, string | null] {
  const rows = session.rows().map((row) => session.tree.value[row][0]),
    at = rows.indexOf(path);
  return [at > 0 ? rows[at - 1] : null, at >= 0 && at < rows.length - 1 ? rows[at + 1] : null];
}
function useLayerKeys(session: RunSession, path: string): void {
  useLayoutEffect(
    () =>
      handleKeys({
        session,
        rows: () => session.rows().map((row) => session.tree.value[row][0]),
        toggle: (one) => session.toggle(one),
        open: (one) => session.toggle(one),
        up: () => go(runLink(session.key)),
      }),
    [session],
  );
  useEffect(() => {
    if (!selected.value && path) selected.value = path;
  }, [path]);
  // What is chosen is opened: its parents must be seen.
  useEffect(() => {
    const parts = path.split("."),
      open = new Set(session.open.value);
    let grown = false;
    for (const row of session.tree.value)
      if (row[4] && path.startsWith(`${row[0]}.`) && !open.has(row[0])) {
        open.add(row[0]);
        grown = true;
      }
    if (grown && parts.length) session.open.value = open;
  }, [path, session.tree.value]);
}

function Tree({ session, path }: { session: RunSession; path: string }): JSX.Element {
  const tree = session.tree.value,
    heat = session.heat.value,
    rows = session.rows();
  return (
    <nav class="tree" aria-label="Layers">
      <p class="treehead">
        <b>{count(session.data.value?.counts.sites ?? 0)} sites</b>
        <span>{(KIND_NAMES[kind.value] ?? "").toLowerCase()} L2</span>
      </p>
      <ul>
        {rows.slice(0, 600).map((row) => {
          const [name, label, , indent, children, frozen, severity] = tree[row];
          return (
            <li class={name === path ? "chosen" : ""}>
              <button
                type="button"
                class="plain"
                aria-current={name === path ? "true" : undefined}
                title={name}
                ref={(el) => {
                  if (el) {
                    el.style.paddingLeft = `${12 + indent * 13}px`;
                    if (name === path) el.scrollIntoView({ block: "nearest" });
                  }
                }}
                onClick={() => {
                  selected.value = name;
                }}
                onDblClick={() => session.toggle(name)}
              >
                <span
                  class={`twist${children ? (session.open.value.has(name) ? " open" : " shut") : ""}`}
                  onClick={(event) => {
                    if (children) {
                      event.stopPropagation();
                      session.toggle(name);
                    }
                  }}
                />
                <span class={`mono${severity ? " strong" : ""}`}>{label}</span>
                {frozen ? <em>frozen</em> : null}
                {severity && <Severity of={severity} size={9} />}
              </button>
              <Strip heat={heat} row={row} />
            </li>
          );
        })}
      </ul>
    </nav>
  );
}
function Strip({ heat, row }: { heat: RunSession["heat"]["value"]; row: number }): JSX.Element {
  const ref = useRef<HTMLCanvasElement>(null);
  const t = tokens.value;
  useLayoutEffect(() => {
    const element = ref.current!,
      dpr = devicePixelRatio || 1;
    element.width = 60 * dpr;
    element.height = 9 * dpr;
    const at = heat?.place.get(row),
      context = element.getContext("2d")!;
    context.clearRect(0, 0, element.width, element.height);
    if (heat && at !== undefined) {
      const scale = scaleOf(heat.start, heat.start + heat.count * heat.size - 1, element.width);
      paintRow(
        context,
        heat,
        at,
        scale.x,
        0,
        element.height,
        t,
        dpr,
        { raw: false, low: 0, high: 0, log: false },
        element.width,
      );
    }
  }, [heat, row, t]);
  return <canvas ref={ref} class="strip" aria-hidden="true" />;
}

function LayerHead({
  data,
  found,
  session,
  severity,
}: {
  data: RunData;
  found: LayerData;
  session: RunSession;
  severity: string;
}): JSX.Element {
  const { head } = found;
  const place = head.source?.file ? `${head.source.file}:${head.source.line}` : "";
  const facts = [
    head.numParameters ? `${amount(head.numParameters)} parameters` : "",
    head.shape.length ? `output ${head.shape.map(count).join(" × ")}${head.dtype ? ` in ${head.dtype}` : ""}` : "",
  ]
    .filter(Boolean)
    .join(", ");
  const [before, after] = neighbors(session, found.path);
  const cause = data.verdict.cause;
  const isCause = cause && found.findings.some((one) => one.code === cause.code);
  const short = (name: string): string => name.split(".").slice(-1)[0];
  return (
    <header class="layerhead">
      <div>
        <h1 class="mono">{found.path}</h1>
        <p>
          <b>{head.type}</b>
          {head.detail && <span class="mono detail">({head.detail})</span>}
          {head.type && facts ? ", " : ""}
          {facts}
          {place && (
            <>
              , <b class="mono">{place}</b>
            </>
          )}
        </p>
      </div>
      {found.findings[0] && (
        <p class="finds">
          <Severity of={severity || found.findings[0].severity} />
          <span>
            <b>{isCause ? "The cause." : "Found here."}</b>{" "}
            {since(found.findings[0].firstStep, found.findings[0].lastStep)}
          </span>
        </p>
      )}
      {!isPhone.value && (
        <div class="steps">
          {before && (
            <button
              type="button"
              class="button"
              title={before}
              onClick={() => {
                selected.value = before;
              }}
            >
              {short(before)} <kbd>k</kbd>
            </button>
          )}
          {after && (
            <button
              type="button"
              class="button"
              title={after}
              onClick={() => {
                selected.value = after;
              }}
            >
              {short(after)} <kbd>j</kbd>
            </button>
          )}
          <a class="button" href={runLink(session.key, "flow")}>
            Show in flow
          </a>
        </div>
      )}
    </header>
  );
}

function LayerTracks({
  data,
  found,
  scale,
  tensor,
  onTensor,
}: {
  data: RunData;
  found: LayerData;
  scale: Scale;
  tensor: number;
  onTensor: (at: number) => void;
}): JSX.Element {
  const flags = flagsOf(data),
    ends = endsOf(data);
  const [first, ...rest] = found.tracks.filter((track) => !(found.heads && track.label === "Attention entropy"));
  const pictures = found.pictures;
  return (
    <div class="layertracks">
      <Axis
        scale={scale}
        flags={flags}
        ends={ends}
        left={isPhone.value ? "Step" : `Steps ${count(scale.first)} to ${count(Math.min(scale.last, data.span[1]))}`}
        right=" "
      />
      {first && <LayerLine track={first} scale={scale} flags={flags} ends={ends} height={96} />}
      {found.heads && <HeadMap heads={found.heads} scale={scale} flags={flags} ends={ends} span={data.span} />}
      {pictures && (
        <>
          <Spectrum
            pictures={pictures}
            scale={scale}
            flags={flags}
            ends={ends}
            span={data.span}
            tensors={found.tensors}
            tensor={tensor}
            onTensor={onTensor}
          />
          <Fan pictures={pictures} scale={scale} flags={flags} ends={ends} span={data.span} />
        </>
      )}
      {rest.map((track) => (
        <LayerLine key={track.key} track={track} scale={scale} flags={flags} ends={ends} height={64} />
      ))}
      {!pictures && (
        <p class="note pad">
          No distribution was recorded here
          {found.histogramEvery ? "" : ": histogram_every=10 records one every tenth step"}.
        </p>
      )}
      {!found.tracks.length && <p class="note pad">Nothing was recorded of this layer in these steps.</p>}
    </div>
  );
}
function LayerLine({
  track,
  scale,
  flags,
  ends,
  height,
}: {
  track: Track;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  height: number;
}): JSX.Element {
  const of = line(track.series);
  return (
    <div class="panel track">
      <div class="gutter">
        <b>{track.label}</b>
        {track.note && <small>{track.note}</small>}
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
        label={sentence(track.label, of, scale, number)}
      />
      <div class="values">
        <At of={of} last={track.last} />
      </div>
    </div>
  );
}
function At({ of, last }: { of: ReturnType<typeof line>; last: number | string | null }): JSX.Element {
  const words = number(cursor.value === null ? last : valueAt(of, cursor.value));
  return <b class={words === "NaN" || words === "Inf" ? "crit" : ""}>{words}</b>;
}

const UNPACKED = new WeakMap<
  Pictures,
  { negative: Float32Array; positive: Float32Array; zero: Float32Array; percentiles: Record<string, Float32Array> }
>();
function unpack(of: Pictures): {
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
const power = (exponent: number): string =>
  `2${String(exponent)
    .replace("-", "⁻")
    .replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)])}`;

/** Every value by sign and power of two, over steps: mirrored at zero. */
function Spectrum({
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
function Fan({
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
const nearest = (pictures: Pictures, step: number): number => {
  let best = 0;
  pictures.steps.forEach((one, at) => {
    if (one <= step) best = at;
  });
  return best;
};

function Side({ found }: { found: LayerData }): JSX.Element {
  const pictures = found.pictures;
  const last = pictures ? pictures.steps[pictures.steps.length - 1] : 0;
  const now = pictures ? nearest(pictures, cursor.value ?? last) : 0;
  const before =
    pictures && view.value
      ? Math.min(
          now,
          Math.max(
            0,
            pictures.steps.findIndex((step) => step >= view.value![0]),
          ),
        )
      : 0;
  return (
    <aside class="side">
      {pictures && pictures.steps.length > 0 && (
        <>
          <section>
            <h2>
              <span>
                {KIND_NAMES[pictures.kind]} of {pictures.site.split(".").slice(-2).join(".")}
              </span>
              <small>
                <i class="dash s1" />
                {count(pictures.steps[now])} <i class="dash mark" />
                {count(pictures.steps[before])}
              </small>
            </h2>
            <Histogram pictures={pictures} now={now} before={before} />
          </section>
          <section>
            <Table pictures={pictures} now={now} before={before} />
          </section>
        </>
      )}
      {found.units && <UnitMap units={found.units} />}
      <section>
        <h2>
          <span>Findings here</span>
          <small>{count(found.findings.length)}</small>
        </h2>
        {found.findings.length ? (
          <ul class="sidefinds">
            {found.findings.map((one) => (
              <li>
                <Severity of={one.severity} size={10} />
                <button
                  type="button"
                  class="plain"
                  onClick={() => {
                    cursor.value = one.firstStep;
                  }}
                >
                  {one.message}
                </button>
                <b>{count(one.firstStep)}</b>
              </li>
            ))}
          </ul>
        ) : (
          <p class="note">Nothing to report.</p>
        )}
      </section>
      <section>
        <h2>
          <span>Measured</span>
        </h2>
        <p class="note">
          {count(found.numSites)} sites here. Exact statistics every recorded step
          {found.histogramEvery ? `, distributions every ${found.histogramEvery}th` : ""}.
        </p>
      </section>
    </aside>
  );
}

function Histogram({ pictures, now, before }: { pictures: Pictures; now: number; before: number }): JSX.Element {
  const t = tokens.value,
    w = 346,
    h = 104;
  const bins = pictures.top - pictures.bottom,
    { negative, positive, zero } = unpack(pictures);
  const bars = (at: number): number[] => {
    const out = [...Array(bins).keys()].map((k) => negative[at * bins + k]);
    return [...out, zero[at], ...[...Array(bins).keys()].map((k) => positive[at * bins + k])];
  };
  const share = (values: number[]): number[] => {
    const total = values.reduce((a, b) => a + b, 0) || 1;
    return values.map((one) => one / total);
  };
  const a = share(bars(now)),
    b = share(bars(before)),
    most = Math.max(...a, ...b, 1e-9);
  const cell = w / a.length;
  const path = (values: number[]): string =>
    `M0 ${h}${values.map((one, at) => `L${(at * cell).toFixed(1)} ${(h - (one / most) * (h - 8)).toFixed(1)}L${((at + 1) * cell).toFixed(1)} ${(h - (one / most) * (h - 8)).toFixed(1)}`).join("")}L${w} ${h}`;
  const tick = (at: number, word: string): JSX.Element => (
    <text x={at * cell} y={h + 15} text-anchor="middle" class="tick">
      {word}
    </text>
  );
  const inner = Math.round(bins * 0.35),
    outer = Math.round(bins * 0.85);
  return (
    <svg
      class="histogram"
      data-panel="histogram"
      width={w}
      height={h + 20}
      viewBox={`0 0 ${w} ${h + 20}`}
      role="img"
      aria-label={`Share of values by sign and power of two at step ${count(pictures.steps[now])}, against step ${count(pictures.steps[before])}`}
    >
      <path d={path(a)} fill={t.s[0]} fill-opacity=".22" stroke={t.s[0]} stroke-width="1.25" />
      <path d={path(b)} fill="none" stroke={t.ink2} stroke-width="1.1" stroke-dasharray="3 2.5" />
      <path d={`M0 ${h}.5H${w}`} stroke={t.line2} />
      {tick(bins + 0.5, "0")}
      {tick(bins + 1 + inner, `+${power(pictures.bottom + inner)}`)}
      {tick(bins + 1 + outer, `+${power(pictures.bottom + outer)}`)}
      {tick(bins - inner, `−${power(pictures.bottom + inner)}`)}
      {tick(bins - outer, `−${power(pictures.bottom + outer)}`)}
    </svg>
  );
}
function Table({ pictures, now, before }: { pictures: Pictures; now: number; before: number }): JSX.Element {
  const { percentiles } = unpack(pictures);
  const step = cursor.value ?? pictures.steps[now],
    first = pictures.steps[before];
  const of = (name: string, at: number): number | null => valueAt(line(pictures.table[name]), at);
  const rows: [string, string, string][] = [
    ["Median of |x|", number(percentiles["50"][before]), number(percentiles["50"][now])],
    ["99th percentile of |x|", number(percentiles["99"][before]), number(percentiles["99"][now])],
    ["Largest |x|", number(of("abs_max", first)), number(of("abs_max", step))],
    ["Excess kurtosis", number(of("kurtosis", first)), number(of("kurtosis", step))],
    ["Zeros", share(of("zero_fraction", first)), share(of("zero_fraction", step))],
    ["NaN, Inf", number(of("num_nonfinite", first)), number(of("num_nonfinite", step))],
  ];
  return (
    <table class="facts">
      <thead>
        <tr>
          <th scope="col">Values</th>
          <th scope="col">at {count(first)}</th>
          <th scope="col">at {count(step)}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(([name, a, b]) => (
          <tr>
            <th scope="row">{name}</th>
            <td>{a}</td>
            <td>
              <b>{b}</b>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
const share = (value: number | null): string => (value === null ? "" : percent(value));

function useLayerTables(found: LayerData | null): void {
  useEffect(() => {
    if (!found) return undefined;
    for (const track of found.tracks)
      offer(track.key, {
        name: track.label,
        head: ["first_step", "steps", "value"],
        rows: () => {
          const of = line(track.series);
          return [...of.mean].map((value, at) => [
            of.start + at * of.size,
            of.size,
            of.marks[at] === Mark.MISSING ? "" : value,
          ]);
        },
      });
    const pictures = found.pictures;
    if (pictures)
      offer("spectrum", {
        name: `Distribution of ${pictures.site}`,
        head: ["step", "sign", "exponent", "values"],
        rows: () => {
          const { negative, positive } = unpack(pictures),
            bins = pictures.top - pictures.bottom;
          return pictures.steps.flatMap((step, at) =>
            [...Array(bins).keys()].flatMap((k) => [
              [step, "+", pictures.bottom + k, positive[at * bins + k]],
              [step, "-", pictures.bottom + k, negative[at * bins + bins - 1 - k]],
            ]),
          );
        },
      });
    return () => {
      for (const track of found.tracks) withdraw(track.key);
      withdraw("spectrum");
    };
  }, [found]);
}
