// Layers by steps on a canvas, with the tree at its left and the values at the cursor at its right.
import { type JSX, type RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Ends, type Flag, Rules } from "./axis";
import { type Heat, Mark } from "./data";
import { KIND_NAMES, count, number, ratio, times } from "./format";
import { STAT_SHORT } from "./types";
import { Severity } from "./glyphs";
import { MARK_WORDS, cellAt } from "./heat_cells";
import { type Look, paintRow, texture, valueRange } from "./paint";
import { type Scale } from "./plot";
import { usePointer } from "./pointer";
import { cursor, isPhone, selected, tokens } from "./state";
import { type Tokens } from "./tokens";
import { type TreeRow } from "./types";

export const ROW = 16;
const TALL = 20;
export interface HeatProps {
  tree: TreeRow[];
  rows: number[];
  heat: Heat | null;
  scale: Scale;
  span: [number, number];
  flags: Flag[];
  ends?: Ends | null;
  raw: boolean;
  open: Set<string>;
  kind: string;
  stat: string;
  height?: number;
  onToggle: (path: string) => void;
  onOpen: (path: string) => void;
  onRange?: (first: number, last: number) => void;
  draw?: (
    context: CanvasRenderingContext2D,
    at: number,
    x: (step: number) => number,
    y: number,
    height: number,
    t: Tokens,
    dpr: number,
    right: number,
  ) => void;
  valuesOf?: (row: number, step: number) => [string, string, boolean];
  tipOf?: (row: number, step: number) => JSX.Element | null;
  sign?: (row: number) => string;
  rowHeight?: number;
  /** Words on the field left of a line. */
  band?: { x: number; words: string };
}
export function HeatGrid(props: HeatProps): JSX.Element {
  const { tree, rows, heat, scale, flags, ends, open } = props;
  const t = tokens.value;
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [top, setTop] = useState(0);
  const [seen, setSeen] = useState(props.height ?? 400);
  // A small model's rows may be taller: they need not be spared.
  const pitch = props.rowHeight ?? (rows.length > 0 && rows.length * TALL <= seen ? TALL : ROW);
  const [hover, setHover] = useState<number | null>(null);
  useLayoutEffect(() => {
    const element = box.current!;
    const watch = new ResizeObserver(() => setSeen(element.clientHeight));
    watch.observe(element);
    setSeen(element.clientHeight);
    return () => watch.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / pitch) - 4),
    last = Math.min(rows.length, Math.ceil((top + seen) / pitch) + 4);
  useEffect(() => {
    props.onRange?.(first, last);
  }, [first, last]);
  const look = useMemo<Look>(
    () => (heat && props.raw ? valueRange(heat) : { raw: false, low: 0, high: 0, log: false }),
    [heat, props.raw],
  );
  const drawn = rows.slice(Math.floor(top / pitch), Math.ceil((top + seen) / pitch)).join();
  useLayoutEffect(
    () => paint(canvas, props, look, top, seen, pitch, t),
    [
      heat,
      drawn,
      look,
      top,
      seen,
      pitch,
      t,
      scale.first,
      scale.last,
      scale.width,
      props.span[1],
      props.draw ? {} : null,
    ],
  );
  const pointer = usePointer(scale, props.span, (y) => {
    const at = Math.floor((y + (box.current?.scrollTop ?? 0)) / pitch);
    if (rows[at] !== undefined) {
      selected.value = tree[rows[at]][0];
      setHover(at);
    }
  });
  const chosen = rows.findIndex((row) => tree[row][0] === selected.value);
  useEffect(() => {
    keepSeen(box, chosen, pitch);
  }, [chosen]);
  const total = Math.max(rows.length * pitch, 1);
  const shownHeight = Math.min(seen, total);
  return (
    <div
      class="heat"
      ref={box}
      onScroll={() => setTop(box.current!.scrollTop)}
      onMouseLeave={() => setHover(null)}
      role="treegrid"
      aria-rowcount={rows.length}
      aria-label={`${KIND_NAMES[props.kind] ?? props.kind} by layer and step. Arrow keys move; o opens a branch; Enter opens the layer`}
      tabIndex={0}
      aria-activedescendant={chosen >= 0 ? `row-${rows[chosen]}` : undefined}
    >
      <div
        class="tall"
        ref={(el) => {
          if (el) el.style.height = `${total}px`;
        }}
      >
        <canvas ref={canvas} aria-hidden="true" data-panel="heat" />
        <svg
          class="over plotbox"
          aria-hidden="true"
          ref={(el) => {
            if (el) el.style.top = `${top}px`;
          }}
          width={scale.width}
          height={shownHeight}
        >
          <Rules scale={scale} height={shownHeight} flags={flags} ends={ends} />
          {props.band && (
            <text x={props.band.x - 10} y={pitch * 4.5 + 4} text-anchor="end" class="band">
              {props.band.words}
            </text>
          )}
          {chosen >= 0 && chosen * pitch >= top - pitch && chosen * pitch < top + seen && (
            <rect
              x="0.6"
              y={chosen * pitch - top - 0.5}
              width={scale.width - 1.2}
              height={pitch}
              fill="none"
              stroke={t.ink}
              stroke-width="1.25"
            />
          )}
        </svg>
        <div
          class="plotbox touch"
          {...pointer}
          onMouseMove={(event) => {
            (pointer.onMouseMove as (e: MouseEvent) => void)(event);
            const y = event.clientY - (event.currentTarget as Element).getBoundingClientRect().top;
            setHover(Math.floor(y / pitch));
          }}
          onDblClick={(event) => {
            const y = event.clientY - (event.currentTarget as Element).getBoundingClientRect().top;
            const row = rows[Math.floor(y / pitch)];
            if (row !== undefined) props.onOpen(tree[row][0]);
          }}
        />
        {rows.slice(first, last).map((row, n) => (
          <Row
            key={row}
            {...{ props, row, at: first + n, pitch, isOpen: open.has(tree[row][0]), chosen: first + n === chosen }}
          />
        ))}
        {hover !== null && rows[hover] !== undefined && (
          <Tip props={props} row={rows[hover]} at={hover} pitch={pitch} bottom={top + seen} />
        )}
      </div>
    </div>
  );
}
function keepSeen(box: RefObject<HTMLDivElement | null>, at: number, pitch: number): void {
  const element = box.current;
  if (!element || at < 0) return;
  const y = at * pitch;
  if (y < element.scrollTop) element.scrollTop = y;
  else if (y + pitch > element.scrollTop + element.clientHeight) element.scrollTop = y + pitch - element.clientHeight;
}
function paint(
  ref: RefObject<HTMLCanvasElement | null>,
  props: HeatProps,
  look: Look,
  top: number,
  seen: number,
  pitch: number,
  t: Tokens,
): void {
  const element = ref.current;
  if (!element) return;
  const { heat, rows, scale } = props;
  const dpr = devicePixelRatio || 1;
  const height = Math.min(seen, Math.max(rows.length * pitch, 1));
  const w = Math.round(scale.width * dpr),
    h = Math.round(height * dpr);
  if (element.width !== w || element.height !== h) {
    element.width = w;
    element.height = h;
    element.style.width = `${scale.width}px`;
    element.style.height = `${height}px`;
  }
  element.style.top = `${top}px`;
  const context = element.getContext("2d")!;
  context.fillStyle = t.sheet;
  context.fillRect(0, 0, w, h);
  const right = Math.round(Math.min(scale.width, scale.x(props.span[1] + 1)) * dpr);
  const x = (step: number): number => scale.x(step) * dpr;
  for (let at = Math.floor(top / pitch); at < Math.min(rows.length, Math.ceil((top + seen) / pitch)); at++) {
    const y = Math.round((at * pitch - top) * dpr),
      cell = Math.round((pitch - 1) * dpr);
    if (props.draw) {
      props.draw(context, rows[at], x, y, cell, t, dpr, right);
      continue;
    }
    const place = heat?.place.get(rows[at]);
    if (heat && place !== undefined) paintRow(context, heat, place, x, y, cell, t, dpr, look, right);
    else if (props.tree[rows[at]][5]) {
      context.fillStyle = texture(context, Mark.FROZEN, t, dpr);
      context.fillRect(0, y, right, cell);
    }
  }
}
function Row({
  props,
  row,
  at,
  pitch,
  isOpen,
  chosen,
}: {
  props: HeatProps;
  row: number;
  at: number;
  pitch: number;
  isOpen: boolean;
  chosen: boolean;
}): JSX.Element {
  const [path, label, , indent, children, frozen, severity] = props.tree[row];
  const sign = props.sign?.(row) ?? "";
  return (
    <div
      class={`row${chosen ? " chosen" : ""}${severity ? " bad" : ""}`}
      id={`row-${row}`}
      role="row"
      aria-level={indent + 1}
      aria-expanded={children ? isOpen : undefined}
      aria-selected={chosen}
      ref={(el) => {
        if (el) {
          el.style.top = `${at * pitch}px`;
          el.style.height = `${pitch}px`;
        }
      }}
    >
      <div
        class="label"
        role="rowheader"
        title={path}
        onClick={() => {
          selected.value = path;
          if (children) props.onToggle(path);
        }}
        onDblClick={() => props.onOpen(path)}
        ref={(el) => {
          if (el) el.style.paddingLeft = `${10 + indent * (isPhone.value ? 5 : 13)}px`;
        }}
      >
        <span class={`twist${children ? (isOpen ? " open" : " shut") : ""}`} />
        <span class="mono">{label}</span>
        {frozen ? <em>frozen</em> : sign ? <em>{sign}</em> : null}
        {severity && <Severity of={severity} size={10} />}
      </div>
      <RowValues props={props} row={row} frozen={Boolean(frozen)} />
    </div>
  );
}
function RowValues({ props, row, frozen }: { props: HeatProps; row: number; frozen: boolean }): JSX.Element {
  const step =
    cursor.value ??
    (props.heat ? Math.min(props.span[1], props.heat.start + props.heat.count * props.heat.size - 1) : null);
  if (frozen && !props.valuesOf)
    return (
      <div class="cells" role="gridcell">
        <span class="wide">no {props.kind === "update" ? "update" : "gradient"}</span>
      </div>
    );
  if (step === null) return <div class="cells" role="gridcell" />;
  if (props.valuesOf) {
    const [a, b, strong] = props.valuesOf(row, step);
    return (
      <div class={`cells${strong ? " off" : ""}`} role="gridcell">
        <span>{a}</span>
        <span>{b}</span>
      </div>
    );
  }
  const cell = cellAt(props.heat, row, step);
  if (!cell) return <div class="cells" role="gridcell" />;
  if (cell.value === null)
    return (
      <div class="cells" role="gridcell">
        <span class="wide">{MARK_WORDS[cell.mark]}</span>
      </div>
    );
  const words = cell.ratio === null ? "" : ratio(cell.ratio);
  const broken = !Number.isFinite(cell.value);
  return (
    <div
      class={`cells${words !== "usual" && words !== "" && !broken ? " off" : ""}${broken ? " crit" : ""}`}
      role="gridcell"
    >
      <span>{number(cell.value)}</span>
      <span>{broken ? "" : words}</span>
    </div>
  );
}
function Tip({
  props,
  row,
  at,
  pitch,
  bottom,
}: {
  props: HeatProps;
  row: number;
  at: number;
  pitch: number;
  bottom: number;
}): JSX.Element | null {
  const step = cursor.value;
  if (step === null) return null;
  const own = props.tipOf?.(row, step);
  const cell = props.tipOf ? null : cellAt(props.heat, row, step);
  if (!own && !cell) return null;
  const place = (el: HTMLDivElement | null): void => {
    if (!el) return;
    const x = Math.max(0, Math.min(props.scale.width - el.offsetWidth, props.scale.x(step) - el.offsetWidth * 0.45));
    const below = (at + 1) * pitch + 10 + el.offsetHeight <= bottom;
    el.style.left = `calc(var(--left) + ${x}px)`;
    el.style.top = `${below ? (at + 1) * pitch + 10 : at * pitch - el.offsetHeight - 10}px`;
  };
  const usual = props.heat?.usual[props.heat.place.get(row) ?? -1];
  const wide = props.heat && props.heat.size > 1 ? `, ${props.heat.size} steps` : "";
  return (
    <div class="tip" ref={place}>
      {own ?? (
        <>
          <p>
            <span class="mono strong">{props.tree[row][0]}</span> {(KIND_NAMES[props.kind] ?? props.kind).toLowerCase()}
            , step {count(step)}
            {wide}
          </p>
          <p>
            {cell!.value === null ? (
              MARK_WORDS[cell!.mark]
            ) : (
              <>
                {STAT_SHORT[props.stat] ?? props.stat} {number(cell!.value)}
                {cell!.ratio !== null && Number.isFinite(cell!.value) && usual !== undefined && (
                  <>
                    ,{" "}
                    {ratio(cell!.ratio) === "usual" ? (
                      <>usual, its median is {number(usual)}</>
                    ) : (
                      <>
                        <b>{times(cell!.ratio)}</b> its median of {number(usual)}
                      </>
                    )}
                  </>
                )}
              </>
            )}
          </p>
        </>
      )}
    </div>
  );
}
