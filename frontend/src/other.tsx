// Log, ranks, profile, checkup: what is recorded so far.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { ask } from "./api";
import { Empty, TroubleScreen } from "./chrome";
import { line, type FindingRow, type Packed, type Trouble } from "./data";
import { clock, count, day, number, percent, plural, real, since } from "./format";
import { Severity, StateSign } from "./glyphs";
import { handleKeys } from "./keys";
import { scaleOf, sentence } from "./plot";
import { endsOf, flagsOf, LEFT, RIGHT, usePlotWidth } from "./run";
import type { RunSession } from "./session";
import { cursor, go, isPhone, runLink, selected } from "./state";
import { Axis, colorOf, LineChart } from "./tracks";
import { moduleOf, Named, Spark } from "./verdict";

function useAnswer<T>(session: RunSession, path: string): [T | null, Trouble | null] {
  const [found, setFound] = useState<T | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const version = session.data.value?.version;
  useEffect(() => { let alive = true; ask<T>(`runs/${session.key}/${path}`, { v: version }).then((value) => { if (alive) setFound(value); }, (error) => { if (alive) setTrouble(error.trouble ?? { what: String(error), do: "" }); }); return () => { alive = false; }; }, [session, path, version]);
  useLayoutEffect(() => handleKeys({ session, up: () => go(runLink(session.key)) }), [session]);
  return [found, trouble];
}

interface LogEntry extends FindingRow { type: "finding" | "event"; step: number; isCause?: boolean; kind?: string; time?: number; body?: Record<string, unknown> }
interface LogData { entries: LogEntry[]; numEntries: number; starts: Start[]; losses: Record<string, number>; problems: { file: string; offset: number; what: string; framesLost: number }[] }
interface Start { rank: number; ordinal: number; pid: number | null; host: string; startedAt: number | null; how: string; firstStep: number | null; lastStep: number | null; ended: string }

export function LogScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, trouble] = useAnswer<LogData>(session, "events");
  const data = session.data.value;
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found || !data) return <main class="screen" id="main" />;
  const lost = Object.entries(found.losses).filter(([, value]) => value > 0);
  return (
    <main class="screen doc" id="main"><h1>{found.entries.length ? `${plural(found.numEntries, "entry").replace("entrys", "entries")} in the log.` : "Nothing to report."}</h1>
      {found.entries.length > 0 && <ol class="log">{found.entries.map((one) => one.type === "finding" ? (
        <li><button type="button" class="plain stepno" onClick={() => { cursor.value = one.firstStep; if (one.sites[0]) selected.value = moduleOf(one.sites[0]); go(runLink(session.key, "overview", { step: one.firstStep, ...(one.sites[0] ? { at: moduleOf(one.sites[0]) } : {}) })); }}>{count(one.step)}</button><Severity of={one.severity} /><div><p><Named text={one.message} names={one.sites.slice(0, 4)} to={(name) => runLink(session.key, "layers", { at: name })} /></p><small><span class="mono">{one.code}</span> {since(one.firstStep, one.lastStep)}{one.isCause ? ", a cause" : ""}{one.numFollowed ? `, ${plural(one.numFollowed, "consequence")}` : ""}{one.remedy ? "" : ""}</small>{one.remedy && <code class="line">{one.remedy}</code>}</div></li>) : (
        <li><span class="stepno">{count(one.step)}</span><span class="dot" /><div><p>{String(one.kind).replaceAll("_", " ")}{one.rank ? `, rank ${one.rank}` : ""}</p>{one.body && Object.keys(one.body).length > 0 && <small class="mono">{JSON.stringify(one.body).slice(0, 300)}</small>}</div></li>))}</ol>}
      <h2>Process starts</h2><Starts starts={found.starts} />
      <h2>Recording</h2>{lost.length ? <ul class="plainlist">{lost.map(([name, value]) => <li>{name.replaceAll("_", " ")}: <b>{count(value)}</b></li>)}</ul> : <p class="note">Nothing was lost on the way to the disk.</p>}
      {found.problems.length > 0 && <><h2>Damage</h2><ul class="plainlist">{found.problems.map((one) => <li><span class="mono">{one.file}</span> at byte {count(one.offset)}: {one.what}{one.framesLost ? `, ${plural(one.framesLost, "frame")} left out` : ""}</li>)}</ul></>}
      {data.verdict.lookedAt.unmet.length > 0 && <><h2>What one more line would show</h2><ul class="plainlist">{data.verdict.lookedAt.unmet.map((words) => <li>{words}</li>)}</ul></>}
    </main>
  );
}
function Starts({ starts }: { starts: Start[] }): JSX.Element {
  return <table class="facts wide"><thead><tr>{["Rank", "Start", "State", "Steps", "Process", "Host", "Began"].map((name) => <th scope="col">{name}</th>)}</tr></thead><tbody>{starts.slice(0, 200).map((one) => <tr><th scope="row">{one.rank}</th><td>{one.ordinal}</td><td><span class="stand"><StateSign of={one.how} />{one.how}{one.ended && one.ended !== one.how ? `, ${one.ended}` : ""}</span></td><td>{one.firstStep !== null && one.lastStep !== null ? `${count(one.firstStep)} to ${count(one.lastStep)}` : ""}</td><td class="mono">{one.pid ?? ""}</td><td class="mono">{one.host}</td><td>{day(one.startedAt)} {clock(one.startedAt, true)}</td></tr>)}</tbody></table>;
}

