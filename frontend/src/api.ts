// Questions to the server; the report answers the same ones from what it carries.
import type { Answers, Trouble } from "./types";

export class AskError extends Error {
  constructor(readonly trouble: Trouble) {
    super(trouble.what);
  }
}

let carried: Record<string, unknown> | null = null;
export const carry = (answers: Record<string, unknown>): void => {
  carried = answers;
};
export const isReport = (): boolean => carried !== null;

export async function ask<T>(
  path: string,
  words: Record<string, string | number | undefined> = {},
  signal?: AbortSignal,
): Promise<T> {
  if (carried) {
    const found = carried[path];
    if (found === undefined)
      throw new AskError({
        what: "The report does not hold this",
        do: "Open the run itself",
        command: "stethoscope ui",
      });
    return found as T;
  }
  const query = Object.entries(words)
    .filter(([, value]) => value !== undefined && value !== "")
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`)
    .join("&");
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}${query ? `?${query}` : ""}`, { signal, credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new AskError({
      what: "The server does not answer",
      do: "It may have been stopped. Start it again",
      command: "stethoscope ui",
    });
  }
  if (answer.ok) return (await answer.json()) as T;
  let trouble: Trouble = {
    what: answer.status === 401 ? "The token is missing or wrong" : `The server refused (${answer.status})`,
    do: "Open the link that was printed, with its token",
    command: "stethoscope ui",
  };
  try {
    const body = await answer.json();
    if (body.error) trouble = body.error;
  } catch {
    /* not JSON: the words above stand */
  }
  throw new AskError(trouble);
}

/** A question about one run, and its answer. */
export const askRun = <Question extends keyof Answers>(
  key: string,
  question: Question,
  words: Record<string, string | number | undefined> = {},
  signal?: AbortSignal,
): Promise<Answers[Question]> => ask(`runs/${key}${question && `/${question}`}`, words, signal);

/** Calls back on every change; tries again by itself when the line breaks. */
export function listen(
  path: string,
  changed: (body: { version: number; state?: string; lastStep?: number | null }) => void,
  gone: (what: string) => void,
  line: (up: boolean) => void,
): () => void {
  if (carried || typeof EventSource === "undefined") return () => undefined;
  const source = new EventSource(`/api/${path}`);
  source.addEventListener("changed", (event) => changed(JSON.parse((event as MessageEvent).data)));
  source.addEventListener("gone", (event) => {
    gone(JSON.parse((event as MessageEvent).data).what);
    source.close();
  });
  source.addEventListener("open", () => line(true));
  source.addEventListener("error", () => line(false));
  return () => source.close();
}

/** Keeps one question under way and remembers only the latest that came meanwhile: data is replaced, never blanked. */
export class Latest<T> {
  private busy = false;
  private next: (() => Promise<T>) | null = null;
  private stopped = false;
  constructor(
    private readonly took: (value: T) => void,
    private readonly failed: (trouble: Trouble) => void,
  ) {}
  put(work: () => Promise<T>): void {
    this.next = work;
    if (!this.busy) void this.go();
  }
  stop(): void {
    this.stopped = true;
    this.next = null;
  }
  private async go(): Promise<void> {
    this.busy = true;
    while (this.next) {
      const work = this.next;
      this.next = null;
      try {
        const value = await work();
        if (!this.stopped) this.took(value);
      } catch (error) {
        if (!this.stopped)
          this.failed(
            error instanceof AskError
              ? error.trouble
              : { what: "Something went wrong while drawing", do: String(error) },
          );
      }
    }
    this.busy = false;
  }
}
