// Written by frontend/make_types.py: change the Python that it reads, then run it.

/** Which run, and how it stands. */
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

/** What was trained. */
export interface ModelFacts {
  type: string;
  numParameters: number;
  precision: string;
  numRanks: number;
  optimizers: unknown[];
  versions: Record<string, string>;
}

/** A series in bins: float32 and uint8 arrays, packed. */
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

/** A number that shows a cause, before and after, with its trend where a series is known. */
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

/** What could be behind a symptom, and the number that speaks for or against it. */
export interface SuspectRow {
  text: string;
  figure: string;
}

/** Suspects under what is said of them: "suspected" or "ruled out". */
export interface Suspects {
  head: string;
  rows: SuspectRow[];
}

/** A finding as one row of a list. */
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

/** The verdict itself: one of four states, and what shows it. */
export interface Stated {
  state: string;
  label: string;
  severity: string;
  message: string;
  rest: string;
  evidence: EvidenceData[];
  suspects: Suspects[];
  unexplained: FindingRow[];
  purpose: string;
  line: string;
}

/** A cause in full. */
export interface Cause {
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
  why: string;
  confidence: number;
  columns: string[];
  evidence: EvidenceData[];
  meanwhile: EvidenceData[];
}

/** One numbered event of what followed. */
export interface Followed {
  step: number;
  text: string;
  site: string;
}

/** How a run without a cause went: a few quantities at its first step and at its last. */
export interface Course {
  rows: EvidenceData[];
  columns: string[];
}

/** What the verdict rests on. */
export interface Extent {
  numSites: number;
  numSitesExpected: number;
  numSteps: number;
  numDetectors: number;
  numStepsLost: number;
  brokenDetectors: string[];
  unmet: string[];
}

/** Everything over the axis. */
export interface Verdict {
  stated: Stated;
  cause: Cause | null;
  others: FindingRow[];
  notes: FindingRow[];
  followed: Followed[];
  lasting: string[];
  course: Course | null;
  lookedAt: Extent;
}

/** How many there are, beside the titles of the screens. */
export interface Counts {
  sites: number;
  modules: number;
  ranks: number;
  log: number;
}

/** A number to set in bold, and the words around it. */
export interface StatusPart {
  before?: string;
  strong: string;
  rest: string;
}

/** One experiment: what it asks, what came of it. */
export interface ExperimentData {
  name: string;
  question: string;
  outcome: string;
  lookedAt: string;
  codes: string[];
}

/** The latest checkup before the run. */
export interface Checkup {
  findings: FindingRow[];
  numExperiments: number;
  experiments: ExperimentData[];
  notExamined: string[];
  seconds: number;
  time: number;
}

/** Everything of the run screen that does not depend on what part of it is in view. */
export interface RunData {
  version: number;
  isExamining: boolean;
  run: Identity;
  model: ModelFacts;
  verdict: Verdict;
  span: [number, number];
  window: [number, number];
  kinds: string[];
  kind: string;
  stats: string[];
  counts: Counts;
  status: StatusPart[];
  closing: string;
  readAt: number;
  delay: number | null;
  usualBefore: number | null;
  metrics: string[];
  checkup: Checkup | null;
}

/** How much is wrong in each part of the run: 0 none, 1 unusual, 2 far off, 3 broken. */
export interface TroubleStrip {
  start: number;
  size: number;
  level: string;
}

/** The whole run at a glance. */
export interface Minimap {
  span: [number, number];
  loss: Packed;
  trouble: TroubleStrip;
  seconds: number | null;
  numSteps: number;
  anyLoss: boolean;
}

/** A line that values should not pass. */
export interface Limit {
  value: number;
  label: string;
}

/** One line over the layers. */
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
  site?: string;
  stat?: string;
}

/** The lines over the steps in view. */
export interface TracksData {
  version: number;
  tracks: Track[];
}

export type TreeRow = [path: string, label: string, parent: number, indent: number, children: number, frozen: number, severity: string];

/** The heatmap of some rows of the tree. */
export interface HeatData {
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
  exact: boolean;
  tree?: TreeRow[];
}

/** Where a module was made. */
export interface Source {
  file: string;
  line: number;
}

/** Type, parameters, shape of the output. */
export interface LayerHead {
  type: string;
  detail: string;
  numParameters: number;
  shape: number[];
  dtype: string;
  source: Source | null;
}

/** The distribution of a tensor over time, by sign and power of two. */
export interface Pictures {
  site: string;
  kind: string;
  steps: number[];
  bottom: number;
  top: number;
  negative: string;
  positive: string;
  zero: string;
  count: number;
  percentiles: Record<string, string>;
  table: Record<string, Packed>;
}

/** The entropy of each attention head at each sampled step. */
export interface Heads {
  module: string;
  steps: number[];
  num: number;
  values: string;
}

/** One number a unit at each sampled step. */
export interface Units {
  site: string;
  what: string;
  word: string;
  steps: number[];
  num: number;
  values: string;
}

