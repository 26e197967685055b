"""The old interface of gym over gymnasium: `reset` gives an observation, `step` four values, and there is a `seed`."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
from gymnasium import spaces

__all__ = ["ActionWrapper", "ObservationWrapper", "Wrapper", "envs", "make", "spaces"]

envs = types.SimpleNamespace()


class Wrapper:
    """One environment in another's clothes."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        """An observation."""
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Observation, reward, whether it is done, and more."""
        return self.env.step(action)


class ObservationWrapper(Wrapper):
    def reset(self, **kwargs: Any) -> Any:
        """An observation."""
        return self.observation(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Observation, reward, whether it is done, and more."""
        observation, *more = self.env.step(action)
        return self.observation(observation), *more


class ActionWrapper(Wrapper):
    def step(self, action: Any) -> Any:
        """Observation, reward, whether it is done, and more."""
        change = self.action if hasattr(type(self), "action") else self._action  # its name before gym 0.9
        return self.env.step(change(action))


class _Old(Wrapper):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._max_episode_steps = env.spec.max_episode_steps if env.spec else None

    def seed(self, seed: int | None = None) -> None:
        """Keeps it for the next `reset`."""
        self._seed = seed
        self.env.action_space.seed(seed)

    def reset(self, **_: Any) -> Any:
        """An observation."""
        seed, self._seed = self._seed, None
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Observation, reward, whether it is done, and more."""
        observation, reward, ended, cut, info = self.env.step(action)
        return observation, float(reward), bool(ended or cut), info


def make(name: str, **kwargs: Any) -> _Old:
    """By its name; versions that are gone give their successor."""
    for old in ("Pendulum", "CartPole"):
        name = name.replace(f"{old}-v0", f"{old}-v1")
    return _Old(gymnasium.make(name, **kwargs))


def _modules() -> None:
    clip = types.ModuleType("gym.wrappers.clip_action")
    clip.ClipAction = Wrapper
    sys.modules |= {
        "gym.spaces": spaces,
        "gym.spaces.box": spaces.box,
        "gym.wrappers": types.ModuleType("gym.wrappers"),
        "gym.wrappers.clip_action": clip,
    }


__path__: list[str] = []
_modules()
