// Two runs beside each other.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Latest, ask } from "./api";
import { Status, Tools, TroubleScreen } from "./chrome";
import { Body } from "./compare_body";
import { floats } from "./data";
import { KIND_NAMES, count } from "./format";
import { STAT_NAMES } from "./types";
import { Logo, StateSign } from "./glyphs";
import { rangesOf, visibleRows } from "./heat_cells";
import { handleKeys } from "./keys";
import { offer, withdraw } from "./save";
import { cursor, go, isPhone, kind, route, runLink, selected, stat, view, width } from "./state";
import { LEFT, RIGHT } from "./steps";
import { type Angles, type CompareData, type Trouble } from "./types";

export function CompareScreen(): JSX.Element {
  const words = route.value.words,
    a = words.get("a") ?? "",
    b = words.get("b") ?? "";
  const [found, setFound] = useState<CompareData | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [open, setOpen] = useState<Set<string> | null>(null);
  const [again, setAgain] = useState(0);
  const [angles, setAngles] = useState<Angles | null>(null);
  const turned = useRef<Latest<Angles> | null>(null);
  const latest = useRef<Latest<CompareData> | null>(null);
  const plot = Math.max(160, width.value - (isPhone.value ? 100 : LEFT + RIGHT));
  useEffect(() => {
    latest.current = new Latest<CompareData>((value) => {
      setFound(value);
      setTrouble(null);
    }, setTrouble);
    setFound(null);
    setOpen(null);
    setAngles(null);
    turned.current = new Latest<Angles>(setAngles, () => undefined);
    return () => {
      latest.current?.stop();
      turned.current?.stop();
    };
  }, [a, b]);
  const rows = found && open ? visibleRows(found.tree, open) : null;
  const shown = view.value;
  useEffect(() => {
    latest.current?.put(() =>
      ask<CompareData>("compare", {
        a,
        b,
        kind: kind.value || undefined,
        stat: stat.value,
        first: shown?.[0],
        last: shown?.[1],
        width: Math.ceil(plot / 3),
        rows: rows ? rangesOf(rows.slice(0, 380)) : undefined,
      }),
    );
  }, [a, b, kind.value, stat.value, shown?.[0], shown?.[1], rows?.join(","), plot, again]);
  // The directions take longer to read than all the rest: they come by themselves once the rest is there.
  useEffect(() => {
    if (found && rows && shown)
      turned.current?.put(() =>
        ask<Angles>("compare/angles", {
          a,
          b,
          kind: found.kind,
          first: shown[0],
          last: shown[1],
          rows: rangesOf(rows.slice(0, 380)),
        }),
      );
  }, [found?.kind, shown?.[0], shown?.[1], rows?.join(",")]);
  useEffect(() => {
    if (!found) return;
    if (!open)
      setOpen(
        new Set([
          ...found.rows.filter((row) => found.tree[row][2] >= 0).map((row) => found.tree[found.tree[row][2]][0]),
          ...parentsOf(found),
        ]),
      );
    if (!view.value) view.value = found.window;
    if (!kind.value) kind.value = found.kind;
    if (cursor.value === null && found.first) cursor.value = found.first.step;
    if (!selected.value && found.first) selected.value = found.first.path;
    document.title = `${found.a.name} and ${found.b.name} · Stethoscope`;
  }, [found]);
  // Nobody had looked at one of them: what is found comes a little later.
  useEffect(() => {
    if (!found?.isExamining) return undefined;
    const timer = setTimeout(() => setAgain((n) => n + 1), 1500);
    return () => clearTimeout(timer);
  }, [found]);
  useCompareKeys(found, rows, (path) => setOpen((now) => toggled(now ?? new Set(), path)));
  useCompareTable(found);
  if (trouble && !found)
    return (
      <div class="app">
        <CompareBar found={null} a={a} b={b} />
        <TroubleScreen trouble={trouble} />
      </div>
    );
  return (
    <div class="app" data-ready={found && shown ? "1" : undefined}>
      <CompareBar found={found} a={a} b={b} />
      <main class="screen compare" id="main">
        {found && shown && (
          <Body
            found={found}
            shown={shown}
            plot={plot}
            rows={rows ?? found.rows}
            open={open ?? new Set()}
            a={a}
            angled={angles?.kind === found.kind ? angles : null}
            toggle={(path) => setOpen(toggled(open ?? new Set(), path))}
          />
        )}
      </main>
      {!isPhone.value && (
        <Status
          parts={
            found
              ? [
                  { strong: `${count(found.numShared)} of ${count(found.numRows)}`, rest: "layers matched by name" },
                  {
                    before: angles?.cosine
                      ? "Compared through statistics and sketches,"
                      : "Compared through statistics,",
                    strong: "",
                    rest: "no tensors needed",
                  },
                ]
              : []
          }
          keys={[
            [["j", "k"], "row"],
            [["←", "→"], "step"],
            [["d"], "first difference"],
            [["?"], "keys"],
          ]}
        />
      )}
    </div>
  );
}
const toggled = (set: Set<string>, path: string): Set<string> => {
  const now = new Set(set);
  if (!now.delete(path)) now.add(path);
  return now;
};
const parentsOf = (found: CompareData): string[] => {
  const out: string[] = [];
  if (found.first)
    for (let at = found.tree[found.first.place][2]; at >= 0; at = found.tree[at][2]) out.push(found.tree[at][0]);
  return out;
};
function CompareBar({ found, a, b }: { found: CompareData | null; a: string; b: string }): JSX.Element {
  return (
    <header class="bar">
      <a class="home" href="#/" aria-label="All runs">
        <Logo />
      </a>
      {!isPhone.value && (
        <>
          <a href="#/">Runs</a>
          <i>/</i>
          <b class="title">Compare</b>
        </>
      )}
      {found && (
        <>
          <a class="side" href={runLink(a)}>
            <b class="letter a">A</b>
            <span class="cutname">{found.a.name}</span>
            {!isPhone.value && <span class="mono id">{found.a.id}</span>}
            <StateSign of={found.a.state} />
          </a>
          <a class="side" href={runLink(b)}>
            <b class="letter b">B</b>
            <span class="cutname">{found.b.name}</span>
            {!isPhone.value && <span class="mono id">{found.b.id}</span>}
            <StateSign of={found.b.state} />
          </a>
          {!isPhone.value && (
            <>
              <a class="button" href={`#/compare?a=${b}&b=${a}`}>
                Swap
              </a>
              <a class="button" href="#/">
                Choose others
              </a>
            </>
          )}
        </>
      )}
      {!isPhone.value && (
        <div class="tools">
          <Tools />
        </div>
      )}
    </header>
  );
}
export function Headline({ found, link }: { found: CompareData; link: string }): JSX.Element {
  const { first, span } = found;
  if (!first)
    return (
      <>
        <h1>{found.numShared ? "No difference in any layer they share." : "The two runs share no layer."}</h1>
        <p class="why">
          {found.numShared
            ? `All ${count(found.numShared)} layers agree at every step that both recorded.`
            : "Layers are matched by name."}
        </p>
      </>
    );
  const same = first.step - span[0];
  return (
    <>
      <h1>
        {same > 0
          ? `Identical for ${count(same)} steps, then they diverge at `
          : "They differ from the first step on, first in "}
        <a class="name" href={runLink(link, "layers", { at: first.path })}>
          {first.path}
        </a>
        {same > 0 ? ` at step ${count(first.step)}.` : "."}
      </h1>
      <p class="why">
        {same > 0
          ? `All ${count(found.numShared)} layers agree to the last bit in ${STAT_NAMES[found.stat] ?? found.stat} of the ${(KIND_NAMES[found.kind] ?? found.kind).toLowerCase()} up to step ${count(first.step - 1)}. `
          : ""}
        {first.numAfter > 1 ? `One step later ${count(first.numAfter)} layers differ.` : ""}
      </p>
    </>
  );
}
function useCompareKeys(found: CompareData | null, rows: number[] | null, toggle: (path: string) => void): void {
  useLayoutEffect(
    () =>
      handleKeys({
        up: () => go("#/"),
        extra: (key, event) => {
          if (!found) return false;
          const here = cursor.value ?? found.span[1],
            by = event.shiftKey ? 10 : 1;
          const names = (rows ?? found.rows).map((row) => found.tree[row][0]),
            at = names.indexOf(selected.value);
          switch (key) {
            case "d":
              if (found.first) {
                cursor.value = found.first.step;
                selected.value = found.first.path;
                view.value = found.window;
              }
              return true;
            case "ArrowRight":
              cursor.value = Math.min(found.span[1], here + by);
              return true;
            case "ArrowLeft":
              cursor.value = Math.max(found.span[0], here - by);
              return true;
            case "j":
            case "ArrowDown":
              selected.value = names[Math.min(names.length - 1, at + 1)];
              return true;
            case "k":
            case "ArrowUp":
              selected.value = names[Math.max(0, at - 1)];
              return true;
            case "o":
              if (selected.value) toggle(selected.value);
              return true;
            case "0":
              view.value = found.span;
              return true;
            case "+":
            case "=":
            case "-": {
              const [first, last] = view.value ?? found.window,
                half = Math.max(4, Math.round((last - first) * (key === "-" ? 1 : 0.25)));
              view.value = [Math.max(found.span[0], here - half), Math.min(found.span[1], here + half)];
              return true;
            }
            default:
              return false;
          }
        },
      }),
    [found, rows],
  );
}
function useCompareTable(found: CompareData | null): void {
  useEffect(() => {
    if (!found) return undefined;
    offer("heat", {
      name: "Difference by layer",
      head: ["layer", "first_step", "steps", "a", "b", "log2_a_over_b"],
      rows: () => {
        const levels = floats(found.levels),
          a = floats(found.valuesA),
          b = floats(found.valuesB);
        return found.rows.flatMap((row, at) =>
          Array.from({ length: found.count }, (_, n) => [
            found.tree[row][0],
            found.start + n * found.size,
            found.size,
            a[at * found.count + n],
            b[at * found.count + n],
            levels[at * found.count + n],
          ]),
        );
      },
    });
    return () => withdraw("heat");
  }, [found]);
}
