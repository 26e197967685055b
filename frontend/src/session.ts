// What is known of the run on the screen: asked for when the view changes, asked again when the run does.
import { batch, effect, signal } from "@preact/signals";
import { askRun, Latest, listen } from "./api";
import { heat as unpackHeat, type Heat } from "./data";
import { type HeatData, type Minimap, type RunData, type Track, type TreeRow, type Trouble } from "./types";
import { rangesOf, visibleRows } from "./heat_cells";
import { cursor, following, go, kind, paused, runLink, say, selected, stat, view } from "./state";
import { known, toast } from "./overlays";
import { moduleOf } from "./pieces";

const WHOLE_MS = 3000;
type Words = Record<string, string | number | undefined>;

export class RunSession {
  readonly data = signal<RunData | null>(null);
  readonly tracks = signal<Track[]>([]);
  readonly minimap = signal<Minimap | null>(null);
  readonly heat = signal<Heat | null>(null);
  readonly tree = signal<TreeRow[]>([]);
  readonly open = signal<Set<string>>(new Set());
  readonly filter = signal("");
  readonly trouble = signal<Trouble | null>(null);
  readonly plotWidth = signal(0);
  readonly heatWidth = signal(0);
  readonly seen = signal<[number, number]>([0, 120]);
  readonly version = signal(0);
  readonly lineUp = signal(true);
  private readonly ends: (() => void)[] = [];
  private treeKind = "";
  private wholeAt = -Infinity;
  private wholeOf = -1;
  private wholeLater = 0;
  private asked: Words = {};
  /** What the first answer brought with its tree: the rows it opened need not be asked for again. */
  private brought: Words | null = null;
  private readonly fail = (trouble: Trouble): void => {
    this.trouble.value = trouble;
  };
  private readonly overview = new Latest<RunData>((value) => this.took(value), this.fail);
  private readonly lines = new Latest<{ tracks: Track[] }>((value) => {
    this.tracks.value = value.tracks;
  }, this.fail);
  private readonly whole = new Latest<Minimap>((value) => {
    this.minimap.value = value;
  }, this.fail);
  private readonly cells = new Latest<HeatData>((value) => this.tookHeat(value), this.fail);

  constructor(readonly key: string) {
    this.overview.put(() => askRun(key, ""));
    this.ends.push(
      effect(() => {
        const now = this.data.value;
        if (now && this.version.value > now.version) this.overview.put(() => askRun(key, ""));
      }),
    );
    this.ends.push(
      effect(() => {
        const now = this.data.value;
        if (now && (this.heat.value || !now.kinds.length)) this.askWhole(now);
      }),
    );
    this.ends.push(
      effect(() => {
        const now = this.data.value,
          shown = view.value,
          width = this.plotWidth.value;
        if (!now || !shown || !width) return;
        this.lines.put(() =>
          askRun(key, "series", { first: shown[0], last: shown[1], width: Math.round(width / 2), v: now.version }),
        );
      }),
    );
    this.ends.push(
      effect(() => {
        const now = this.data.value,
          shown = view.value,
          width = this.heatWidth.value || this.plotWidth.value,
          what = kind.value,
          of = stat.value;
        const tree = this.tree.value,
          rows = visibleRows(tree, this.open.value, this.filter.value),
          [a, b] = this.seen.value;
        if (!now || !shown || !width || !what || !now.kinds.includes(what)) return;
        const fresh = this.treeKind !== what || !tree.length;
        const wanted = rows.length <= 240 ? rows : rows.slice(Math.max(0, a - 60), b + 60);
        const cellWidth = Math.min(width, this.heatWidth.value ? width : Math.ceil(width / 3));
        const words = {
          kind: what,
          stat: of,
          first: shown[0],
          last: shown[1],
          width: cellWidth,
          rows: fresh ? undefined : rangesOf(wanted),
          tree: fresh || now.run.state === "live" ? 1 : 0,
          v: now.version,
        };
        if (this.brought && !fresh && sameWords(words, this.brought)) {
          this.brought = null;
          return;
        }
        this.brought = null;
        this.asked = words;
        this.cells.put(() => askRun(key, "heatmap", words));
      }),
    );
    this.ends.push(
      listen(
        `runs/${key}/stream?cursor=`,
        (body) => {
          if (!paused.value) this.version.value = body.version;
        },
        (what) => this.fail({ what, do: "Go back to the list of runs", command: "stethoscope list" }),
        (up) => {
          this.lineUp.value = up;
        },
      ),
    );
  }

