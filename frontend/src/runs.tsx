// The list of runs.
import type { JSX } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { ask, Latest, listen } from "./api";
import { Empty, Status, Tools, TroubleScreen } from "./chrome";
import { small } from "./data";
import { type RunRow, type Trouble } from "./types";
import { amount, bytes, clock, count, day, duration, number, plural, since } from "./format";
import { Icon, Logo, Severity, StateSign, VerdictSign } from "./glyphs";
import { handleKeys } from "./keys";
import { paintThumb } from "./paint";
import { go, isPhone, runLink, tokens } from "./state";
import { Spark } from "./pieces";

const rows = signal<RunRow[] | null>(null);
const base = signal("");
const trouble = signal<Trouble | null>(null);
const filter = signal<"all" | "live" | "look" | "crashed">("all");
const words = signal("");
const picked = signal<string[]>([]);
const at = signal(-1);

const needsLook = (row: RunRow): boolean => row.verdict.severity === "Critical" || row.verdict.severity === "Warning";
const PASSES: Record<string, (row: RunRow) => boolean> = {
  all: () => true,
  live: (row) => row.state === "live",
  look: needsLook,
  crashed: (row) => row.state === "crashed",
};

function headline(all: RunRow[]): string {
  if (!all.length) return "No runs here yet.";
  const live = all.filter(PASSES.live),
    look = live.filter(needsLook),
    total = all.filter(needsLook);
  const numbers = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"];
  const say = (n: number): string => numbers[n] ?? count(n);
  if (live.length)
    return `${say(live.length)} ${live.length === 1 ? "run is" : "runs are"} live. ${look.length === 0 ? "No trouble so far." : live.length === 1 ? "It has a problem." : `${say(look.length)} of them ${look.length === 1 ? "has" : "have"} a problem.`}`;
  if (total.length === 2 && all.length === 2) return "Both runs have problems.";
  if (total.length && all.length === 1) return "The run has a problem.";
  if (total.length)
    return `${say(total.length)} of ${count(all.length)} ${all.length === 1 ? "run" : "runs"} ${total.length === 1 ? "has" : "have"} a problem.`;
  return `No trouble known in ${plural(all.length, "run")}.`;
}

function group(row: RunRow): string {
  if (row.state === "live") return "Now";
  if (!row.startedAt) return "Unknown";
  const today = new Date(),
    then = new Date(row.startedAt * 1000);
  const days = Math.round(
    (new Date(today.getFullYear(), today.getMonth(), today.getDate()).getTime() -
      new Date(then.getFullYear(), then.getMonth(), then.getDate()).getTime()) /
      86400000,
  );
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : day(row.startedAt);
}

