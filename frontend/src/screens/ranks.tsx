// Ranks: how far, how fast and with what loss each process went.
import { type JSX } from "preact";
import { MoreTabs, useAnswer } from "../answer";
import { Axis } from "../axis";
import { TroubleScreen } from "../chrome";
import { line } from "../data";
import { count, number, plural } from "../format";
import { StateSign } from "../glyphs";
import { Spark } from "../pieces";
import { scaleOf } from "../plot";
import { type RunSession } from "../session";
import { isPhone, tokens } from "../state";
import { LEFT, RIGHT, endsOf, flagsOf, usePlotWidth } from "../steps";
import { type Drawn, LineChart } from "../tracks";
import { type Packed, type RanksData, type RunData, type Start } from "../types";

export function RanksScreen({ session }: { session: RunSession }): JSX.Element {
  const measured = usePlotWidth(session, isPhone.value ? 88 : LEFT, isPhone.value ? 12 : RIGHT);
  const [found, trouble] = useAnswer(session, "ranks");
  if (trouble && !found) return <TroubleScreen trouble={trouble} />;
  const data = session.data.value;
  if (!found || !data) return <main class="screen" id="main" ref={measured.ref} />;
  const speeds = found.ranks
      .map((one) => one.stepMs ?? 0)
      .filter(Boolean)
      .sort((a, b) => a - b),
    middle = speeds[Math.floor(speeds.length / 2)] ?? 0;
  const last = (rank: number): Start | undefined => found.starts.filter((one) => one.rank === rank).at(-1);
  const several = found.numRanks > 1;
  const slow = several && middle ? found.ranks.filter((one) => (one.stepMs ?? 0) / middle > 1.1) : [];
  const heads: [string, string][] = [
    ["Rank", ""],
    ["State", "word"],
    ["Last step", ""],
    ["Last loss", ""],
    ["Loss", "word"],
    ["Step, median", ""],
    ["Step, slowest 1%", ""],
    ...(several ? [["vs. other ranks", ""] as [string, string]] : []),
    ["Host", ""],
  ];
  return (
    <main class="screen" id="main" ref={measured.ref}>
      <div class="doc rankhead">
        <MoreTabs session={session} />
        <h1>
          {!several
            ? "One rank wrote this run."
            : `${plural(found.numRanks, "rank")} wrote this run.${slow.length ? ` ${slow.length === 1 ? `Rank ${slow[0].rank} is` : `${count(slow.length)} are`} slower than the others.` : ""}`}
        </h1>
        <table class="facts wide" tabIndex={isPhone.value ? 0 : undefined}>
          <thead>
            <tr>
              {heads.map(([name, kind]) => (
                <th scope="col" class={kind}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.ranks.map((one) => {
              const start = last(one.rank);
              const off = one.stepMs && middle ? one.stepMs / middle : 1;
              return (
                <tr>
                  <th scope="row">{one.rank}</th>
                  <td class="word">
                    <span class="stand">
                      <StateSign of={start?.how ?? "stale"} />
                      {start?.how}
                    </span>
                  </td>
                  <td>{start?.lastStep != null ? count(start.lastStep) : ""}</td>
                  <td class={one.lastLoss === "NaN" ? "crit" : ""}>{number(one.lastLoss)}</td>
                  <td class="word">{one.loss && <Spark packed={one.loss} w={176} h={24} band />}</td>
                  <td>{one.stepMs ? `${number(one.stepMs)} ms` : ""}</td>
                  <td>{one.worstMs ? `${number(one.worstMs)} ms` : ""}</td>
                  {several && <td>{off > 1.1 ? `×${off.toFixed(2)} slower` : "usual"}</td>}
                  <td class="mono">{start?.host}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
        {!several && (
          <p class="note after">
            A distributed run has a row for each rank here, its loss and its speed against the others; replicas that
            disagree are a finding.
          </p>
        )}
      </div>
      {several && <RankLines session={session} data={data} ranks={found.ranks} />}
    </main>
  );
}
/** Loss and time of every rank on one axis: up to six in colors of their own, of more the one farthest from the middle. */
function RankLines({
  session,
  data,
  ranks,
}: {
  session: RunSession;
  data: RunData;
  ranks: RanksData["ranks"];
}): JSX.Element {
  const t = tokens.value,
    scale = scaleOf(data.span[0], data.span[1], session.plotWidth.value),
    flags = flagsOf(data),
    ends = endsOf(data);
  const middle =
    [...ranks].sort((a, b) => (a.stepMs ?? 0) - (b.stepMs ?? 0))[Math.floor(ranks.length / 2)]?.stepMs ?? 0;
  const odd = [...ranks].sort(
    (a, b) => Math.abs((b.stepMs ?? middle) - middle) - Math.abs((a.stepMs ?? middle) - middle),
  )[0]?.rank;
  const hue = (rank: number, n: number): string =>
    ranks.length <= t.s.length ? t.s[n] : rank === odd ? t.s[0] : t.mark;
  const lines = (pick: (one: RanksData["ranks"][0]) => Packed | null): Drawn[] =>
    ranks.flatMap((one, n) => {
      const packed = pick(one);
      return packed ? [{ of: line(packed), color: hue(one.rank, n) }] : [];
    });
  const told: [string, string, string, Drawn[]][] = [
    ["rank_loss", "Loss", "a line for each rank", lines((one) => one.loss)],
    ["rank_step", "Time of a step", "ms", lines((one) => one.step)],
  ];
  return (
    <>
      <Axis
        scale={scale}
        flags={flags}
        ends={ends}
        left={isPhone.value ? "Step" : `Steps ${count(scale.first)} to ${count(scale.last)}`}
        right=" "
      />
      {told
        .filter((one) => one[3].length)
        .map(([key, label, note, drawn]) => (
          <div class="panel track">
            <div class="gutter">
              <b>{label}</b>
              <small>{note}</small>
            </div>
            <LineChart
              id={key}
              scale={scale}
              height={132}
              lines={drawn}
              log={false}
              flags={flags}
              ends={ends}
              label={`${label} of ${plural(drawn.length, "rank")}`}
            />
            <div class="values" />
          </div>
        ))}
      <ul class="profilekey rankkey">
        {(ranks.length <= t.s.length
          ? ranks.map((one, n) => [`rank ${one.rank}`, hue(one.rank, n)])
          : [
              [`rank ${odd}, farthest from the middle`, t.s[0]],
              ["the others", t.mark],
            ]
        ).map(([label, color]) => (
          <li>
            <svg width="8" height="8" aria-hidden="true">
              <rect width="8" height="8" rx="2" fill={color} />
            </svg>
            <span>{label}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
