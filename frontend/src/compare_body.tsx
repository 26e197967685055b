// Two runs on one axis: curves, layers, outcome, settings.
import { type JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Axis, type Ends, type Flag, Rules, cursorX } from "./axis";
import { Headline } from "./compare";
import { type Heat, Mark, floats, line, small, valueAt } from "./data";
import { KIND_NAMES, count, number, ratio } from "./format";
import { STAT_NAMES } from "./types";
import { HeatGrid } from "./heat";
import { HeatKey } from "./heat_key";
import { texture } from "./paint";
import { type Scale, paths, rangeOf, scaleOf, sentence, stretches, tickLabel, valueTicks, yOf } from "./plot";
import { cursor, go, isPhone, kind, runLink, stat, tokens, width } from "./state";
import { historyColor, ramps } from "./tokens";
import { type Angles, type CompareData } from "./types";

export function Body({
  found,
  shown,
  plot,
  rows,
  open,
  a,
  angled,
  toggle,
}: {
  angled: Angles | null;
  found: CompareData;
  shown: [number, number];
  plot: number;
  rows: number[];
  open: Set<string>;
  a: string;
  toggle: (path: string) => void;
}): JSX.Element {
  const scale = scaleOf(shown[0], shown[1], plot);
  const levels = useMemo(() => floats(found.levels), [found]),
    marks = useMemo(() => small(found.marks), [found]);
  const left = useMemo(() => floats(found.valuesA), [found]),
    right = useMemo(() => floats(found.valuesB), [found]);
  const place = useMemo(() => new Map(found.rows.map((row, at) => [row, at])), [found]);
  const [byAngle, setByAngle] = useState(false);
  const cosines = useMemo(() => (angled?.cosine ? floats(angled.cosine.values) : null), [angled]);
  const looks = angled?.cosine?.steps ?? [],
    turnOf = useMemo(() => new Map(angled?.rows.map((row, at) => [row, at])), [angled]);
  const angleAt = (row: number, step: number): number | null => {
    const at = turnOf.get(row);
    if (at === undefined || !cosines) return null;
    let look = -1;
    looks.forEach((one, n) => {
      if (one <= step) look = n;
    });
    const value = look < 0 ? NaN : cosines[at * looks.length + look];
    return Number.isFinite(value) ? value : null;
  };
  const angles = byAngle && cosines !== null;
  const heat: Heat = {
    kind: found.kind,
    stat: found.stat,
    start: found.start,
    size: found.size,
    count: found.count,
    rows: found.rows,
    place,
    values: levels,
    marks,
    usual: new Float32Array(found.rows.length).fill(1),
  };
  const cell = (
    row: number,
    step: number,
  ): { level: number; mark: number; a: number; b: number; differs: number | null } | null => {
    const at = place.get(row),
      column = Math.floor((step - found.start) / found.size);
    if (at === undefined || column < 0 || column >= found.count) return null;
    const n = at * found.count + column;
    return { level: levels[n], mark: marks[n], a: left[n], b: right[n], differs: found.differs[at] };
  };
  const both = Math.min(found.a.lastStep ?? 0, found.b.lastStep ?? 0),
    shorter = (found.a.lastStep ?? 0) < (found.b.lastStep ?? 0) ? "A" : "B";
  const ends =
    found.a.lastStep !== found.b.lastStep
      ? { step: both, label: `${shorter} ended at ${count(both)}`, live: false }
      : null;
  const broken = (
    [
      ["A", found.nan.a],
      ["B", found.nan.b],
    ] as const
  ).filter((one): one is readonly ["A" | "B", number] => one[1] !== null);
  const together = broken.length === 2 && broken[0][1] === broken[1][1];
  const flags: Flag[] = [
    ...(found.first && found.first.step >= scale.first
      ? [{ n: 1, step: found.first.step, chip: `${count(found.first.step)}${isPhone.value ? "" : ", they diverge"}` }]
      : []),
    ...(together
      ? [{ n: 2, step: broken[0][1], words: `both NaN, ${count(broken[0][1])}` }]
      : broken.map(([letter, step], n) => ({ n: 2 + n, step, words: `${letter} is NaN, ${count(step)}` }))),
  ];
  const same = found.first ? scale.x(found.first.step) : scale.width;
  return (
    <>
      <section class="verdict">
        <div class="say">
          <p class="overline">
            <span>First difference</span>
          </p>
          <Headline found={found} link={a} />
        </div>
        <table class="evidence two">
          <caption class="hidden">Outcome</caption>
          <thead>
            <tr>
              <th scope="col">Outcome</th>
              <th scope="col">
                <b class="letter a">A</b>
              </th>
              <th scope="col">
                <b class="letter b">B</b>
              </th>
            </tr>
          </thead>
          <tbody>
            {found.outcome.map((one) => (
              <tr>
                <th scope="row" title={one.label}>
                  {one.site ? (
                    <>
                      {one.label.slice(0, -one.site.length)}
                      <span class="mono">
                        {one.site.split(".").length > 2 ? "…" : ""}
                        {one.site.split(".").slice(-2).join(".")}
                      </span>
                    </>
                  ) : (
                    one.label
                  )}
                </th>
                <td class={one.a === "NaN" ? "crit" : ""}>{number(one.a)}</td>
                <td class={`now${one.b === "NaN" ? " crit" : ""}`}>{number(one.b)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <table class="evidence two settings">
          <caption class="hidden">Settings</caption>
          <thead>
            <tr>
              <th scope="col">
                Settings{" "}
                <span class="note">
                  {found.settings.numDiffer
                    ? `${count(found.settings.numDiffer)} of ${count(found.settings.num)} differ`
                    : `all ${count(found.settings.num)} the same`}
                </span>
              </th>
              <th scope="col">
                <b class="letter a">A</b>
              </th>
              <th scope="col">
                <b class="letter b">B</b>
              </th>
            </tr>
          </thead>
          <tbody>
            {found.settings.rows.slice(0, 5).map((one) => (
              <tr class={one.a === one.b ? "same" : ""}>
                <th scope="row" class="mono">
                  {one.name}
                </th>
                <td class="mono" title={one.a}>
                  {one.a || "none"}
                </td>
                <td class="mono now" title={one.b}>
                  {one.b || "none"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <Axis
        scale={scale}
        flags={flags}
        left={isPhone.value ? "Step" : `Steps ${count(shown[0])} to ${count(shown[1])}`}
        right=" "
      />
      {found.tracks.map((one) => (
        <Pair key={one.key} track={one} scale={scale} parted={found.first?.step ?? null} flags={flags} ends={ends} />
      ))}
      <div class="panel toolbar">
        <div class="gutter">
          <b>Difference by layer</b>
        </div>
        <div class="plot controls">
          {!isPhone.value && (
            <>
              <div class="segments" role="radiogroup" aria-label="What is shown">
                {found.kinds.map((one) => (
                  <button
                    type="button"
                    role="radio"
                    aria-checked={found.kind === one}
                    class={found.kind === one ? "on" : ""}
                    onClick={() => {
                      kind.value = one;
                    }}
                  >
                    {KIND_NAMES[one] ?? one}
                  </button>
                ))}
              </div>
              <select
                aria-label="Statistic"
                value={stat.value}
                onChange={(event) => {
                  stat.value = (event.target as HTMLSelectElement).value;
                }}
              >
                {["norm", "abs_max", "mean_abs", "mean", "std"].map((one) => (
                  <option value={one}>{STAT_NAMES[one]}</option>
                ))}
              </select>
              {cosines && (
                <div class="segments" role="radiogroup" aria-label="How they are compared">
                  <button
                    type="button"
                    role="radio"
                    aria-checked={!byAngle}
                    class={byAngle ? "" : "on"}
                    onClick={() => setByAngle(false)}
                  >
                    A over B
                  </button>
                  <button
                    type="button"
                    role="radio"
                    aria-checked={byAngle}
                    class={byAngle ? "on" : ""}
                    onClick={() => setByAngle(true)}
                  >
                    Cosine
                  </button>
                </div>
              )}
            </>
          )}
          <span class="space" />
          {width.value > 1180 && (
            <HeatKey
              heat={angles ? null : heat}
              raw={angles}
              ends={angles ? ["same direction, 1", "0 or opposite"] : ["A smaller", "A larger"]}
              extra={marks.includes(Mark.EQUAL) ? [["equal", Mark.EQUAL]] : []}
            />
          )}
        </div>
        <div class="values head">
          <span>differs</span>
          <span>{angles ? "cosine" : "A / B"}</span>
        </div>
      </div>
      <HeatGrid
        tree={found.tree}
        rows={rows}
        heat={heat}
        scale={scale}
        span={found.span}
        flags={flags}
        ends={ends}
        raw={false}
        open={open}
        kind={found.kind}
        stat={found.stat}
        onToggle={toggle}
        onOpen={(path) => go(runLink(a, "layers", { at: path }))}
        draw={(context, row, x, y, height, t, dpr, edge) => {
          const at = place.get(row);
          if (at === undefined) return;
          if (angles) {
            const turn = turnOf.get(row);
            if (turn !== undefined)
              looks.forEach((step, n) => {
                const value = cosines![turn * looks.length + n],
                  next = looks[n + 1] ?? Math.min(both + 1, step + Math.max(1, step - (looks[n - 1] ?? step - 1))),
                  x0 = Math.max(0, Math.round(x(step))),
                  x1 = Math.min(edge, Math.round(x(next)));
                if (x1 <= x0 || !Number.isFinite(value)) return;
                context.fillStyle = ramps(t).value[Math.max(0, Math.min(255, Math.round((1 - value) * 255)))];
                context.fillRect(x0, y, x1 - x0, height);
              });
            return;
          }
          for (let column = 0; column < found.count; column++) {
            const n = at * found.count + column,
              start = found.start + column * found.size,
              x0 = Math.max(0, Math.round(x(start))),
              x1 = Math.min(edge, Math.round(x(start + found.size)));
            if (x1 <= x0 || start > both) continue;
            context.fillStyle =
              marks[n] === Mark.PLAIN
                ? historyColor(t, Number.isFinite(levels[n]) ? levels[n] : levels[n] > 0 ? 6 : -6)
                : texture(context, marks[n], t, dpr);
            context.fillRect(x0, y, x1 - x0, height);
          }
        }}
        valuesOf={(row, step) => {
          const one = cell(row, step),
            at = place.get(row);
          const parted = at === undefined ? null : found.differs[at];
          if (!one) return [parted === null ? "" : count(parted), "", false];
          if (at !== undefined && !found.common[at]) return ["", "only A", false];
          if (angles) {
            const value = angleAt(row, step);
            return [
              parted === null ? "" : count(parted),
              value === null ? "" : value.toFixed(2),
              value !== null && value < 0.5,
            ];
          }
          return [
            parted === null ? "" : count(parted),
            parted === null
              ? "equal"
              : one.mark === Mark.EQUAL
                ? "equal"
                : one.mark >= Mark.INF
                  ? "NaN"
                  : Number.isFinite(one.level)
                    ? ratioWords(one.level)
                    : "",
            Math.abs(one.level) > 0.585,
          ];
        }}
        band={!angles && same > 150 && rows.length > 4 ? { x: same, words: "bit for bit the same" } : undefined}
        sign={(row) => (row === found.first?.place ? "first" : "")}
        tipOf={(row, step) => {
          const one = cell(row, step);
          if (!one || one.mark === Mark.MISSING) return null;
          return (
            <>
              <p>
                <span class="mono strong">{found.tree[row][0]}</span> {(KIND_NAMES[found.kind] ?? "").toLowerCase()},
                step {count(step)}
              </p>
              <p>
                {one.mark === Mark.EQUAL ? (
                  "equal to the last bit that is kept"
                ) : (
                  <>
                    <b class="inka">A {number(one.a)}</b>, <b class="inkb">B {number(one.b)}</b>
                    {angleAt(row, step) !== null && `, cosine ${angleAt(row, step)!.toFixed(2)}`}
                    {one.differs !== null && `, first differs at ${count(one.differs)}`}
                  </>
                )}
              </p>
            </>
          );
        }}
      />
    </>
  );
}
const ratioWords = (level: number): string => {
  const value = 2 ** level;
  const words = ratio(value);
  return words === "usual" ? value.toFixed(1) : words;
};
function Pair({
  track,
  scale,
  parted,
  flags,
  ends,
}: {
  track: CompareData["tracks"][0];
  scale: Scale;
  parted: number | null;
  flags: Flag[];
  ends: Ends | null;
}): JSX.Element {
  const t = tokens.value,
    h = track.key === "lr" ? 28 : track.key === "loss" ? 72 : 60;
  const a = line(track.a),
    b = line(track.b);
  const range = rangeOf([a, b], scale, track.log),
    y = yOf(range, h, 9),
    ticks = h < 40 ? [] : valueTicks(range, 3);
  const before =
    parted === null ? a : { ...a, count: Math.max(0, Math.min(a.count, Math.ceil((parted - a.start) / a.size) + 1)) };
  const at = cursor.value;
  const now = [a, b].map((one) => number(at === null ? null : valueAt(one, at)));
  const dot = (of: typeof a, color: string): JSX.Element | null => {
    const value = at === null ? null : valueAt(of, at);
    return value === null || !Number.isFinite(value) ? null : (
      <circle cx={cursorX(scale, at!)} cy={y(value)} r="2.5" fill={color} stroke={t.sheet} stroke-width="1.5" />
    );
  };
  return (
    <div class="panel track">
      <div class="gutter">
        <b>{track.label}</b>
        {(track.note || track.log) && (
          <small title={track.note}>
            {track.key === "parted" ? (
              <>
                <span class="mono">{track.note.split(".").slice(-2).join(".")}</span>
                {track.log ? ", log" : ""}
              </>
            ) : track.log ? (
              "log"
            ) : (
              track.note
            )}
          </small>
        )}
      </div>
      <svg
        class="plot"
        data-panel={track.key}
        width={scale.width}
        height={h}
        role="img"
        aria-label={`${sentence(`${track.label} of A`, a, scale, number)}. ${sentence("B", b, scale, number)}`}
      >
        {ticks.map((tick) => (
          <g>
            <path d={`M0 ${y(tick).toFixed(1)}H${scale.width}`} stroke={t.line} />
            <text x="-8" y={y(tick) + 4} text-anchor="end" class="tick">
              {tickLabel(tick)}
            </text>
          </g>
        ))}
        {[a, b]
          .flatMap((one) => stretches(one, scale, Mark.NAN))
          .map(([x, w]) => (
            <rect x={x} width={Math.max(2, w)} y="0" height={h} fill="url(#hatch)" />
          ))}
        {[
          [a, t.s[1]],
          [b, t.s[0]],
        ].map(([of, color]) => {
          const drawn = paths(of as typeof a, scale, y, range.log);
          return (
            <g>
              <path d={drawn.band} fill={color as string} opacity=".16" />
              <path d={drawn.mean} fill="none" stroke={color as string} stroke-width="1.5" />
            </g>
          );
        })}
        <path d={paths(before, scale, y, range.log).mean} fill="none" stroke={t.ink2} stroke-width="1.5" />
        <Rules scale={scale} height={h} flags={flags} ends={ends} words={track.key === "loss"} />
        {dot(a, t.s[1])}
        {dot(b, t.s[0])}
      </svg>
      <div class={`values pair${now.some((one) => one.includes("×")) && h > 40 ? " over" : ""}`}>
        {now[0] && now[0] === now[1] ? (
          <b class="inkboth">{now[0]}</b>
        ) : (
          <>
            <b class="inka">{now[0]}</b>
            <b class="inkb">{now[1]}</b>
          </>
        )}
      </div>
    </div>
  );
}
