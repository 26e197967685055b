// The report: one run as a document. The same components as the page, the data inside the file.
import { type JSX } from "preact";
import { Axis, colorOf } from "./axis";
import { line, heat as unpackHeat } from "./data";
import { Experiments } from "./experiments";
import { KIND_NAMES, amount, capital, clock, count, day, number, percent, plural, real, since } from "./format";
import { STAT_SHORT } from "./types";
import { Logo, ThemeIcon, VerdictSign } from "./glyphs";
import { HeatKey } from "./heat_key";
import { MeanBar } from "./mean_bar";
import { Named, Spark, briefly } from "./pieces";
import { scaleOf } from "./plot";
import { Curve, Facts, Figure, FlowFigure, HeatFigure, hueOf, lower } from "./report_figures";
import { flipTheme, isPhone, width } from "./state";
import { endsOf, flagsOf, scaleFor } from "./steps";
import { type ReportData, type ReportPart } from "./types";
import { FindingLine, Overline, SuspectLists, Unexplained } from "./verdict";

export function ReportPage({ data }: { data: ReportData }): JSX.Element {
  const { run } = data;
  const { cause, stated } = run.verdict;
  const narrow = width.value < 980;
  const proof = cause ? [...cause.evidence, ...cause.meanwhile] : [];
  // As the style sheet lays the columns out: one, two, or three; a scroll bar takes its part.
  const room = width.value - 16 - (narrow ? 32 : width.value <= 1240 ? 80 + 180 + 32 : 80 + 212 + 2 * 48 + 292);
  const text = Math.max(280, Math.min(760, room));
  const plot = Math.max(200, text - (isPhone.value ? 92 : 176));
  const sections: [string, string, string?][] = [
    ["verdict", "Verdict"],
    ...(run.verdict.followed.length > 1 ? [["followed", "What followed"] as [string, string]] : []),
    ...(data.heat ? [["layers", "Layers by step"] as [string, string]] : []),
    ...(data.layer ? [["layer", data.layer.path] as [string, string]] : []),
    ...(data.flow && !isPhone.value ? [["flow", "Gradient flow"] as [string, string]] : []),
    ["curves", "Training curves"],
    ["time", "Time"],
    ["others", "Other findings", String(run.verdict.others.length + run.verdict.notes.length)],
    ...(run.checkup
      ? [
          [
            "checkup",
            "Checkup",
            `${count(run.checkup.experiments.filter((one) => one.outcome === "clear").length)} of ${count(run.checkup.experiments.length)}`,
          ] as [string, string, string],
        ]
      : []),
    ["measured", "How it was measured"],
  ];
  const flags = flagsOf(run),
    ends = endsOf(run);
  const scale = scaleFor(run, run.window, plot);
  const share = (one: ReportPart): number => (real(one.ms) ?? 0) / (real(data.profile.meanMs) || 1);
  let figure = 0;
  return (
    <div class="report">
      <nav class="contents" aria-label="Contents">
        <Logo />
        <ul>
          {sections.map(([id, label, note]) => (
            <li>
              <a
                href={`#${id}`}
                onClick={(event) => {
                  event.preventDefault();
                  document.getElementById(id)?.scrollIntoView();
                }}
                class={id === "layer" ? "mono" : ""}
              >
                {label}
                {note && <small>{note}</small>}
              </a>
            </li>
          ))}
        </ul>
        <Facts data={data} />
        <p class="note">One file. It needs no server and no network.</p>
        <button type="button" class="icon" aria-label="Light or dark" onClick={flipTheme}>
          <ThemeIcon />
        </button>
      </nav>
      <main id="main" class="text">
        <section id="verdict">
          {cause ? (
            <>
              <Overline cause={cause} state={run.verdict.stated.label} />
              <h1>
                <Named text={cause.message} names={cause.sites} />
              </h1>
              {cause.why && (
                <p class="lead">
                  <Named text={cause.why} names={[...cause.sites, ...proof.map((one) => one.site)]} />
                </p>
              )}
              {cause.remedy && (
                <div class="diff">
                  <p>
                    <b>Remedy.</b> Try this first.
                  </p>
                  <pre>
                    {cause.remedy.split("\n").map((one) => (
                      <code>
                        <i>+</i>
                        {one}
                      </code>
                    ))}
                  </pre>
                </div>
              )}
              <Unexplained of={stated} />
            </>
          ) : (
            <>
              <p class="overline">
                <VerdictSign state={stated.state} severity={stated.severity} />
                <b class={stated.severity.toLowerCase()}>{capital(stated.label)}</b>
              </p>
              <h1>{stated.message}</h1>
              <p class="lead">
                {stated.rest} {plural(run.verdict.lookedAt.numDetectors, "detector")} checked{" "}
                {count(run.verdict.lookedAt.numSites)} of {plural(run.verdict.lookedAt.numSitesExpected, "tensor")},{" "}
                {plural(run.verdict.lookedAt.numSteps, "step")}, and found no cause.
              </p>
              <SuspectLists of={stated} />
              {stated.line && (
                <div class="diff">
                  <p>
                    <b>{capital(stated.purpose)}</b>
                  </p>
                  <pre>
                    <code>{stated.line}</code>
                  </pre>
                </div>
              )}
            </>
          )}
          {cause && proof.some((one) => one.trend) && (
            <Figure
              n={++figure}
              id="events"
              text={
                <>
                  The order of events.{" "}
                  {run.verdict.followed.map((one, at) => (
                    <>
                      <b>{at + 1}</b> {lower(one.text).replace(/\.$/, "")}
                      {at < run.verdict.followed.length - 1 ? ", " : "."}{" "}
                    </>
                  ))}
                </>
              }
            >
              <Axis scale={scale} flags={flags} ends={ends} left="" right=" " />
              {proof
                .filter(
                  (one) => one.trend && one.stat !== "num_nonfinite" && one.stat !== "loss" && one.label !== "loss",
                )
                .slice(0, 3)
                .map((one, at) => (
                  <Curve
                    key={one.label}
                    label={briefly(one)}
                    of={line(one.trend!)}
                    color={hueOf(one, at)}
                    scale={scale}
                    flags={flags}
                    ends={ends}
                  />
                ))}
              {data.tracks
                .filter((one) => one.key === "loss")
                .map((one) => (
                  <Curve
                    key="loss"
                    label="Loss"
                    of={line(one.series)}
                    color="s1"
                    scale={scale}
                    flags={flags}
                    ends={ends}
                  />
                ))}
            </Figure>
          )}
        </section>
        {run.verdict.followed.length > 1 && (
          <section id="followed">
            <h2>What followed</h2>
            <ol class="steps">
              {run.verdict.followed.map((one, at) => (
                <li>
                  <span class="disc">{at + 1}</span>
                  <b>{count(one.step)}</b>
                  <span>
                    <Named text={one.text} names={one.site ? [one.site] : []} />
                  </span>
                </li>
              ))}
            </ol>
          </section>
        )}
        {data.heat && (
          <section id="layers">
            <h2>Layers by step</h2>
            <Figure
              n={++figure}
              id="heat"
              text={
                <>
                  {KIND_NAMES[data.heat.kind]} {STAT_SHORT[data.heat.stat] ?? data.heat.stat} of every layer, against
                  its own median.
                </>
              }
              key_={<HeatKey heat={unpackHeat(data.heat)} raw={false} />}
            >
              <HeatFigure packed={data.heat} run={run} scale={scale} flags={flags} ends={ends} />
            </Figure>
          </section>
        )}
        {data.layer && (
          <section id="layer">
            <h2 class="mono">{data.layer.path}</h2>
            <p class="note">
              {[
                data.layer.head.type,
                data.layer.head.numParameters ? `${amount(data.layer.head.numParameters)} parameters` : "",
                data.layer.head.shape.length
                  ? `output ${data.layer.head.shape.join(" × ")} in ${data.layer.head.dtype}`
                  : "",
              ]
                .filter(Boolean)
                .join(", ")}
            </p>
            <Figure
              n={++figure}
              id="layerfig"
              text={
                <>
                  What was measured in <span class="mono">{data.layer.path}</span>.
                </>
              }
            >
              <Axis scale={scale} flags={flags} ends={ends} left="" right=" " />
              {data.layer.tracks.slice(0, 5).map((one) => (
                <Curve
                  key={one.key}
                  label={one.label}
                  note={one.note}
                  of={line(one.series)}
                  color={one.color}
                  log={one.log}
                  scale={scale}
                  flags={flags}
                  ends={ends}
                />
              ))}
            </Figure>
          </section>
        )}
        {data.flow && !isPhone.value && (
          <section id="flow">
            <h2>Gradient flow</h2>
            <Figure
              n={++figure}
              id="flowfig"
              text={
                <>
                  {KIND_NAMES[data.flow.kind]} on the model's graph at step {count(data.flowStep)}: width is its L2,
                  color its ratio to the usual.
                </>
              }
            >
              <FlowFigure flow={data.flow} step={data.flowStep} w={text} />
            </Figure>
          </section>
        )}
        <section id="curves">
          <h2>Training curves</h2>
          {data.whole.length ? (
            <Figure
              n={++figure}
              id="curvesfig"
              text={
                <>
                  The whole run, steps {count(run.span[0])} to {count(run.span[1])}.
                </>
              }
            >
              <Axis scale={scaleOf(run.span[0], run.span[1], plot)} flags={flags} ends={ends} left="" right=" " />
              {data.whole.map((one) => (
                <Curve
                  key={one.key}
                  label={one.label}
                  note={one.note}
                  of={line(one.series)}
                  color={one.color}
                  log={one.log}
                  scale={scaleOf(run.span[0], run.span[1], plot)}
                  flags={flags}
                  ends={ends}
                />
              ))}
            </Figure>
          ) : (
            <p class="note">No loss was recorded.</p>
          )}
        </section>
        <section id="time">
          <h2>Time</h2>
          {data.profile.meanMs !== null ? (
            <>
              <p>A step takes {number(data.profile.meanMs)} ms.</p>
              <MeanBar parts={data.profile.parts} share={share} />
              <ul class="profilekey">
                {data.profile.parts.map((one) => (
                  <li>
                    <svg width="8" height="8" aria-hidden="true">
                      <rect width="8" height="8" rx="2" fill={colorOf(one.color)} />
                    </svg>
                    <span>{one.label}</span>
                    <b>{percent(share(one))}</b>
                  </li>
                ))}
              </ul>
            </>
          ) : (
            <p class="note">No time was recorded.</p>
          )}
          {data.ranks.length > 1 && (
            <p>
              {plural(data.ranks.length, "rank")},{" "}
              {number(Math.min(...data.ranks.map((one) => one.stepMs ?? Infinity)))} to{" "}
              {number(Math.max(...data.ranks.map((one) => one.stepMs ?? 0)))} ms a step.
            </p>
          )}
        </section>
        <section id="others">
          <h2>Other findings</h2>
          {run.verdict.others.length + run.verdict.notes.length ? (
            <ul class="findings">
              {[...run.verdict.others, ...run.verdict.notes].map((one) => (
                <FindingLine of={one} />
              ))}
            </ul>
          ) : (
            <p class="note">None.</p>
          )}
        </section>
        {run.checkup && (
          <section id="checkup">
            <h2>Checkup</h2>
            <p>
              {run.checkup.findings.length
                ? `Before training, ${plural(run.checkup.numExperiments, "experiment")} on one batch found ${plural(run.checkup.findings.length, "thing")}.`
                : `Before training, ${plural(run.checkup.numExperiments, "experiment")} on one batch found nothing wrong.`}
            </p>
            {run.checkup.findings.length > 0 && (
              <ul class="findings">
                {run.checkup.findings.map((one) => (
                  <FindingLine of={one} />
                ))}
              </ul>
            )}
            <Experiments of={run.checkup} />
          </section>
        )}
        <section id="measured">
          <h2>How it was measured</h2>
          <p>
            {run.status.map((one) => `${one.before ? `${one.before} ` : ""}${one.strong} ${one.rest}`).join(". ")}.{" "}
            {run.closing}.
          </p>
          {data.problems.length > 0 && (
            <ul class="plainlist">
              {data.problems.map((one) => (
                <li>
                  <span class="mono">{one.file}</span>: {one.what}
                </li>
              ))}
            </ul>
          )}
          {run.verdict.lookedAt.unmet.length > 0 && (
            <ul class="plainlist">
              {run.verdict.lookedAt.unmet.map((one) => (
                <li>{one}</li>
              ))}
            </ul>
          )}
          <p class="note">
            Made {day(data.madeAt)} {clock(data.madeAt)} by stethoscope {data.version}.
          </p>
        </section>
      </main>
      <aside class="margin">
        {cause && proof.length > 0 && (
          <>
            <h2>
              Evidence, {cause.columns[0]} and {cause.columns[1]}
            </h2>
            {proof.map((one) => (
              <div class="proof">
                <div>
                  <small>{capital(one.label)}</small>
                  <p>
                    {one.before !== null && (
                      <>
                        <span>{number(one.before)}</span> →{" "}
                      </>
                    )}
                    <b class={one.after === "NaN" ? "crit" : ""}>{number(one.after)}</b>
                  </p>
                </div>
                {one.trend && <Spark packed={one.trend} step={cause.firstStep} w={82} h={24} />}
              </div>
            ))}
            <p class="small">
              <b>First seen at step {count(cause.firstStep)},</b>{" "}
              {since(cause.firstStep, cause.lastStep) === `at step ${count(cause.firstStep)}`
                ? "once."
                : `and until step ${count(cause.lastStep)}.`}
            </p>
          </>
        )}
        {run.verdict.course && (
          <>
            <h2>
              How it went, {run.verdict.course.columns[0]} and {run.verdict.course.columns[1]}
            </h2>
            {run.verdict.course.rows.map((one) => (
              <div class="proof">
                <div>
                  <small>{capital(one.label)}</small>
                  <p>
                    <span>{number(one.before)}</span> → <b>{number(one.after)}</b>
                  </p>
                </div>
                {one.trend && <Spark packed={one.trend} w={82} h={24} />}
              </div>
            ))}
          </>
        )}
        <p class="small">
          <b>Open it live.</b> <span class="mono">stethoscope ui</span>, or in the terminal{" "}
          <span class="mono">stethoscope diagnose {run.run.id}</span>.
        </p>
      </aside>
    </div>
  );
}
/** What the file carries, unpacked. */
export async function carriedData(element: HTMLElement): Promise<ReportData> {
  const raw = atob((element.textContent ?? "").trim()),
    packed = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) packed[at] = raw.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as ReportData;
}
