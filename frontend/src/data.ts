// What the server sends, and how its packed arrays are opened.
export interface Packed {
  start: number;
  size: number;
  count: number;
  mean: string;
  marks: string;
  low?: string;
  high?: string;
  first?: number;
  last?: number;
}
export interface Line {
  start: number;
  size: number;
  count: number;
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
  marks: Uint8Array;
}
export interface Limit {
  value: number;
  label: string;
}
export interface Track {
  key: string;
  label: string;
  note: string;
  color: string;
  tall: boolean;
  log: boolean;
  limits: Limit[];
  unit: string;
  series: Packed;
  last: number | string | null;
}
export interface Identity {
  id: string;
  name: string;
  state: string;
  stateText: string;
  lastStep: number | null;
  numSteps: number;
  endedBy: string;
  startedAt: number | null;
  endedAt: number | null;
}
export interface FindingRow {
  code: string;
  severity: string;
  message: string;
  firstStep: number;
  lastStep: number;
  rank: number | null;
  sites: string[];
  numSites: number;
  numFollowed: number;
  remedy: string;
}
export interface EvidenceData {
  label: string;
  before: number | string | null;
  after: number | string | null;
  unit: string;
  site: string;
  kind: string;
  stat: string;
  trend: Packed | null;
}
export interface Cause extends FindingRow {
  why: string;
  confidence: number;
  columns: string[];
  evidence: EvidenceData[];
  meanwhile: EvidenceData[];
}
export interface Followed {
  step: number;
  text: string;
  site: string;
}
export interface Verdict {
  healthy: boolean;
  headline: string;
  cause: Cause | null;
  others: FindingRow[];
  notes: FindingRow[];
  followed: Followed[];
  lasting: string[];
  course: { rows: EvidenceData[]; columns: string[] } | null;
  lookedAt: { numSites: number; numSitesExpected: number; numSteps: number; numDetectors: number; unmet: string[] };
}
export interface ExperimentData {
  name: string;
  question: string;
  outcome: string;
  lookedAt: string;
  codes: string[];
}
export interface Checkup {
  findings: FindingRow[];
  numExperiments: number;
  experiments: ExperimentData[];
  notExamined: string[];
  seconds: number;
  time: number;
}
export interface RunData {
  version: number;
  isExamining: boolean;
  run: Identity;
  model: {
    type: string;
    numParameters: number;
    precision: string;
    numRanks: number;
    optimizers: string[];
    versions: Record<string, string>;
  };
  verdict: Verdict;
  span: [number, number];
  window: [number, number];
  kinds: string[];
  kind: string;
  stats: string[];
  counts: { sites: number; modules: number; ranks: number; log: number };
  status: { before?: string; strong: string; rest: string }[];
  closing: string;
  readAt: number;
  delay: number | null;
  usualBefore: number | null;
  metrics: string[];
  checkup: Checkup | null;
}
export type TreeRow = [
  path: string,
  label: string,
  parent: number,
  indent: number,
  children: number,
  frozen: number,
  severity: string,
];
export interface HeatPacked {
  version: number;
  kind: string;
  stat: string;
  first: number;
  last: number;
  start: number;
  size: number;
  count: number;
  rows: number[];
  values: string;
  marks: string;
  usual: string;
  exact?: boolean;
  tree?: TreeRow[];
}
export interface Heat {
  kind: string;
  stat: string;
  start: number;
  size: number;
  count: number;
  rows: number[];
  place: Map<number, number>;
  values: Float32Array;
  marks: Uint8Array;
  usual: Float32Array;
}
export interface Minimap {
  span: [number, number];
  loss: Packed;
  trouble: { start: number; size: number; level: string };
  seconds: number | null;
  numSteps: number;
}
export interface RunRow extends Identity {
  key: string;
  verdict: {
    severity: string;
    message: string;
    short?: string;
    noted?: boolean;
    code: string;
    firstStep: number | null;
    lastStep?: number;
    looked: boolean;
    more?: number;
    followed?: number;
    nanAt?: number | null;
  };
  lastLoss: number | string | null;
  throughput: number | null;
  numBytes?: number;
  numParameters?: number;
  precision?: string;
  numRanks?: number;
  loss: Packed | null;
  heat: { rows: number; count: number; levels: string; marks: string } | null;
  trouble?: string;
  do?: string;
}
export const Mark = { PLAIN: 0, MISSING: 1, SKIPPED: 2, FROZEN: 3, DEAD: 4, INF: 5, NAN: 6, EQUAL: 7 } as const;

function bytes(packed: string): Uint8Array {
  const raw = atob(packed);
  const out = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) out[at] = raw.charCodeAt(at);
  return out;
}
export const floats = (packed: string): Float32Array => new Float32Array(bytes(packed).buffer);
export const small = (packed: string): Uint8Array => bytes(packed);

const LINES = new WeakMap<Packed, Line>();
export function line(packed: Packed): Line {
  let found = LINES.get(packed);
  if (!found) {
    const mean = floats(packed.mean);
    found = {
      start: packed.start,
      size: packed.size,
      count: packed.count,
      mean,
      low: packed.low ? floats(packed.low) : mean,
      high: packed.high ? floats(packed.high) : mean,
      marks: small(packed.marks),
    };
    LINES.set(packed, found);
  }
  return found;
}
export function heat(packed: HeatPacked): Heat {
  return {
    kind: packed.kind,
    stat: packed.stat,
    start: packed.start,
    size: packed.size,
    count: packed.count,
    rows: packed.rows,
    place: new Map(packed.rows.map((row, at) => [row, at])),
    values: floats(packed.values),
    marks: small(packed.marks),
    usual: floats(packed.usual),
  };
}
/** The value of a line at a step: NaN for NaN, null where there is nothing. */
export function valueAt(of: Line, step: number): number | null {
  const at = Math.floor((step - of.start) / of.size);
  if (at < 0 || at >= of.count || of.marks[at] === Mark.MISSING) return null;
  return of.marks[at] === Mark.NAN ? NaN : of.marks[at] === Mark.INF ? Infinity : of.mean[at];
}
export interface Trouble {
  what: string;
  do: string;
  command?: string;
  status?: number;
}