export function Runs(): JSX.Element {
  useEffect(() => {
    const latest = new Latest<{ base: string; runs: RunRow[] }>(
      (body) => {
        rows.value = body.runs;
        base.value = body.base;
        trouble.value = null;
      },
      (one) => {
        trouble.value = one;
      },
    );
    latest.put(() => ask("runs"));
    const end = listen(
      "stream",
      () => latest.put(() => ask("runs")),
      () => undefined,
      () => undefined,
    );
    document.title = "Runs · Stethoscope";
    return () => {
      latest.stop();
      end();
    };
  }, []);
  const all = rows.value ?? [];
  const shown = useMemo(() => {
    const wanted = words.value.toLowerCase();
    const kept = all.filter(
      (row) =>
        PASSES[filter.value](row) &&
        `${row.name} ${row.id} ${row.verdict.message} ${row.verdict.code} ${row.precision ?? ""}`
          .toLowerCase()
          .includes(wanted),
    );
    return kept.sort(
      (a, b) => Number(b.state === "live") - Number(a.state === "live") || (b.startedAt ?? 0) - (a.startedAt ?? 0),
    );
  }, [rows.value, filter.value, words.value]);
  const field = useRef<HTMLInputElement>(null);
  useRunKeys(shown, field);
  if (trouble.value && !rows.value) return <TroubleScreen trouble={trouble.value} />;
  const groups: [string, RunRow[]][] = [];
  for (const row of shown) {
    const name = group(row);
    if (groups.at(-1)?.[0] === name) groups.at(-1)![1].push(row);
    else groups.push([name, [row]]);
  }
  const phone = isPhone.value;
  return (
    <div class="app">
      <header class="bar">
        <span class="home">
          <Logo />
        </span>
        <b class="title">Runs</b>
        <span class="note">
          in <span class="mono">{base.value}/</span>
        </span>
        <div class="tools">
          <Tools />
        </div>
      </header>
      <main class="screen runs" id="main">
        <div class="listhead">
          <h1>{rows.value === null ? "Reading the runs." : headline(all)}</h1>
          {!phone && (
            <div class="segments" role="radiogroup" aria-label="Which runs">
              {(
                [
                  ["all", "All"],
                  ["live", "Live"],
                  ["look", "With findings"],
                  ["crashed", "Crashed"],
                ] as const
              ).map(([id, label]) => (
                <button
                  type="button"
                  role="radio"
                  aria-checked={filter.value === id}
                  class={filter.value === id ? "on" : ""}
                  onClick={() => {
                    filter.value = id;
                  }}
                >
                  {label} {count(all.filter(PASSES[id]).length)}
                </button>
              ))}
            </div>
          )}
          <label class="search">
            <Icon name="search" />
            <input
              ref={field}
              type="text"
              aria-label="Name, layer, finding or config"
              placeholder="Name, layer or finding"
              value={words.value}
              onInput={(event) => {
                words.value = (event.target as HTMLInputElement).value;
              }}
              onKeyDown={(event) => {
                if (event.key === "Escape" || event.key === "Enter") (event.target as HTMLInputElement).blur();
              }}
            />
            {!phone && <kbd>/</kbd>}
          </label>
        </div>
        {rows.value !== null && all.length === 0 && (
          <Empty
            title="No runs here yet."
            text="Watch a script, unchanged, and come back."
            command="stethoscope run train.py"
          />
        )}
        {shown.length > 0 && (
          <div class="runlist" role="grid" aria-label="Runs">
            <div class="runrow head" role="row">
              {["", "", "Run", "Verdict", "Loss", "Layers by step", "Last loss", "Step", "Steps/s", "Started"].map(
                (name, n) => (
                  <div role="columnheader" class={n > 5 ? "num" : ""}>
                    {name || <span class="hidden">{n ? "State" : "Selected"}</span>}
                  </div>
                ),
              )}
            </div>
            {groups.map(([name, members]) => (
              <>
                <div class="rungroup" role="row">
                  <div role="gridcell">{name}</div>
                </div>
                {members.map((row) => (
                  <RunLine row={row} here={shown.indexOf(row) === at.value} />
                ))}
              </>
            ))}
          </div>
        )}
        {all.length > 0 && shown.length === 0 && <p class="note pad">No run matches.</p>}
        {picked.value.length > 0 && <Dock all={all} />}
      </main>
      {!phone && (
        <Status
          parts={[
            {
              strong: count(all.length),
              rest: `${all.length === 1 ? "run" : "runs"}${all.length ? `, ${bytes(all.reduce((sum, row) => sum + (row.numBytes ?? 0), 0))}` : ""}`,
            },
            { before: "Token required,", strong: "", rest: "this machine only" },
          ]}
          keys={[
            [["j", "k"], "move"],
            [["x"], "select"],
            [["enter"], "open"],
            [["?"], "keys"],
          ]}
        />
      )}
    </div>
  );
}

function pick(key: string): void {
  picked.value = picked.value.includes(key)
    ? picked.value.filter((one) => one !== key)
    : [...picked.value, key].slice(-2);
}
const compareLink = (): string => `#/compare?a=${picked.value[0]}&b=${picked.value[1]}`;

function Dock({ all }: { all: RunRow[] }): JSX.Element {
  const chosen = picked.value
    .map((key) => all.find((row) => row.key === key))
    .filter((row): row is RunRow => Boolean(row));
  return (
    <div class="dock" role="region" aria-label="Selected runs">
      <span>
        <b>{count(chosen.length)} selected</b>{" "}
        {chosen.map((row, n) => (
          <>
            {n > 0 && " and "}
            {row.name} <span class="mono">{row.id}</span>
          </>
        ))}
      </span>
      <button
        type="button"
        class="button"
        onClick={() => {
          picked.value = [];
        }}
      >
        Clear <kbd>esc</kbd>
      </button>
      {chosen.length === 2 && (
        <a class="button primary" href={compareLink()}>
          Compare <kbd>c</kbd>
        </a>
      )}
    </div>
  );
}

