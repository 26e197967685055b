// Where nodes stand and ribbons run. A model with a residual stream becomes a river: sums on one line, branches above
// and below it, layers as columns, the opened module in a box of its own. Every other graph is laid out by dagre.
import type { FlowEdge, FlowNode } from "./types";
import dagre from "@dagrejs/dagre";

export interface Box {
  path: string;
  label: string;
  role: string;
  layer: string;
  isOpen: boolean;
  x: number;
  y: number;
  w: number;
  h: number;
  /** The row of a folded chain. */ band?: number;
}
export interface Ribbon {
  id: number;
  d: string;
  source: string;
  target: string;
  measuredBy: string[];
  cut: boolean;
  straight: boolean;
}
export interface Layout {
  width: number;
  height: number;
  boxes: Box[];
  ribbons: Ribbon[];
  lanes: { label: string; y: number }[];
  columns: { label: string; x: number; strong: boolean }[];
  opened: { x: number; y: number; w: number; h: number } | null;
  end: string;
}
interface Point {
  x: number;
  y: number;
}

const CHAR = 6.9;
const boxWidth = (label: string): number => Math.max(24, label.length * CHAR + 14);
const short = (label: string): string => (label.length > 14 ? `${label.slice(0, 6)}…${label.slice(-6)}` : label);

export function layOut(nodes: FlowNode[], edges: FlowEdge[], opened: string, width: number, height: number): Layout {
  const joins = nodes.filter((one) => one.role === "join" && !one.isOpen);
  const made = joins.length >= 2 && nodes.length < 260 ? river(nodes, edges, opened, width, height) : null;
  return made ?? general(nodes, edges, opened, width, height);
}

