// One layer: its own quantities on the shared axis, its tree, what it is made of.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Latest, askRun } from "../api";
import { Axis, type Ends, type Flag, colorOf } from "../axis";
import { TroubleScreen } from "../chrome";
import { Mark, line, valueAt } from "../data";
import { Fan, Spectrum, unpack } from "../distribution";
import { KIND_NAMES, amount, count, number, since } from "../format";
import { Severity } from "../glyphs";
import { handleKeys } from "../keys";
import { paintRow } from "../paint";
import { LayerSide } from "../layer_side";
import { HeadMap } from "../parts";
import { type Scale, scaleOf, sentence } from "../plot";
import { offer, withdraw } from "../save";
import { type RunSession } from "../session";
import { cursor, go, isPhone, kind, runLink, selected, tokens, view, width } from "../state";
import { endsOf, flagsOf, scaleFor, usePlotWidth } from "../steps";
import { LineChart } from "../tracks";
import { type LayerData, type RunData, type Track, type Trouble } from "../types";

export function LayersScreen({ session }: { session: RunSession }): JSX.Element {
  const narrow = width.value < 1100,
    phone = isPhone.value;
  const left = phone ? 88 : 168,
    right = phone ? 12 : 96;
  const center = usePlotWidth(session, left, right);
  const [found, setFound] = useState<LayerData | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [tensor, setTensor] = useState(-1);
  const data = session.data.value,
    shown = view.value,
    tree = session.tree.value,
    plot = session.plotWidth.value;
  const path = selected.value || tree.find((row) => row[6] && !row[4])?.[0] || tree[0]?.[0] || "";
  const latest = useRef<Latest<LayerData> | null>(null);
  useEffect(() => {
    latest.current = new Latest<LayerData>((value) => {
      setFound(value);
      setTrouble(null);
    }, setTrouble);
    return () => latest.current?.stop();
  }, [session]);
  useEffect(() => {
    setTensor(-1);
  }, [path]);
  useEffect(() => {
    if (!data || !shown || !path || !plot) return;
    latest.current?.put(() =>
      askRun(session.key, "layer", {
        path,
        first: shown[0],
        last: shown[1],
        width: Math.round(plot / 2),
        step: tensor,
        v: data.version,
      }),
    );
  }, [path, data?.version, shown?.[0], shown?.[1], plot, tensor]);
  useLayerKeys(session, path);
  useEffect(() => {
    if (!narrow) session.heatWidth.value = 60;
    return () => {
      session.heatWidth.value = 0;
    };
  }, [session, narrow]);
  useLayerTables(found);
  const inTree = tree.find((row) => row[0] === path);
  return (
    <main class="screen layer" id="main">
      {!narrow && <Tree session={session} path={path} />}
      <div class="middle" ref={center.ref}>
        {trouble && !found && <TroubleScreen trouble={trouble} />}
        {found && data && shown && (
          <>
            <LayerHead data={data} found={found} session={session} severity={inTree?.[6] ?? ""} />
            <LayerTracks
              data={data}
              found={found}
              scale={scaleFor(data, shown, plot)}
              onTensor={setTensor}
              tensor={tensor}
            />
          </>
        )}
      </div>
      {!phone && found && data && <LayerSide found={found} />}
    </main>
  );
}
function neighbors(session: RunSession, path: string): [string | null, string | null] {
  const rows = session.rows().map((row) => session.tree.value[row][0]),
    at = rows.indexOf(path);
  return [at > 0 ? rows[at - 1] : null, at >= 0 && at < rows.length - 1 ? rows[at + 1] : null];
}
function useLayerKeys(session: RunSession, path: string): void {
  useLayoutEffect(
    () =>
      handleKeys({
        session,
        rows: () => session.rows().map((row) => session.tree.value[row][0]),
        toggle: (one) => session.toggle(one),
        open: (one) => session.toggle(one),
        up: () => go(runLink(session.key)),
      }),
    [session],
  );
  useEffect(() => {
    if (!selected.value && path) selected.value = path;
  }, [path]);
  // What is chosen is opened: its parents must be seen.
  useEffect(() => {
    const parts = path.split("."),
      open = new Set(session.open.value);
    let grown = false;
    for (const row of session.tree.value)
      if (row[4] && path.startsWith(`${row[0]}.`) && !open.has(row[0])) {
        open.add(row[0]);
        grown = true;
      }
    if (grown && parts.length) session.open.value = open;
  }, [path, session.tree.value]);
}
function Tree({ session, path }: { session: RunSession; path: string }): JSX.Element {
  const tree = session.tree.value,
    heat = session.heat.value,
    rows = session.rows();
  return (
    <nav class="tree" aria-label="Layers">
      <p class="treehead">
        <b>{count(session.data.value?.counts.sites ?? 0)} sites</b>
        <span>{(KIND_NAMES[kind.value] ?? "").toLowerCase()} L2</span>
      </p>
      <ul>
        {rows.slice(0, 600).map((row) => {
          const [name, label, , indent, children, frozen, severity] = tree[row];
          return (
            <li class={name === path ? "chosen" : ""}>
              <button
                type="button"
                class="plain"
                aria-current={name === path ? "true" : undefined}
                title={name}
                ref={(el) => {
                  if (el) {
                    el.style.paddingLeft = `${12 + indent * 13}px`;
                    if (name === path) el.scrollIntoView({ block: "nearest" });
                  }
                }}
                onClick={() => {
                  selected.value = name;
                }}
                onDblClick={() => session.toggle(name)}
              >
                <span
                  class={`twist${children ? (session.open.value.has(name) ? " open" : " shut") : ""}`}
                  onClick={(event) => {
                    if (children) {
                      event.stopPropagation();
                      session.toggle(name);
                    }
                  }}
                />
                <span class={`mono${severity ? " strong" : ""}`}>{label}</span>
                {frozen ? <em>frozen</em> : null}
                {severity && <Severity of={severity} size={9} />}
              </button>
              <Strip heat={heat} row={row} />
            </li>
          );
        })}
      </ul>
    </nav>
  );
}
function Strip({ heat, row }: { heat: RunSession["heat"]["value"]; row: number }): JSX.Element {
  const ref = useRef<HTMLCanvasElement>(null);
  const t = tokens.value;
  useLayoutEffect(() => {
    const element = ref.current!,
      dpr = devicePixelRatio || 1;
    element.width = 60 * dpr;
    element.height = 9 * dpr;
    const at = heat?.place.get(row),
      context = element.getContext("2d")!;
    context.clearRect(0, 0, element.width, element.height);
    if (heat && at !== undefined) {
      const scale = scaleOf(heat.start, heat.start + heat.count * heat.size - 1, element.width);
      paintRow(
        context,
        heat,
        at,
        scale.x,
        0,
        element.height,
        t,
        dpr,
        { raw: false, low: 0, high: 0, log: false },
        element.width,
      );
    }
  }, [heat, row, t]);
  return <canvas ref={ref} class="strip" aria-hidden="true" />;
}
function LayerHead({
  data,
  found,
  session,
  severity,
}: {
  data: RunData;
  found: LayerData;
  session: RunSession;
  severity: string;
}): JSX.Element {
  const { head } = found;
  const place = head.source?.file ? `${head.source.file}:${head.source.line}` : "";
  const facts = [
    head.numParameters ? `${amount(head.numParameters)} parameters` : "",
    head.shape.length ? `output ${head.shape.map(count).join(" × ")}${head.dtype ? ` in ${head.dtype}` : ""}` : "",
  ]
    .filter(Boolean)
    .join(", ");
  const [before, after] = neighbors(session, found.path);
  const cause = data.verdict.cause;
  const isCause = cause && found.findings.some((one) => one.code === cause.code);
  const short = (name: string): string => name.split(".").slice(-1)[0];
  return (
    <header class="layerhead">
      <div>
        <h1 class="mono">{found.path}</h1>
        <p>
          <b>{head.type}</b>
          {head.detail && <span class="mono detail">({head.detail})</span>}
          {head.type && facts ? ", " : ""}
          {facts}
          {place && (
            <>
              , <b class="mono">{place}</b>
            </>
          )}
        </p>
      </div>
      {found.findings[0] && (
        <p class="finds">
          <Severity of={severity || found.findings[0].severity} />
          <span>
            <b>{isCause ? "The cause." : "Found here."}</b>{" "}
            {since(found.findings[0].firstStep, found.findings[0].lastStep)}
          </span>
        </p>
      )}
      {!isPhone.value && (
        <div class="steps">
          {before && (
            <button
              type="button"
              class="button"
              title={before}
              onClick={() => {
                selected.value = before;
              }}
            >
              {short(before)} <kbd>k</kbd>
            </button>
          )}
          {after && (
            <button
              type="button"
              class="button"
              title={after}
              onClick={() => {
                selected.value = after;
              }}
            >
              {short(after)} <kbd>j</kbd>
            </button>
          )}
          <a class="button" href={runLink(session.key, "flow")}>
            Show in flow
          </a>
        </div>
      )}
    </header>
  );
}
function LayerTracks({
  data,
  found,
  scale,
  tensor,
  onTensor,
}: {
  data: RunData;
  found: LayerData;
  scale: Scale;
  tensor: number;
  onTensor: (at: number) => void;
}): JSX.Element {
  const flags = flagsOf(data),
    ends = endsOf(data);
  const [first, ...rest] = found.tracks.filter((track) => !(found.heads && track.label === "Attention entropy"));
  const pictures = found.pictures;
  return (
    <div class="layertracks">
      <Axis
        scale={scale}
        flags={flags}
        ends={ends}
        left={isPhone.value ? "Step" : `Steps ${count(scale.first)} to ${count(Math.min(scale.last, data.span[1]))}`}
        right=" "
      />
      {first && <LayerLine track={first} scale={scale} flags={flags} ends={ends} height={96} />}
      {found.heads && <HeadMap heads={found.heads} scale={scale} flags={flags} ends={ends} span={data.span} />}
      {pictures && (
        <>
          <Spectrum
            pictures={pictures}
            scale={scale}
            flags={flags}
            ends={ends}
            span={data.span}
            tensors={found.tensors}
            tensor={tensor}
            onTensor={onTensor}
          />
          <Fan pictures={pictures} scale={scale} flags={flags} ends={ends} span={data.span} />
        </>
      )}
      {rest.map((track) => (
        <LayerLine key={track.key} track={track} scale={scale} flags={flags} ends={ends} height={64} />
      ))}
      {!pictures && (
        <p class="note pad">
          No distribution was recorded here
          {found.histogramEvery ? "" : ": histogram_every=10 records one every tenth step"}.
        </p>
      )}
      {!found.tracks.length && <p class="note pad">Nothing was recorded of this layer in these steps.</p>}
    </div>
  );
}
function LayerLine({
  track,
  scale,
  flags,
  ends,
  height,
}: {
  track: Track;
  scale: Scale;
  flags: Flag[];
  ends: Ends | null;
  height: number;
}): JSX.Element {
  const of = line(track.series);
  return (
    <div class="panel track">
      <div class="gutter">
        <b>{track.label}</b>
        {track.note && <small>{track.note}</small>}
      </div>
      <LineChart
        id={track.key}
        scale={scale}
        height={height}
        lines={[{ of, color: colorOf(track.color) }]}
        log={track.log}
        limits={track.limits}
        flags={flags}
        ends={ends}
        label={sentence(track.label, of, scale, number)}
      />
      <div class="values">
        <At of={of} last={track.last} />
      </div>
    </div>
  );
}
function At({ of, last }: { of: ReturnType<typeof line>; last: number | string | null }): JSX.Element {
  const words = number(cursor.value === null ? last : valueAt(of, cursor.value));
  return <b class={words === "NaN" || words === "Inf" ? "crit" : ""}>{words}</b>;
}
function useLayerTables(found: LayerData | null): void {
  useEffect(() => {
    if (!found) return undefined;
    for (const track of found.tracks)
      offer(track.key, {
        name: track.label,
        head: ["first_step", "steps", "value"],
        rows: () => {
          const of = line(track.series);
          return [...of.mean].map((value, at) => [
            of.start + at * of.size,
            of.size,
            of.marks[at] === Mark.MISSING ? "" : value,
          ]);
        },
      });
    const pictures = found.pictures;
    if (pictures)
      offer("spectrum", {
        name: `Distribution of ${pictures.site}`,
        head: ["step", "sign", "exponent", "values"],
        rows: () => {
          const { negative, positive } = unpack(pictures),
            bins = pictures.top - pictures.bottom;
          return pictures.steps.flatMap((step, at) =>
            [...Array(bins).keys()].flatMap((k) => [
              [step, "+", pictures.bottom + k, positive[at * bins + k]],
              [step, "-", pictures.bottom + k, negative[at * bins + bins - 1 - k]],
            ]),
          );
        },
      });
    return () => {
      for (const track of found.tracks) withdraw(track.key);
      withdraw("spectrum");
    };
  }, [found]);
}