function RunLine({ row, here }: { row: RunRow; here: boolean }): JSX.Element {
  const t = tokens.value;
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (here) ref.current?.scrollIntoView({ block: "nearest" });
  }, [here]);
  const chosen = picked.value.includes(row.key);
  const seconds = row.startedAt && row.endedAt ? row.endedAt - row.startedAt : null;
  const tick = row.verdict.severity === "Critical" ? t.crit : row.verdict.severity === "Warning" ? t.warnMark : "";
  const facts = [
    row.numParameters ? amount(row.numParameters) : "",
    row.numRanks ? plural(row.numRanks, "rank") : "",
    row.precision ?? "",
    row.numBytes ? bytes(row.numBytes) : "",
  ]
    .filter(Boolean)
    .join(", ");
  const bad = row.lastLoss === "NaN" || row.lastLoss === "Infinity";
  return (
    <div
      class={`runrow${chosen ? " chosen" : ""}${here ? " here" : ""}`}
      role="row"
      aria-selected={chosen}
      ref={ref}
      onClick={(event) => {
        if (!(event.target as Element).closest("input, a")) go(runLink(row.key));
      }}
    >
      <div role="gridcell">
        <input
          type="checkbox"
          checked={chosen}
          aria-label={`Select ${row.name} ${row.id}`}
          onChange={() => pick(row.key)}
        />
      </div>
      <div role="gridcell">
        <StateSign of={row.state} />
      </div>
      <div role="rowheader" class="who">
        <a href={runLink(row.key)}>
          <b>{row.name}</b> <span class="mono">{row.id}</span>
        </a>
        <small>
          {(row.state === "stale" || row.state === "damaged") && (
            <span class="warn">
              {row.stateText}
              {facts ? ", " : ""}
            </span>
          )}
          {facts}
        </small>
      </div>
      <div role="gridcell" class="what">
        {row.verdict.looked && !row.trouble ? (
          <VerdictSign state={row.verdict.state} severity={row.verdict.severity} />
        ) : (
          <Severity of="none" />
        )}
        <div>
          <p class={row.verdict.severity && row.verdict.severity !== "Info" ? "" : "quiet"} title={row.verdict.message}>
            {row.verdict.short || row.verdict.message}
          </p>
          {row.verdict.code && (
            <small>
              <span class="mono">{row.verdict.code}</span> {since(row.verdict.firstStep!, row.verdict.lastStep ?? -1)}
              {row.verdict.nanAt != null ? `, NaN at ${count(row.verdict.nanAt)}` : ""}
              {row.verdict.more ? `, ${count(row.verdict.more)} more` : ""}
            </small>
          )}
          {!row.verdict.code && row.verdict.label && <small>{row.verdict.label}</small>}
          {row.do && <small>{row.do}</small>}
        </div>
      </div>
      <div role="gridcell">
        {row.loss && (
          <Spark
            packed={row.loss}
            w={176}
            h={30}
            step={tick ? row.verdict.firstStep : null}
            tick={tick || undefined}
            band
          />
        )}
      </div>
      <div role="gridcell">{row.heat && <Thumb heat={row.heat} />}</div>
      <div role="gridcell" class={`num strong${bad ? " crit" : ""}`}>
        {number(row.lastLoss)}
      </div>
      <div role="gridcell" class="num">
        {row.lastStep === null ? "" : count(row.lastStep)}
      </div>
      <div role="gridcell" class="num">
        {row.throughput ? number(row.throughput) : ""}
      </div>
      <div role="gridcell" class="num">
        <span>{clock(row.startedAt)}</span>
        <small>{seconds ? duration(seconds) : ""}</small>
      </div>
    </div>
  );
}
export function Thumb({ heat }: { heat: NonNullable<RunRow["heat"]> }): JSX.Element {
  const t = tokens.value;
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    paintThumb(ref.current!, heat.rows, heat.count, small(heat.levels), small(heat.marks), t, 116, 30);
  }, [heat, t]);
  return <canvas ref={ref} class="thumb" aria-hidden="true" />;
}

function useRunKeys(shown: RunRow[], field: { current: HTMLInputElement | null }): void {
  useLayoutEffect(() => {
    const focus = (): void => field.current?.focus();
    addEventListener("stethoscope-filter", focus);
    const end = handleKeys({
      up: () => {
        if (picked.value.length) picked.value = [];
        else words.value = "";
      },
      extra: (key) => {
        const row = shown[at.value];
        switch (key) {
          case "j":
          case "ArrowDown":
            at.value = Math.min(shown.length - 1, at.value + 1);
            return true;
          case "k":
          case "ArrowUp":
            at.value = Math.max(0, at.value - 1);
            return true;
          case "x":
            if (row) pick(row.key);
            return true;
          case "Enter":
            if (!row) return false;
            go(runLink(row.key));
            return true;
          case "c":
            if (picked.value.length === 2) go(compareLink());
            return true;
          default:
            return false;
        }
      },
    });
    return () => {
      end();
      removeEventListener("stethoscope-filter", focus);
    };
  }, [shown]);
}