  /** The whole run at a glance: after what was come for, and of a live run again every few seconds at most. */
  private askWhole(now: RunData): void {
    clearTimeout(this.wholeLater);
    const rest = now.run.state === "live" ? this.wholeAt + WHOLE_MS - performance.now() : 0;
    if (rest > 0) {
      this.wholeLater = setTimeout(() => this.askWhole(this.data.value!), rest);
      return;
    }
    if (this.wholeOf === now.version) return;
    this.wholeAt = performance.now();
    this.wholeOf = now.version;
    this.whole.put(() => askRun(this.key, "minimap", { v: now.version }));
  }

  private took(now: RunData): void {
    const before = this.data.value;
    batch(() => {
      this.trouble.value = null;
      this.data.value = now;
      if (!kind.value || !now.kinds.includes(kind.value)) kind.value = now.kind;
      const live = now.run.state === "live";
      if (!before && view.value === null) {
        following.value = live;
        view.value = live ? followed(now) : opening(now);
      } else if (following.value && !paused.value) view.value = followed(now);
      if (
        live &&
        following.value &&
        !paused.value &&
        cursor.value !== null &&
        before &&
        cursor.value === before.span[1]
      )
        cursor.value = now.span[1];
      known.value = { data: now, tree: this.tree.value };
    });
    this.announce(before, now);
    document.title = `${now.run.name} · ${now.run.stateText} · Stethoscope`;
  }

  private announce(before: RunData | null, now: RunData): void {
    const cause = now.verdict.cause;
    if (!before) {
      say(cause ? cause.message : `${now.verdict.stated.label}: ${now.verdict.stated.message}`);
      return;
    }
    const old = before.verdict.cause;
    if (cause && (!old || old.code !== cause.code)) {
      say(`${cause.severity}: ${cause.message}`, cause.severity === "Critical");
      toast.value = {
        severity: cause.severity,
        text: cause.message,
        note: `Found at step ${now.span[1].toLocaleString("en-US")}.`,
        act: () => {
          cursor.value = cause.firstStep;
          if (cause.sites[0]) selected.value = moduleOf(cause.sites[0]);
          go(runLink(this.key));
        },
      };
    } else if (before.run.state !== now.run.state) say(now.run.stateText, now.run.state === "crashed");
  }

  private tookHeat(packed: HeatData): void {
    batch(() => {
      if (packed.tree) {
        const first = this.treeKind !== packed.kind;
        this.treeKind = packed.kind;
        if (
          first ||
          packed.tree.length !== this.tree.value.length ||
          packed.tree.some((row, at) => row[6] !== this.tree.value[at]?.[6])
        ) {
          const old = this.tree.value;
          this.tree.value = packed.tree;
          if (!old.length) {
            this.open.value = openedBy(packed);
            this.brought = { ...this.asked, rows: rangesOf(packed.rows) };
          }
          known.value = { data: this.data.value, tree: packed.tree };
        }
      }
      this.heat.value = unpackHeat(packed);
    });
    if (packed.exact === false) this.sharpen(this.asked);
  }

  /** A long run is drawn from its buckets at once, and from its rows when the reader stays. */
  private sharpen(words: Words): void {
    setTimeout(() => {
      if (this.asked === words) this.cells.put(() => askRun(this.key, "heatmap", { ...words, tree: 0, exact: 1 }));
    }, 250);
  }

  toggle(path: string): void {
    const now = new Set(this.open.value);
    if (!now.delete(path)) now.add(path);
    this.open.value = now;
  }
  rows(): number[] {
    return visibleRows(this.tree.value, this.open.value, this.filter.value);
  }
  close(): void {
    clearTimeout(this.wholeLater);
    for (const end of this.ends) end();
    for (const one of [this.overview, this.lines, this.whole, this.cells]) one.stop();
    known.value = { data: null, tree: [] };
  }
}

function sameWords(a: Words, b: Words): boolean {
  return Object.keys(a).every((name) => name === "tree" || a[name] === b[name]);
}
/** The branches that hold the rows the server opened. */
function openedBy(packed: HeatData): Set<string> {
  const tree = packed.tree!;
  return new Set(packed.rows.filter((row) => tree[row][2] >= 0).map((row) => tree[tree[row][2]][0]));
}
function opening(now: RunData): [number, number] {
  return now.window[1] > now.window[0] ? now.window : [now.window[0], now.window[0] + 1];
}
/** A live run is shown by its latest steps. */
function followed(now: RunData): [number, number] {
  const [begin, end] = now.span;
  return [Math.max(begin, end - 170), Math.max(end, begin + 16)];
}
