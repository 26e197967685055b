// The cells of a heatmap: which rows are open, what a cell holds, and that in words.
import { type Heat, Mark } from "./data";
import { KIND_NAMES, count, number, ratio, times } from "./format";
import { STAT_SHORT } from "./types";
import { type TreeRow } from "./types";

/** The rows to show: those whose parents are all open, and (with a filter) what matches and its parents. */
export function visibleRows(tree: TreeRow[], open: Set<string>, filter = ""): number[] {
  const out: number[] = [];
  if (filter) {
    const wanted = filter.toLowerCase();
    const keep = new Set<number>();
    tree.forEach((row, at) => {
      if (row[0].toLowerCase().includes(wanted)) for (let up = at; up >= 0; up = tree[up][2]) keep.add(up);
    });
    return [...keep].sort((a, b) => a - b);
  }
  const shown = new Uint8Array(tree.length);
  tree.forEach((row, at) => {
    const parent = row[2];
    if (parent < 0 || (shown[parent] && open.has(tree[parent][0]))) {
      shown[at] = 1;
      out.push(at);
    }
  });
  return out;
}
/** "0-4,9,11" */
export function rangesOf(rows: number[]): string {
  const out: string[] = [];
  for (let at = 0; at < rows.length; at++) {
    let end = at;
    while (end + 1 < rows.length && rows[end + 1] === rows[end] + 1 && end - at < 300) end++;
    out.push(end === at ? String(rows[at]) : `${rows[at]}-${rows[end]}`);
    at = end;
  }
  return out.join(",");
}
export interface Cell {
  value: number | null;
  ratio: number | null;
  mark: number;
}
export function cellAt(heat: Heat | null, row: number, step: number): Cell | null {
  const at = heat?.place.get(row);
  if (!heat || at === undefined) return null;
  const column = Math.floor((step - heat.start) / heat.size);
  if (column < 0 || column >= heat.count) return null;
  const mark = heat.marks[at * heat.count + column];
  const value =
    mark === Mark.NAN
      ? NaN
      : mark === Mark.INF
        ? Infinity
        : mark === Mark.PLAIN || mark === Mark.DEAD
          ? heat.values[at * heat.count + column]
          : null;
  const usual = heat.usual[at];
  return {
    value,
    mark,
    ratio:
      value === null
        ? null
        : !Number.isFinite(value)
          ? value
          : Number.isFinite(usual) && usual > 0
            ? Math.abs(value) / usual
            : null,
  };
}
export const MARK_WORDS: Record<number, string> = {
  [Mark.MISSING]: "missing",
  [Mark.SKIPPED]: "skipped",
  [Mark.FROZEN]: "no gradient",
  [Mark.DEAD]: "all zero",
  [Mark.INF]: "Inf",
  [Mark.NAN]: "NaN",
};
export function describe(
  props: { tree: TreeRow[]; heat: Heat | null; kind: string; stat: string },
  row: number,
  step: number,
): string {
  const cell = cellAt(props.heat, row, step);
  const head = `${props.tree[row][0]} ${(KIND_NAMES[props.kind] ?? props.kind).toLowerCase()}, step ${count(step)}`;
  if (!cell) return head;
  if (cell.value === null) return `${head}: ${MARK_WORDS[cell.mark]}`;
  const stat = STAT_SHORT[props.stat] ?? props.stat;
  if (cell.ratio === null || !Number.isFinite(cell.value)) return `${head}: ${stat} ${number(cell.value)}`;
  return `${head}: ${stat} ${number(cell.value)}, ${ratio(cell.ratio) === "usual" ? "usual" : `${times(cell.ratio)} its median of ${number(props.heat!.usual[props.heat!.place.get(row)!])}`}`;
}