interface RanksData { numRanks: number; starts: Start[]; ranks: { rank: number; lastLoss: number | string | null; stepMs: number | null; worstMs: number | null; loss: Packed | null }[] }
export function RanksScreen({ session }: { session: RunSession }): JSX.Element {
  const [found, trouble] = useAnswer<RanksData>(session, "ranks");
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found) return <main class="screen" id="main" />;
  const speeds = found.ranks.map((one) => one.stepMs ?? 0).filter(Boolean), middle = speeds.sort((a, b) => a - b)[Math.floor(speeds.length / 2)] ?? 0;
  const last = (rank: number): Start | undefined => found.starts.filter((one) => one.rank === rank).at(-1);
  return (
    <main class="screen doc" id="main"><h1>{found.numRanks === 1 ? "One rank wrote this run." : `${plural(found.numRanks, "rank")} wrote this run.`}</h1>
      <table class="facts wide"><thead><tr>{["Rank", "State", "Last step", "Last loss", "Loss", "Step, median", "Step, slowest 1%", "Against the others", "Host"].map((name) => <th scope="col">{name}</th>)}</tr></thead>
        <tbody>{found.ranks.map((one) => { const start = last(one.rank); const off = one.stepMs && middle ? one.stepMs / middle : 1; return <tr><th scope="row">{one.rank}</th><td><span class="stand"><StateSign of={start?.how ?? "stale"} />{start?.how}</span></td><td>{start?.lastStep != null ? count(start.lastStep) : ""}</td><td class={one.lastLoss === "NaN" ? "crit" : ""}>{number(one.lastLoss)}</td><td>{one.loss && <Spark packed={one.loss} w={176} h={24} band />}</td><td>{one.stepMs ? `${number(one.stepMs)} ms` : ""}</td><td>{one.worstMs ? `${number(one.worstMs)} ms` : ""}</td><td>{off > 1.1 ? `×${off.toFixed(2)} slower` : "usual"}</td><td class="mono">{start?.host}</td></tr>; })}</tbody></table></main>
  );
}

