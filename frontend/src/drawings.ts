// Written by frontend/make_types.py: change the Python that it reads, then run it.
import type { JSX } from "preact";
import type { RunSession } from "./session";
import { OverviewScreen } from "./screens/overview";
import { LayersScreen } from "./screens/layers";
import { FlowScreen } from "./screens/flow";
import { ProfileScreen } from "./screens/profile";
import { RanksScreen } from "./screens/ranks";
import { LogScreen } from "./screens/log";
import { CheckupScreen } from "./screens/checkup";

type Drawing = (props: { session: RunSession }) => JSX.Element | null;
export const DRAWINGS: Record<string, Drawing> = {
  overview: OverviewScreen,
  layers: LayersScreen,
  flow: FlowScreen,
  profile: ProfileScreen,
  ranks: RanksScreen,
  log: LogScreen,
  checkup: CheckupScreen,
};