function curve(a: Point, b: Point): string {
  const dx = Math.max(14, Math.abs(b.x - a.x) * 0.5) * Math.sign(b.x - a.x || 1);
  return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + dx).toFixed(1)} ${a.y.toFixed(1)} ${(b.x - dx).toFixed(1)} ${b.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`;
}
/** From the river up to a branch: leaves along the river, arrives upright. */
const riseTo = (a: Point, b: Point): string =>
  `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + (b.x - a.x) * 0.7).toFixed(1)} ${a.y.toFixed(1)} ${b.x.toFixed(1)} ${(a.y + (b.y - a.y) * 0.25).toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`;
const fallTo = (a: Point, b: Point): string =>
  `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${a.x.toFixed(1)} ${(b.y - (b.y - a.y) * 0.25).toFixed(1)} ${(b.x - (b.x - a.x) * 0.7).toFixed(1)} ${b.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`;

function river(nodes: FlowNode[], edges: FlowEdge[], opened: string, width: number, height: number): Layout | null {
  const by = new Map(nodes.map((one) => [one.path, one]));
  const sorted = [...nodes].sort((a, b) => a.order - b.order);
  const joins = new Set(sorted.filter((one) => one.role === "join" && !one.isOpen).map((one) => one.path));
  // A branch is a module in a layer that has sums of its own; what stands in none is on the river itself.
  const summed = new Set(sorted.filter((one) => joins.has(one.path)).map((one) => one.layer));
  const fed = new Set(edges.filter((one) => one.gradient === "flows").map((one) => one.source));
  const branches = sorted.filter((one) => one.role === "module" && one.layer !== one.path && summed.has(one.layer)),
    isBranch = new Set(branches.map((one) => one.path));
  const stations = sorted.filter(
    (one) => !isBranch.has(one.path) && one.role !== "input" && (one.role !== "module" || fed.has(one.path)),
  );
  const layers = [...new Set(branches.map((one) => one.layer))];
  if (!layers.length || layers.length > 64) return null;
  return placeRiver({ by, stations, branches, layers, joins, edges, opened, width, height });
}

interface RiverParts {
  by: Map<string, FlowNode>;
  stations: FlowNode[];
  branches: FlowNode[];
  layers: string[];
  joins: Set<string>;
  edges: FlowEdge[];
  opened: string;
  width: number;
  height: number;
}
function placeRiver(parts: RiverParts): Layout {
  const { stations, branches, layers, joins, edges, width, height } = parts;
  // With an opened module the river lies low, to give it room; without one it lies in the middle.
  const opens = branches.some((one) => one.isOpen);
  const left = 76,
    right = 56,
    middle = Math.round(height * (opens ? 0.66 : 0.5)),
    high = Math.round(height * (opens ? 0.46 : 0.22)),
    low = Math.round(Math.min(height - 44, height * (opens ? 0.84 : 0.78)));
  const openLayer = branches.find((one) => one.isOpen)?.layer ?? "";
  const inside = branches.filter((one) => one.isOpen);
  const heads = stations.filter((one) => one.role === "module" && one.order < (branches[0]?.order ?? 0)),
    tails = stations.filter((one) => one.role === "module" && one.order > (branches.at(-1)?.order ?? 0));
  const headWidth = heads.reduce((sum, one) => sum + boxWidth(short(one.label)) + 4, 0),
    tailWidth = tails.reduce((sum, one) => sum + boxWidth(short(one.label)) + 4, 0) + 46;
  const free = width - left - right - headWidth - tailWidth;
  const openWidth = openLayer ? Math.min(Math.max(230, free * 0.3), 320) : 0;
  const cell = (free - openWidth) / Math.max(1, layers.length - (openLayer ? 1 : 0));
  const at = new Map<string, Point & { w: number; h: number }>();
  const boxes: Box[] = [];
  const columns: Layout["columns"] = [];
  const put = (one: FlowNode, x: number, y: number, label: string, h = 24): void => {
    const w = label ? boxWidth(label) : Math.min(22, Math.max(7, cell * 0.5));
    at.set(one.path, { x, y, w, h });
    boxes.push({ path: one.path, label, role: one.role, layer: one.layer, isOpen: one.isOpen, x, y, w, h });
  };
  let x = left;
  heads.forEach((one) => {
    const label = short(one.label),
      w = boxWidth(label);
    put(one, x + w / 2, middle, label, 26);
    x += w + 4;
  });
  let box: Layout["opened"] = null;
  const ups: string[] = [],
    downs: string[] = [],
    insideNames = new Set(inside.map((one) => one.path));
  for (const layer of layers) {
    const own = branches.filter((one) => one.layer === layer && !one.isOpen),
      room = layer === openLayer ? openWidth : cell;
    const sums = stations.filter((one) => one.role === "join" && one.layer === layer);
    if (layer === openLayer) box = { x: x + 8, y: 8, w: room * 0.82, h: middle - 40 };
    const entries = new Set(
      layer === openLayer
        ? own
            .filter((one) => edges.some((edge) => edge.source === one.path && insideNames.has(edge.target)))
            .map((one) => one.path)
        : [],
    );
    const shown = own.filter((one) => !entries.has(one.path));
    for (const one of own) if (entries.has(one.path)) put(one, x + 40, middle - 62, short(one.label), 24);
    shown.forEach((one, n) => {
      const above = layer !== openLayer && (n === 0 ? shown.length > 1 || /att|conv1/.test(one.label) : n % 2 === 0);
      put(
        one,
        x +
          room *
            (layer === openLayer ? 0.92 : shown.length === 1 ? 0.5 : 0.3 + 0.4 * (n / Math.max(1, shown.length - 1))),
        above ? high : low,
        "",
        22,
      );
      (above ? ups : downs).push(one.label);
    });
    sums.forEach((one, n) =>
      at.set(one.path, {
        x: x + room * (layer === openLayer ? (n === 0 ? 0.86 : 1) : (n + 1) / sums.length),
        y: middle,
        w: 0,
        h: 0,
      }),
    );
    columns.push({ label: /(\d+)$/.exec(layer)?.[1] ?? short(layer), x: x + room / 2, strong: layer === openLayer });
    x += room;
  }
  tails.forEach((one) => {
    const label = short(one.label),
      w = boxWidth(label);
    put(one, x + w / 2, middle, label, 26);
    x += w + 4;
  });
  const loss = {
    path: "(loss)",
    label: "loss",
    role: "loss",
    layer: "",
    isOpen: false,
    x: Math.min(width - 24, x + 24),
    y: middle,
    w: 42,
    h: 26,
  };
  boxes.push(loss);
  at.set(loss.path, loss);
  for (const one of stations)
    if (!at.has(one.path))
      at.set(one.path, { x: one.role === "output" ? loss.x - 28 : left + headWidth + 4, y: middle, w: 0, h: 0 });
  if (box && inside.length) placeOpened(inside, edges, box, put);
  return {
    width,
    height,
    boxes,
    ribbons: riverRibbons(parts, at, joins, loss),
    opened: box,
    end: "(loss)",
    columns,
    lanes: [
      ...lane(ups, high),
      ...lane(downs, low),
      { label: "residual", y: middle - 7 },
      { label: "stream", y: middle + 7 },
      ...(columns.length ? [{ label: "layer", y: height - 10 }] : []),
    ],
  };
}

/** What the branches of a lane are called, where most are called the same. */
function lane(labels: string[], y: number): { label: string; y: number }[] {
  const counts = new Map<string, number>();
  for (const one of labels) counts.set(one, (counts.get(one) ?? 0) + 1);
  const best = [...counts].sort((a, b) => b[1] - a[1])[0];
  return best && best[1] > 1 ? [{ label: /^attn?$|^self_attn$/.test(best[0]) ? "attention" : short(best[0]), y }] : [];
}

/** The opened module's parts: dagre from below upwards keeps the reading order of its data. */
function placeOpened(
  inside: FlowNode[],
  edges: FlowEdge[],
  box: { x: number; y: number; w: number; h: number },
  put: (one: FlowNode, x: number, y: number, label: string, h?: number) => void,
): void {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "BT", nodesep: 18, ranksep: 26 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const one of inside) graph.setNode(one.path, { width: boxWidth(short(one.label)), height: 24 });
  const known = new Set(inside.map((one) => one.path));
  for (const edge of edges)
    if (known.has(edge.source) && known.has(edge.target)) graph.setEdge(edge.source, edge.target);
  dagre.layout(graph);
  const spots = inside.map((one) => ({ one, spot: graph.node(one.path) as unknown as Point }));
  const ranks = [...new Set(spots.map((s) => s.spot.y))].sort((a, b) => b - a);
  const half = Math.ceil(ranks.length / 2);
  // No taller than its parts need, and down to the river, so that what belongs together stands together.
  const tall = Math.min(box.h, 148 + Math.max(1, half - 1) * 72);
  box.y += box.h - tall;
  box.h = tall;
  const top = box.y + 62,
    bottom = box.y + box.h - 34;
  const entering = bottom - 44;
  // Data goes up on the left and comes down on the right: the path through the box is an arch.
  for (let rank = 0; rank < ranks.length; rank++) {
    const here = spots.filter((s) => s.spot.y === ranks[rank]).sort((a, b) => a.spot.x - b.spot.x);
    const up = rank < half,
      n = up ? rank : ranks.length - 1 - rank,
      most = Math.max(1, (up ? half : ranks.length - half) - 1);
    const y = (up ? entering : bottom) - (n / most) * ((up ? entering : bottom) - top) * (ranks.length < 3 ? 0.5 : 1);
    here.forEach(({ one }, k) => {
      const w = boxWidth(short(one.label)),
        spread = here.length > 1 ? (k / (here.length - 1) - 0.5) * Math.min(box.w * 0.36, here.length * 64) : 0;
      const x = box.x + box.w * (up ? 0.27 : 0.75) + spread;
      put(one, Math.max(box.x + w / 2 + 8, Math.min(box.x + box.w - w / 2 - 8, x)), y, short(one.label), 24);
    });
  }
}

function riverRibbons(
  { by, edges }: RiverParts,
  at: Map<string, Point & { w: number; h: number }>,
  joins: Set<string>,
  loss: Box,
): Ribbon[] {
  const out: Ribbon[] = [];
  let id = 0;
  const onRiver = (path: string): boolean => {
    const node = by.get(path);
    return joins.has(path) || !node || at.get(path)!.y === loss.y;
  };
  const below = (path: string): string[] => {
    const node = by.get(path);
    return node && node.role === "module" ? [path] : [];
  };
  // On the river the gradient is not measured itself; it is what the next branch or station towards the loss receives.
  const near = (path: string, seen = new Set<string>()): string[] => {
    if (seen.has(path) || seen.size > 40) return [];
    seen.add(path);
    const own = below(path);
    if (own.length) return own;
    return edges
      .filter((one) => one.source === path)
      .flatMap((one) => near(one.target, seen))
      .slice(0, 4);
  };
  const last = [...at.entries()]
    .filter(([path]) => onRiver(path) && path !== loss.path && by.get(path)?.role !== "output")
    .sort((a, b) => b[1].x - a[1].x)[0];
  for (const edge of edges) {
    const a = at.get(edge.source),
      b = at.get(edge.target);
    if (!a || !b || by.get(edge.target)?.role === "output" || by.get(edge.source)?.role === "input") continue;
    const flat = onRiver(edge.source) && onRiver(edge.target);
    if (flat && b.x <= a.x + 1) continue;
    const from = { x: a.x + (flat ? a.w / 2 : 0), y: a.y },
      to = { x: b.x - (flat ? b.w / 2 : 0), y: b.y };
    const d = flat
      ? `M${from.x.toFixed(1)} ${from.y}H${to.x.toFixed(1)}`
      : onRiver(edge.source)
        ? riseTo(from, to)
        : onRiver(edge.target)
          ? fallTo(from, to)
          : curve({ x: a.x, y: a.y }, { x: b.x, y: b.y });
    out.push({
      id: id++,
      d,
      source: edge.source,
      target: edge.target,
      measuredBy: below(edge.target).length
        ? [...below(edge.target), ...below(edge.source)]
        : below(edge.source).length
          ? below(edge.source)
          : near(edge.target),
      cut: edge.gradient !== "flows",
      straight: flat,
    });
  }
  if (last)
    out.push({
      id: id++,
      d: `M${(last[1].x + last[1].w / 2).toFixed(1)} ${loss.y}H${loss.x - loss.w / 2}`,
      source: last[0],
      target: loss.path,
      measuredBy: near(last[0]).concat(below(last[0])),
      cut: false,
      straight: true,
    });
  return out;
}

function general(nodes: FlowNode[], edges: FlowEdge[], opened: string, width: number, height: number): Layout {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 30, marginx: 20, marginy: 20 });
  graph.setDefaultEdgeLabel(() => ({}));
  const shown = nodes.filter((one) => one.role !== "input" && one.role !== "output").slice(0, 260);
  const known = new Set(shown.map((one) => one.path));
  const labelOf = (one: FlowNode): string =>
    one.role === "join"
      ? ""
      : short(!one.layer || one.layer === one.path ? one.label : `${one.layer.split(".").pop()}.${one.label}`);
  for (const one of shown)
    graph.setNode(one.path, {
      width: one.role === "join" ? 8 : boxWidth(labelOf(one)),
      height: one.role === "join" ? 8 : 24,
    });
  graph.setNode("(loss)", { width: 42, height: 26 });
  const kept = edges.filter((one) => known.has(one.source) && known.has(one.target));
  for (const edge of kept) graph.setEdge(edge.source, edge.target);
  const sources = new Set(kept.map((one) => one.source));
  const ends = shown.filter((one) => !sources.has(one.path));
  for (const one of ends) graph.setEdge(one.path, "(loss)");
  dagre.layout(graph);
  const size = graph.graph() as unknown as { width: number; height: number };
  // A long chain is folded into rows that fit, like lines of text.
  const folded = Math.round(Math.sqrt((size.width / Math.max(1, width)) * (height / Math.max(60, size.height))));
  const rows = size.width <= width * 1.15 ? 1 : Math.max(2, Math.min(8, folded, Math.ceil(size.width / (width * 0.7))));
  const span = size.width / rows;
  const kx = (width - 60) / span,
    ky = Math.min(1.6, (height / rows - 8) / Math.max(40, size.height));
  const spot = (path: string): Point & { row: number } => {
    const one = graph.node(path) as unknown as Point;
    const row = Math.min(rows - 1, Math.floor(one.x / span));
    return {
      x: 30 + (one.x - row * span) * Math.min(kx, rows === 1 ? 3 : 1.6),
      y: (row + 0.5) * (height / rows) + (one.y - size.height / 2) * ky,
      row,
    };
  };
  const boxes: Box[] = shown.map((one) => {
    const { x, y, row: band } = spot(one.path),
      label = labelOf(one);
    return {
      band,
      path: one.path,
      label,
      role: one.role,
      layer: one.layer,
      isOpen: one.isOpen,
      x,
      y,
      w: one.role === "join" ? 8 : boxWidth(label),
      h: one.role === "join" ? 8 : 22,
    };
  });
  const end = spot("(loss)");
  boxes.push({
    path: "(loss)",
    label: "loss",
    role: "loss",
    layer: "",
    isOpen: false,
    x: end.x,
    y: end.y,
    w: 42,
    h: 26,
  });
  const all: { source: string; target: string; cut: boolean }[] = [
    ...kept.map((one) => ({ source: one.source, target: one.target, cut: one.gradient !== "flows" })),
    ...ends.map((one) => ({ source: one.path, target: "(loss)", cut: false })),
  ];
  const by = new Map(shown.map((one) => [one.path, one]));
  const ribbons = all.map((one, id) => {
    const a = spot(one.source),
      b = spot(one.target);
    const d =
      a.row === b.row
        ? curve(a, b)
        : `M${a.x.toFixed(1)} ${a.y.toFixed(1)}H${width - 14}V${((a.y + b.y) / 2).toFixed(1)}H14V${b.y.toFixed(1)}H${b.x.toFixed(1)}`;
    return {
      id,
      d,
      source: one.source,
      target: one.target,
      measuredBy: [one.target, one.source].filter((path) => by.get(path)?.role === "module"),
      cut: one.cut,
      straight: false,
    };
  });
  void opened;
  return { width, height, boxes, ribbons, lanes: [], columns: [], opened: null, end: "(loss)" };
}
