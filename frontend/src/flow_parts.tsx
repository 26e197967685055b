// Around the graph: bars of the layers, the list beside it, the scrubber below it.
import { type JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { placed } from "./axis";
import { criticalPath } from "./flow_graph";
import { regionsOf, turnsOf } from "./flow_regions";
import { type Reading, type Values, extent, lastedSince, read } from "./flow_values";
import { KIND_NAMES, count, number } from "./format";
import { Icon, Severity } from "./glyphs";
import { type Layout } from "./layout";
import { paintRow } from "./paint";
import { type Scale, scaleOf, stepTicks, tickLabel } from "./plot";
import { cursor, reducedMotion, tokens } from "./state";
import { flagsOf } from "./steps";
import { historyColor } from "./tokens";
import { type FlowData, type RunData } from "./types";

export function Bars({
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
export function FlowSide({
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
          <p class="note">Every layer is near its median at this step.</p>
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
export function Scrubber({
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
