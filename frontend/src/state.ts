// Where the reader is: screen, run, steps, row, what is shown. All of it is in the address.
import { batch, computed, effect, signal } from "@preact/signals";
import { DARK, LIGHT } from "./tokens";
import { SCREENS } from "./types";

export interface Route {
  screen: string;
  key: string;
  words: URLSearchParams;
}

export function parseHash(hash: string): Route {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  const words = new URLSearchParams(query ?? "");
  if (parts[0] === "run" && parts[1])
    return {
      screen: parts[2] && SCREENS.some((one) => one.name === parts[2]) ? parts[2] : "overview",
      key: parts[1],
      words,
    };
  if (parts[0] === "compare") return { screen: "compare", key: "", words };
  return { screen: "runs", key: "", words };
}

export const route = signal<Route>(parseHash(location.hash));
export const view = signal<[number, number] | null>(null);
export const cursor = signal<number | null>(null);
export const selected = signal<string>("");
export const kind = signal<string>("");
export const stat = signal<string>("norm");
export const raw = signal<boolean>(false);
export const paused = signal<boolean>(false);
export const following = signal<boolean>(false);
export const said = signal<{ words: string; assertive: boolean }>({ words: "", assertive: false });
export const overlay = signal<"" | "keys" | "palette" | "save">("");
export const width = signal<number>(window.innerWidth);
export const height = signal<number>(window.innerHeight);
export const isPhone = computed(() => width.value < 700);

const stored = (): string | null => {
  try {
    return localStorage.getItem("stethoscope-theme");
  } catch {
    return null;
  }
};
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
export const theme = signal<"light" | "dark">(
  (stored() as "light" | "dark" | null) ?? (prefersDark.matches ? "dark" : "light"),
);
export const tokens = computed(() => (theme.value === "dark" ? DARK : LIGHT));
export const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export function flipTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("stethoscope-theme", theme.value);
  } catch {
    /* private windows forget, and that is fine */
  }
}

export const runLink = (key: string, screen = "overview", words: Record<string, string | number> = {}): string => {
  const query = new URLSearchParams(Object.entries(words).map(([name, value]) => [name, String(value)])).toString();
  return `#/run/${key}/${screen}${query ? `?${query}` : ""}`;
};
export function go(hash: string): void {
  location.hash = hash;
}

function readWords(words: URLSearchParams): void {
  const whole = (name: string): number | null =>
    words.has(name) && /^-?\d+$/.test(words.get(name)!) ? Number(words.get(name)) : null;
  const first = whole("from"),
    last = whole("to"),
    step = whole("step");
  if (first !== null && last !== null && last > first) {
    view.value = [first, last];
    following.value = false;
  }
  if (step !== null) cursor.value = step;
  if (words.has("at")) selected.value = words.get("at")!;
  if (words.has("kind")) kind.value = words.get("kind")!;
  if (words.has("stat")) stat.value = words.get("stat")!;
  raw.value = words.get("raw") === "1";
}

/** The address of what is on the screen now. */
export function address(): string {
  const { screen, key, words } = route.value;
  if (screen === "runs") return "#/";
  const query = new URLSearchParams();
  if (screen === "compare") for (const name of ["a", "b"]) query.set(name, words.get(name) ?? "");
  if (view.value && !following.value) {
    query.set("from", String(view.value[0]));
    query.set("to", String(view.value[1]));
  }
  if (cursor.value !== null && !following.value) query.set("step", String(cursor.value));
  if (selected.value) query.set("at", selected.value);
  if (kind.value && screen !== "log") query.set("kind", kind.value);
  if (stat.value !== "norm") query.set("stat", stat.value);
  if (raw.value) query.set("raw", "1");
  const path = screen === "compare" ? "compare" : `run/${key}/${screen}`;
  return `#/${path}?${query.toString()}`;
}

export function begin(): void {
  readWords(route.value.words);
  addEventListener("hashchange", () =>
    batch(() => {
      const old = route.value,
        now = parseHash(location.hash);
      if (now.key !== old.key || (now.screen === "compare") !== (old.screen === "compare")) {
        view.value = null;
        cursor.value = null;
        selected.value = "";
        kind.value = "";
        stat.value = "norm";
        paused.value = false;
      }
      route.value = now;
      readWords(now.words);
      overlay.value = "";
    }),
  );
  addEventListener("resize", () =>
    batch(() => {
      width.value = innerWidth;
      height.value = innerHeight;
    }),
  );
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
  });
  let timer = 0;
  effect(() => {
    const now = address();
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (now !== location.hash && location.protocol !== "file:") history.replaceState(null, "", now);
    }, 250);
  });
}

export function say(words: string, assertive = false): void {
  said.value = { words, assertive };
}
