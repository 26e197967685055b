// Where a step's time goes: the mean step as one bar, its parts over the run, the slowest steps by their parts.
import type { ProfilePart, ReportPart } from "../types";
import { type JSX } from "preact";
import { MoreTabs, useAnswer } from "../answer";
import { Axis, type Ends, type Flag, Rules, colorOf } from "../axis";
import { Empty, TroubleScreen } from "../chrome";
import { type Line, Mark, line, valueAt } from "../data";
import { count, number, percent, plural, real } from "../format";
import { MeanBar } from "../mean_bar";
import { type Scale, scaleOf, sentence, tickLabel, valueTicks } from "../plot";
import { usePointer } from "../pointer";
import { type RunSession } from "../session";
import { cursor, go, isPhone, runLink, tokens } from "../state";
import { LEFT, RIGHT, endsOf, flagsOf, usePlotWidth } from "../steps";
import { LineChart } from "../tracks";

export function ProfileScreen({ session }: { session: RunSession }): JSX.Element {
  const measured = usePlotWidth(session, isPhone.value ? 88 : LEFT, isPhone.value ? 12 : RIGHT);
  const [found, trouble] = useAnswer(session, "profile");
  const data = session.data.value;
  const span = data?.span ?? [0, 1],
    scale = scaleOf(span[0], span[1], session.plotWidth.value);
  const pointer = usePointer(scale, span as [number, number]);
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found || !data) return <main class="screen" id="main" ref={measured.ref} />;
  if (!found.series)
    return (
      <main class="screen" id="main" ref={measured.ref}>
        <MoreTabs session={session} />
        <Empty
          title="No time was recorded."
          text="A run that watches its optimizer records the time of every step."
          command="stethoscope demo"
        />
      </main>
    );
  const mean = real(found.meanMs) ?? 0,
    of = line(found.series);
  const flags = flagsOf(data),
    ends = endsOf(data),
    [top, cut] = ceiling(of);
  const share = (one: ReportPart): number => (mean ? (real(one.ms) ?? 0) / mean : 0);
  const at = cursor.value,
    ours = found.parts.find((one) => one.label === "Stethoscope");
  return (
    <main class="screen" id="main" ref={measured.ref}>
      <MoreTabs session={session} />
      <div class="profilehead">
        <h1>
          A step takes {number(mean)} ms{ours ? `, ${percent(share(ours))} of it Stethoscope` : ""}.
        </h1>
        <p class="note">
          Mean of {plural(found.numSteps, "step")}; median {number(found.medianMs)} ms.
        </p>
        <MeanBar parts={found.parts} share={share} />
        <ul class="profilekey">
          {found.parts.map((one) => (
            <li>
              <svg width="8" height="8" aria-hidden="true">
                <rect width="8" height="8" rx="2" fill={colorOf(one.color)} />
              </svg>
              <span>{one.label}</span>
              <b>{percent(share(one))}</b>
              <small>{number(one.ms)} ms</small>
            </li>
          ))}
        </ul>
      </div>
      <Axis
        scale={scale}
        flags={flags}
        ends={ends}
        left={isPhone.value ? "Step" : `Steps ${count(scale.first)} to ${count(scale.last)}`}
      />
      <div class="panel track" {...pointer}>
        <div class="gutter">
          <b>Time of a step</b>
          <small>ms</small>
        </div>
        <LineChart
          id="step_ms"
          scale={scale}
          height={96}
          lines={[{ of, color: tokens.value.ink2 }]}
          log={false}
          flags={flags}
          ends={ends}
          label={sentence("Time of a step in ms", of, scale, number)}
        />
        <div class="values">
          <b>{number(at === null ? mean : valueAt(of, at))} ms</b>
        </div>
      </div>
      {found.parts.length > 1 && (
        <div class="panel track">
          <div class="gutter">
            <b>Where it goes</b>
            <small>ms, one part on the other{cut ? `, cut at ${number(top)}` : ""}</small>
          </div>
          <Stack parts={found.parts} scale={scale} top={top} flags={flags} ends={ends} />
          <div class="values parts">
            {at !== null &&
              found.parts.map((one) => (
                <span>
                  <svg width="8" height="8" aria-hidden="true">
                    <rect width="8" height="8" rx="2" fill={colorOf(one.color)} />
                  </svg>
                  {number(valueAt(line(one.series), at))}
                </span>
              ))}
          </div>
        </div>
      )}
      <div class="doc">
        <h2>Slowest steps</h2>
        <table class="facts slow" tabIndex={isPhone.value ? 0 : undefined}>
          <thead>
            <tr>
              <th scope="col">Step</th>
              <th scope="col">ms</th>
              <th scope="col">against the mean</th>
              {found.parts.length > 1 && found.parts.map((one) => <th scope="col">{one.label}</th>)}
            </tr>
          </thead>
          <tbody>
            {found.slowest.map((one) => {
              const most = one.parts.reduce<number>(
                (best, value, n) => ((real(value) ?? 0) > (real(one.parts[best]) ?? 0) ? n : best),
                0,
              );
              return (
                <tr>
                  <th scope="row">
                    <button
                      type="button"
                      class="plain"
                      onClick={() => go(runLink(session.key, "overview", { step: one.step }))}
                    >
                      {count(one.step)}
                    </button>
                  </th>
                  <td>
                    <b>{number(one.ms)}</b>
                  </td>
                  <td>×{((real(one.ms) ?? NaN) / mean).toFixed(1)}</td>
                  {found.parts.length > 1 &&
                    one.parts.map((value, n) => <td>{n === most ? <b>{number(value)}</b> : number(value)}</td>)}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </main>
  );
}
/** The highest value that the layers are drawn to, and whether a step lies above it: one far above the rest would flatten them. */
function ceiling(of: Line): [number, boolean] {
  const seen = [...of.mean].filter((value, n) => of.marks[n] === Mark.PLAIN && value > 0).sort((a, b) => a - b);
  const most = seen[seen.length - 1] ?? 1,
    limit = 3 * (seen[Math.floor(seen.length / 2)] ?? 1);
  return [Math.min(most, limit), most > limit];
}
/** The parts as layers, one on the other. */
function Stack({
  parts,
  scale,
  top: high,
  flags,
  ends,
}: {
  parts: ProfilePart[];
  scale: Scale;
  top: number;
  flags: Flag[];
  ends: Ends | null;
}): JSX.Element {
  const t = tokens.value,
    h = 132;
  const lines = parts.map((one) => line(one.series)),
    base = lines[0];
  const value = (of: Line, n: number): number => {
    const k = Math.floor((base.start + n * base.size - of.start) / of.size);
    return k >= 0 && k < of.count && of.marks[k] === Mark.PLAIN && of.mean[k] > 0 ? of.mean[k] : 0;
  };
  const y = (ms: number): number => h - 6 - (Math.min(ms, high) / high) * (h - 14);
  const x = (n: number): number => Math.max(0, Math.min(scale.width, scale.x(base.start + (n + 0.5) * base.size)));
  const floor = new Float64Array(base.count);
  const shapes = lines.map((of, k) => {
    const top: string[] = [],
      bottom: string[] = [];
    for (let n = 0; n < base.count; n++) {
      bottom.push(`${x(n).toFixed(1)} ${y(floor[n]).toFixed(1)}`);
      floor[n] += value(of, n);
      top.push(`${x(n).toFixed(1)} ${y(floor[n]).toFixed(1)}`);
    }
    return <path d={`M${top.join("L")}L${bottom.reverse().join("L")}Z`} fill={colorOf(parts[k].color)} />;
  });
  return (
    <svg
      class="plot"
      data-panel="parts"
      width={scale.width}
      height={h}
      role="img"
      aria-label={`Parts of a step over the run: ${parts.map((one) => `${one.label} ${number(one.ms)} ms on average`).join(", ")}`}
    >
      {valueTicks({ low: 0, high, log: false }, 3).map((tick) => (
        <g>
          <path d={`M0 ${y(tick).toFixed(1)}H${scale.width}`} stroke={t.line} />
          <text x="-8" y={y(tick) + 4} text-anchor="end" class="tick">
            {tickLabel(tick)}
          </text>
        </g>
      ))}
      {base.count > 1 && shapes}
      <Rules scale={scale} height={h} flags={flags} ends={ends} />
    </svg>
  );
}