interface ProfileData { parts: { label: string; color: string; ms: number | string }[]; meanMs: number | string | null; numSteps: number; series: Packed | null; cost: number | null; slowest: { step: number; ms: number }[]; recorded: string[] }
export function ProfileScreen({ session }: { session: RunSession }): JSX.Element {
  const measured = usePlotWidth(session, isPhone.value ? 88 : LEFT, isPhone.value ? 12 : RIGHT);
  const [found, trouble] = useAnswer<ProfileData>(session, "profile");
  const data = session.data.value;
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  if (!found || !data) return <main class="screen" id="main" ref={measured.ref} />;
  if (!found.series) return <main class="screen" id="main" ref={measured.ref}><Empty title="No time was recorded." text="A run that watches its optimizer records the time of every step." command="stethoscope demo" /></main>;
  const mean = real(found.meanMs) ?? 0;
  const scale = scaleOf(data.span[0], data.span[1], session.plotWidth.value), of = line(found.series);
  const flags = flagsOf(data);
  let at = 0;
  return (
    <main class="screen" id="main" ref={measured.ref}><div class="profilehead"><h1>A step takes {number(mean)} ms{found.cost !== null ? `, ${percent(found.cost)} of it for recording` : ""}.</h1>
      <svg class="profilebar" data-panel="profile" width="100%" height="18" viewBox="0 0 1000 18" preserveAspectRatio="none" role="img" aria-label={found.parts.map((one) => `${one.label} ${percent((real(one.ms) ?? 0) / mean)}`).join(", ")}>{found.parts.map((one) => { const w = ((real(one.ms) ?? 0) / mean) * 1000, x = at; at += w; return <rect x={x} width={Math.max(0, w - 1.5)} height="18" fill={colorOf(one.color)} />; })}</svg>
      <ul class="profilekey">{found.parts.map((one) => <li><svg width="8" height="8" aria-hidden="true"><rect width="8" height="8" rx="2" fill={colorOf(one.color)} /></svg><span>{one.label}</span><b>{percent((real(one.ms) ?? 0) / mean)}</b></li>)}</ul></div>
      <Axis scale={scale} flags={flags} ends={endsOf(data)} left={`Steps ${count(scale.first)} to ${count(scale.last)}`} />
      <div class="panel track"><div class="gutter"><b>Time of a step</b><small>ms</small></div><LineChart id="step_ms" scale={scale} height={120} lines={[{ of, color: colorOf("s3") }]} log={false} flags={flags} ends={endsOf(data)} label={sentence("Time of a step in ms", of, scale, number)} /><div class="values"><b>{number(mean)} ms</b></div></div>
      <div class="doc"><h2>Slowest steps</h2><table class="facts short"><thead><tr><th scope="col">Step</th><th scope="col">ms</th><th scope="col">against the mean</th></tr></thead><tbody>{found.slowest.map((one) => <tr><th scope="row">{count(one.step)}</th><td>{number(one.ms)}</td><td>×{(one.ms / mean).toFixed(1)}</td></tr>)}</tbody></table>
        <p class="note">Recorded so far: {found.recorded.join(", ") || "nothing"}.</p></div></main>
  );
}

export function CheckupScreen({ session }: { session: RunSession }): JSX.Element {
  const data = session.data.value;
  useLayoutEffect(() => handleKeys({ session, up: () => go(runLink(session.key)) }), [session]);
  const found = data?.checkup;
  if (!found) return <main class="screen doc" id="main"><h1>No checkup was recorded with this run.</h1><p class="note">A checkup tries a few cheap experiments on one batch before training: does the model learn it, does the optimizer reach every weight, does the future leak. Call it on the model before you watch it, and it stands here.</p><Empty title="Examine the training before it starts." text="It takes seconds, on the batch you choose." command="stethoscope checkup train.py:build" /></main>;
  const wrong = found.findings.filter((one) => one.severity !== "Info").length;
  return (
    <main class="screen doc" id="main"><h1>{wrong ? `The checkup before training found ${plural(wrong, "fault")}.` : "The checkup before training found nothing wrong."}</h1>
      <p class="note">{plural(found.numExperiments, "experiment")} on one batch, {number(found.seconds)} s, {day(found.time)} {clock(found.time)}.</p>
      <ul class="findings">{found.findings.map((one) => <li class="finding"><Severity of={one.severity} /><div><p><Named text={one.message} names={one.sites.slice(0, 4)} to={(name) => runLink(session.key, "layers", { at: name })} /></p><small><span class="mono">{one.code}</span> </small>{one.remedy && <code class="line">{one.remedy}</code>}</div></li>)}</ul>
      {found.notExamined.length > 0 && <><h2>Not examined</h2><ul>{found.notExamined.map((one) => <li>{one}</li>)}</ul></>}</main>
  );
}
