// The run: verdict, whole run, one axis, lines, layers by steps.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { Axis, type Ends, type Flag } from "../axis";
import { Mark, line } from "../data";
import { KIND_NAMES, count, number as fmt } from "../format";
import { STAT_NAMES, STAT_SHORT } from "../types";
import { HeatGrid } from "../heat";
import { cellAt, describe } from "../heat_cells";
import { HeatKey } from "../heat_key";
import { handleKeys } from "../keys";
import { briefly } from "../pieces";
import { type Scale } from "../plot";
import { offer, withdraw } from "../save";
import { type RunSession } from "../session";
import {
  cursor,
  following,
  go,
  height,
  isPhone,
  kind,
  paused,
  raw,
  runLink,
  say,
  selected,
  stat,
  view,
  width,
} from "../state";
import { LEFT, RIGHT, endsOf, flagsOf, place, scaleFor, usePlotWidth } from "../steps";
import { MinimapRow, TrackRow } from "../tracks";
import { type RunData } from "../types";
import { VerdictBlock } from "../verdict";

export function OverviewScreen({ session }: { session: RunSession }): JSX.Element | null {
  const phone = isPhone.value;
  const left = phone ? 88 : LEFT,
    right = phone ? 12 : RIGHT;
  const measured = usePlotWidth(session, left, right);
  const data = session.data.value,
    shown = view.value;
  useOverviewKeys(session);
  useTables(session);
  if (!data || !shown) return <main class="screen" ref={measured.ref} />;
  const scale = scaleFor(data, shown, session.plotWidth.value);
  const flags = flagsOf(data),
    ends = endsOf(data);
  const words =
    following.value && data.run.state === "live" && !paused.value
      ? "Following the run"
      : `Steps ${count(shown[0])} to ${count(shown[1])}`;
  const tracks = phone ? session.tracks.value.filter((one) => one.tall).slice(0, 2) : session.tracks.value;
  return (
    <main class={`screen overview${phone ? " phone" : ""}`} ref={measured.ref} id="main">
      <VerdictBlock data={data} link={session.key} buttons={!phone} />
      {phone && <PhoneNumbers data={data} />}
      {!phone &&
        (session.minimap.value ? (
          <MinimapRow data={session.minimap.value} scaleWidth={session.plotWidth.value} window={shown} />
        ) : (
          <div class="panel minimap" />
        ))}
      <Axis scale={scale} flags={flags} ends={ends} left={phone ? "Step" : words} />
      {tracks.map((track) => (
        <TrackRow key={track.key} track={track} scale={scale} flags={flags} ends={ends} />
      ))}
      {data.kinds.length > 0 ? (
        <Layers session={session} data={data} scale={scale} flags={flags} ends={ends} />
      ) : (
        <p class="note pad">No layers were recorded in this run.</p>
      )}
    </main>
  );
}
function PhoneNumbers({ data }: { data: RunData }): JSX.Element | null {
  const cause = data.verdict.cause;
  if (!cause) return null;
  const all = [...cause.evidence, ...cause.meanwhile];
  // Its own number first, the loss last: what is between gives way.
  const three = all.length > 3 ? [...all.slice(0, 2), all[all.length - 1]] : all;
  return (
    <div class="three">
      {three.map((one) => (
        <div>
          <small class="what2">{briefly(one)}</small>
          <b class={one.after === "NaN" ? "crit" : ""}>{fmt(one.after)}</b>
          <small>{one.before !== null ? `from ${fmt(one.before)}` : ""}</small>
        </div>
      ))}
    </div>
  );
}
export function Layers({
  session,
  data,
  scale,
  flags,
  ends,
}: {
  session: RunSession;
  data: RunData;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
}): JSX.Element {
  const tree = session.tree.value,
    heat = session.heat.value,
    phone = isPhone.value;
  const rows = session.rows();
  const field = useRef<HTMLInputElement>(null);
  const cramped = width.value < 1400; // not every machine has a narrow font
  useLayoutEffect(() => {
    const focus = (): void => field.current?.focus();
    addEventListener("stethoscope-filter", focus);
    return () => removeEventListener("stethoscope-filter", focus);
  }, []);
  return (
    <>
      <div class="panel toolbar">
        <div class="gutter">
          <b>Layers by step</b>
          {phone && (
            <small>
              {(KIND_NAMES[kind.value] ?? "").toLowerCase()} {STAT_SHORT[stat.value] ?? stat.value},{" "}
              {raw.value ? "value" : "relative to its median"}
            </small>
          )}
        </div>
        {!phone && (
          <div class="plot controls">
            <div class="segments" role="radiogroup" aria-label="What is shown">
              {data.kinds.map((one, at) => (
                <button
                  type="button"
                  role="radio"
                  aria-checked={kind.value === one}
                  class={kind.value === one ? "on" : ""}
                  title={`Key ${at + 1}`}
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
              {data.stats.map((one) => (
                <option value={one}>{STAT_NAMES[one] ?? one}</option>
              ))}
            </select>
            <div class="segments" role="radiogroup" aria-label="Scale">
              <button
                type="button"
                role="radio"
                aria-checked={raw.value}
                class={raw.value ? "on" : ""}
                onClick={() => {
                  raw.value = true;
                }}
              >
                Value
              </button>
              <button
                type="button"
                role="radio"
                aria-checked={!raw.value}
                class={raw.value ? "" : "on"}
                onClick={() => {
                  raw.value = false;
                }}
              >
                {cramped ? "Ratio" : "Relative to median"}
              </button>
            </div>
            <input
              ref={field}
              class="filter"
              type="text"
              placeholder="Filter  /"
              aria-label="Filter rows by name"
              value={session.filter.value}
              onInput={(event) => {
                session.filter.value = (event.target as HTMLInputElement).value;
              }}
              onKeyDown={(event) => {
                if (event.key === "Escape") {
                  session.filter.value = "";
                  (event.target as HTMLInputElement).blur();
                  event.stopPropagation();
                }
                if (event.key === "Enter") (event.target as HTMLInputElement).blur();
              }}
            />
            <span class="space" />
            {width.value > 1240 && <HeatKey heat={heat} raw={raw.value} />}
          </div>
        )}
        {!phone && (
          <div class="values head">
            <span>{STAT_SHORT[stat.value] ?? stat.value}</span>
            <span>ratio</span>
          </div>
        )}
      </div>
      <HeatGrid
        tree={tree}
        rows={rows}
        heat={heat}
        scale={scale}
        span={data.span}
        flags={flags}
        ends={ends}
        raw={raw.value}
        open={session.open.value}
        kind={kind.value}
        stat={stat.value}
        rowHeight={phone ? 17 : undefined}
        onToggle={(path) => session.toggle(path)}
        onOpen={(path) => go(runLink(session.key, "layers", { at: path, ...place() }))}
        onRange={(a, b) => {
          const [x, y] = session.seen.value;
          if (rows.length > 240 && (a < x || b > y || a > x + 80)) session.seen.value = [a, b];
        }}
      />
      {session.filter.value && !rows.length && <p class="note pad">No match.</p>}
      {phone && (
        <div class="phonekey">
          <HeatKey heat={heat} raw={raw.value} />
        </div>
      )}
    </>
  );
}
/** What the panels hold, as tables to save. */
function useTables(session: RunSession): void {
  const tracks = session.tracks.value,
    heat = session.heat.value,
    tree = session.tree.value;
  useEffect(() => {
    for (const track of tracks)
      offer(track.key, {
        name: track.label,
        head: ["first_step", "steps", "mean", "lowest", "highest"],
        rows: () => {
          const of = line(track.series);
          return [...of.mean].map((value, at) => [
            of.start + at * of.size,
            of.size,
            of.marks[at] === Mark.NAN
              ? "NaN"
              : of.marks[at] === Mark.INF
                ? "Inf"
                : of.marks[at] === Mark.MISSING
                  ? ""
                  : value,
            of.low[at],
            of.high[at],
          ]);
        },
      });
    if (heat)
      offer("heat", {
        name: "Layers by step",
        head: ["layer", "kind", "statistic", "first_step", "steps", "value", "ratio_to_own_median"],
        rows: () =>
          heat.rows.flatMap((row) =>
            Array.from({ length: heat.count }, (_, at) => {
              const step = heat.start + at * heat.size,
                cell = cellAt(heat, row, step);
              return [
                tree[row]?.[0] ?? "",
                heat.kind,
                heat.stat,
                step,
                heat.size,
                cell?.value ?? "",
                cell?.ratio ?? "",
              ];
            }),
          ),
      });
    return () => {
      for (const track of tracks) withdraw(track.key);
      withdraw("heat");
    };
  }, [tracks, heat]);
}
function useOverviewKeys(session: RunSession): void {
  const act = useMemo(
    () => ({
      rows: () => session.rows().map((row) => session.tree.value[row][0]),
      toggle: (path: string) => session.toggle(path),
      open: (path: string) => go(runLink(session.key, "layers", { at: path, ...place() })),
      said: () => {
        const row = session.tree.value.findIndex((one) => one[0] === selected.value);
        if (row >= 0 && cursor.value !== null)
          say(
            describe(
              { tree: session.tree.value, heat: session.heat.value, kind: kind.value, stat: stat.value },
              row,
              cursor.value,
            ),
          );
      },
    }),
    [session],
  );
  useLayoutEffect(
    () =>
      handleKeys({
        session,
        ...act,
        up: () => {
          if (selected.value) selected.value = "";
          else go("#/");
        },
      }),
    [session, act],
  );
  void height;
}