/** Everything of the layer screen. */
export interface LayerData {
  version: number;
  path: string;
  head: LayerHead;
  tensors: string[];
  tensor: string;
  tracks: Track[];
  pictures: Pictures | null;
  findings: FindingRow[];
  heads: Heads | null;
  units: Units | null;
  numSites: number;
  histogramEvery: number | null;
}

/** A node of the picture. */
export interface FlowNode {
  path: string;
  label: string;
  role: string;
  layer: string;
  order: number;
  isOpen: boolean;
  row: number;
}

/** An edge of the picture. */
export interface FlowEdge {
  kind: string;
  gradient: string;
  source: string;
  target: string;
}

/** The top rows over the same steps. */
export interface LayerBars {
  paths: string[];
  labels: string[];
  count: number;
  values: string;
  marks: string;
  usual: string;
}

/** From which log2 ratio a region is dying, exploding or fading. */
export interface Thresholds {
  dying: number;
  exploding: number;
  fading: number;
}

/** Everything of the flow screen. */
export interface FlowData {
  version: number;
  kind: string;
  hasGraph: boolean;
  status: string;
  opened: string;
  nodes: FlowNode[];
  edges: FlowEdge[];
  numSites: number;
  numEdges: number;
  start: number;
  size: number;
  count: number;
  numRows: number;
  values: string;
  marks: string;
  usual: string;
  layers: LayerBars;
  signs: Record<string, string>;
  thresholds: Thresholds;
}

/** A part of the mean step, and its time at every step. */
export interface ProfilePart {
  label: string;
  color: string;
  ms: number | string | null;
  series: Packed;
}

/** One of the slowest steps by its parts. */
export interface SlowStep {
  step: number;
  ms: number | string | null;
  parts: (number | string | null)[];
}

/** Where a step's time goes. */
export interface ProfileData {
  version: number;
  parts: ProfilePart[];
  meanMs: number | string | null;
  medianMs: number | string | null;
  numSteps: number;
  series: Packed | null;
  slowest: SlowStep[];
}

/** One rank: how fast, its loss, each over its steps. */
export interface RankRow {
  rank: number;
  lastLoss: number | string | null;
  stepMs: number | null;
  worstMs: number | null;
  loss: Packed | null;
  step: Packed | null;
}

/** A process that wrote. */
export interface Start {
  rank: number;
  ordinal: number;
  pid: number | null;
  host: string;
  startedAt: number | null;
  how: string;
  firstStep: number | null;
  lastStep: number | null;
  ended: string;
}

/** Every rank, and every process that wrote. */
export interface RanksData {
  version: number;
  ranks: RankRow[];
  starts: Start[];
  numRanks: number;
}

/** A finding as a line of the log. */
export interface FindingEntry {
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
  type: "finding";
  step: number;
  isCause: boolean;
}

/** An event as a line of the log. */
export interface EventEntry {
  type: "event";
  step: number;
  kind: string;
  time: number;
  words: string;
  note: string;
  who: string;
}

/** What was watched, and when that began. */
export interface Began {
  words: string;
  time: number | null;
}

/** How the run ended. */
export interface Ended {
  words: string;
  time: number | null;
  step: number | null;
  state: string;
}

/** A part of a file that cannot be trusted. */
export interface Problem {
  file: string;
  offset: number | null;
  what: string;
  framesLost: number | null;
}

/** Findings and events by step, starts and problems beside them. */
export interface LogData {
  version: number;
  entries: (FindingEntry | EventEntry)[];
  numEntries: number;
  began: Began;
  ended: Ended | null;
  starts: Start[];
  losses: Record<string, number>;
  problems: Problem[];
}

/** A run's verdict in a row; its first cause, where it has one. */
export interface ListVerdict {
  state: string;
  label: string;
  severity: string;
  message: string;
  code: string;
  firstStep: number | null;
  looked: boolean;
  short?: string;
  lastStep?: number;
  more?: number;
  followed?: number;
  nanAt?: number | null;
}

/** A picture of a whole run for a list. */
export interface Thumbnail {
  rows: number;
  count: number;
  levels: string;
  marks: string;
}

/** A run as the list shows it. */
export interface RunRow {
  id: string;
  name: string;
  state: string;
  stateText: string;
  lastStep: number | null;
  numSteps: number;
  endedBy: string;
  startedAt: number | null;
  endedAt: number | null;
  key: string;
  verdict: ListVerdict;
  lastLoss: number | string | null;
  throughput: number | null;
  numParameters?: number;
  precision?: string;
  numRanks?: number;
  loss: Packed | null;
  heat: Thumbnail | null;
  numBytes?: number;
  trouble: string;
  do: string;
}

/** The list of runs, and the name of the folder they lie in. */
export interface RunsData {
  base: string;
  runs: RunRow[];
}

/** One of the two runs, with its verdict in a sentence. */
export interface Side {
  id: string;
  name: string;
  state: string;
  stateText: string;
  lastStep: number | null;
  numSteps: number;
  endedBy: string;
  startedAt: number | null;
  endedAt: number | null;
  verdict: string;
  severity: string;
}

