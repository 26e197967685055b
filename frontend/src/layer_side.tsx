// Beside a layer: its histogram at the cursor, its numbers, its findings.
import { type JSX } from "preact";
import { line, valueAt } from "./data";
import { nearest, power, unpack } from "./distribution";
import { KIND_NAMES, count, number, percent } from "./format";
import { Severity } from "./glyphs";
import { UnitMap } from "./parts";
import { cursor, tokens, view } from "./state";
import { type LayerData, type Pictures } from "./types";

export function LayerSide({ found }: { found: LayerData }): JSX.Element {
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
export const share = (value: number | null): string => (value === null ? "" : percent(value));