/** Where the two runs first say something else. */
export interface FirstDifference {
  step: number;
  path: string;
  place: number;
  numAfter: number;
}

/** One quantity of both. */
export interface PairTrack {
  key: string;
  label: string;
  note: string;
  log: boolean;
  a: Packed;
  b: Packed;
}

/** One number of both. */
export interface OutcomeRow {
  label: string;
  site?: string;
  a: number | string | null;
  b: number | string | null;
}

/** One setting of both. */
export interface SettingRow {
  name: string;
  a: string;
  b: string;
}

/** The settings of both, those that differ first. */
export interface Settings {
  rows: SettingRow[];
  numDiffer: number;
  num: number;
}

/** The step from which each loss is no number any more. */
export interface NanAt {
  a: number | null;
  b: number | null;
}

/** Everything of the compare screen but the angles. */
export interface CompareData {
  start: number;
  size: number;
  count: number;
  levels: string;
  marks: string;
  valuesA: string;
  valuesB: string;
  version: number;
  isExamining: boolean;
  a: Side;
  b: Side;
  kind: string;
  stat: string;
  span: [number, number];
  window: [number, number];
  kinds: string[];
  first: FirstDifference | null;
  numShared: number;
  numRows: number;
  tree: TreeRow[];
  rows: number[];
  differs: (number | null)[];
  common: boolean[];
  tracks: PairTrack[];
  outcome: OutcomeRow[];
  settings: Settings;
  nan: NanAt;
}

/** The cosine of each row at the steps that both runs sampled. */
export interface Cosine {
  steps: number[];
  values: string;
}

/** Whether the two runs' rows point the same way. */
export interface Angles {
  kind: string;
  rows: number[];
  cosine: Cosine | null;
}

/** A part of the mean step. */
export interface ReportPart {
  label: string;
  color: string;
  ms: number | string | null;
}

/** The mean step by its parts. */
export interface ReportProfile {
  parts: ReportPart[];
  meanMs: number | string | null;
}

/** A rank in one line. */
export interface ReportRank {
  rank: number;
  lastLoss: number | string | null;
  stepMs: number | null;
}

/** Everything the report shows: the forms that the page asks for, at one moment. */
export interface ReportData {
  schema_version: number;
  run: RunData;
  tracks: Track[];
  whole: Track[];
  heat: HeatData | null;
  layer: LayerData | null;
  flow: FlowData | null;
  flowStep: number;
  profile: ReportProfile;
  ranks: ReportRank[];
  madeAt: number;
  version: string;
  losses: Record<string, number>;
  problems: Problem[];
}

/** What went wrong, and what to do. */
export interface Trouble {
  what: string;
  do: string;
  command?: string;
  isKnown?: boolean;
}

/** What can be asked about a run, and what the answer is. */
export interface Answers {
  "": RunData;
  "minimap": Minimap;
  "series": TracksData;
  "heatmap": HeatData;
  "layer": LayerData;
  "flow": FlowData;
  "profile": ProfileData;
  "ranks": RanksData;
  "events": LogData;
}

/** The screens of a run, in the order of their tabs. */
export interface ScreenInfo { name: string; title: string; key: string; icon: string; count: keyof Counts | "" }
export const SCREENS: ScreenInfo[] = [
  { name: "overview", title: "Overview", key: "", icon: "bars", count: "" },
  { name: "layers", title: "Layers", key: "l", icon: "lines", count: "modules" },
  { name: "flow", title: "Flow", key: "f", icon: "flow", count: "" },
  { name: "profile", title: "Profile", key: "", icon: "", count: "" },
  { name: "ranks", title: "Ranks", key: "", icon: "", count: "ranks" },
  { name: "log", title: "Log", key: "", icon: "list", count: "log" },
  { name: "checkup", title: "Checkup", key: "", icon: "", count: "" },
];

/** What statistics are called, and in narrow columns. */
export const STAT_NAMES: Record<string, string> = {
  count: "Elements",
  num_nan: "NaN",
  num_posinf: "+Inf",
  num_neginf: "-Inf",
  num_zero: "Zeros",
  num_tiny: "Underflows",
  num_huge: "Overflows",
  min: "Smallest",
  max: "Largest",
  abs_max: "Largest |x|",
  abs_min: "Smallest |x| but zeros",
  mean: "Mean",
  mean_abs: "Mean |x|",
  norm: "L2 norm",
  std: "Spread (std)",
  skewness: "Skewness",
  kurtosis: "Excess kurtosis",
  num_nonfinite: "NaN and Inf",
  rms: "Root mean square",
  zero_fraction: "Share of zeros",
};
export const STAT_SHORT: Record<string, string> = {
  num_tiny: "tiny",
  num_huge: "huge",
  abs_max: "max |x|",
  abs_min: "min |x|",
  norm: "L2",
  std: "std",
  kurtosis: "kurtosis",
  rms: "RMS",
  zero_fraction: "zeros",
};
