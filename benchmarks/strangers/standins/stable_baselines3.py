"""Of stable-baselines3 what scripts of their own build on: several environments as one, watched and normalised."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import gym
import numpy as np


class Monitor(gym.Wrapper):
    """Tells the sum of an episode's rewards at its end."""

    def __init__(self, env: Any, *_: Any, **__: Any) -> None:
        super().__init__(env)
        self.rewards: list[float] = []

    def reset(self, **kwargs: Any) -> Any:
        """Begins an episode."""
        self.rewards = []
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """With `info["episode"]` when it is done."""
        observation, reward, done, info = self.env.step(action)
        self.rewards.append(reward)
        if done:
            info = {**info, "episode": {"r": sum(self.rewards), "l": len(self.rewards)}}
        return observation, reward, done, info


class DummyVecEnv:
    """Environments one after the other; who is done begins anew."""

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self._actions: Any = ()

    def reset(self) -> np.ndarray:
        """Observations of all."""
        return np.stack([env.reset() for env in self.envs])

    def step_async(self, actions: Any) -> None:
        """Keeps what is to be done."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Does it."""
        rows = []
        for env, action in zip(self.envs, self._actions, strict=True):
            discrete = not getattr(self.action_space, "shape", ())
            observation, reward, done, info = env.step(int(np.asarray(action).item()) if discrete else action)
            rows.append((env.reset() if done else observation, reward, done, info))
        observations, rewards, dones, infos = zip(*rows, strict=True)
        return np.stack(observations), np.array(rewards, dtype=np.float32), np.array(dones), list(infos)

    def step(self, actions: Any) -> Any:
        """Both."""
        self.step_async(actions)
        return self.step_wait()

    def close(self) -> None:
        """Nothing is open."""


class VecEnvWrapper(DummyVecEnv):
    def __init__(self, venv: Any, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv, self.num_envs = venv, venv.num_envs
        self.observation_space = observation_space or venv.observation_space
        self.action_space = action_space or venv.action_space

    def reset(self) -> Any:
        """Of the one inside."""
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        """To the one inside."""
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Of the one inside."""
        return self.venv.step_wait()


class RunningMeanStd:
    """Mean and variance of all that was seen."""

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), epsilon

    def update(self, values: np.ndarray) -> None:
        """By a batch, its variance and the distance of the means."""
        number, total = len(values), self.count + len(values)
        distance = values.mean(0) - self.mean
        squares = self.var * self.count + values.var(0) * number + distance**2 * self.count * number / total
        self.mean, self.var, self.count = self.mean + distance * number / total, squares / total, total


class VecNormalize(VecEnvWrapper):
    """Observations by their running deviation, rewards by that of the discounted sum."""

    def __init__(
        self, venv: Any, training: bool = True, norm_obs: bool = True, norm_reward: bool = True, gamma: float = 0.99
    ) -> None:
        super().__init__(venv)
        self.training, self.norm_reward, self.gamma = training, norm_reward, gamma
        self.obs_rms = RunningMeanStd(shape=self.observation_space.shape) if norm_obs else None
        self.ret_rms, self.returns = RunningMeanStd(), np.zeros(self.num_envs)
        self.clip_obs = self.clip_reward = 10.0
        self.epsilon = 1e-8

    def _obfilt(self, observations: np.ndarray) -> np.ndarray:
        return observations

    def reset(self) -> Any:
        """Normalised."""
        self.returns[:] = 0.0
        return self._obfilt(self.venv.reset())

    def step_wait(self) -> Any:
        """Normalised."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self.returns = self.returns * self.gamma + rewards
        if self.norm_reward:
            self.ret_rms.update(self.returns)
            limit = self.clip_reward
            rewards = np.clip(rewards / np.sqrt(self.ret_rms.var + self.epsilon), -limit, limit)
        self.returns[dones] = 0.0
        return self._obfilt(observations), rewards, dones, infos


def _modules() -> None:
    wrappers = ("ClipRewardEnv", "EpisodicLifeEnv", "FireResetEnv", "MaxAndSkipEnv", "NoopResetEnv", "WarpFrame")
    vectors = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": DummyVecEnv, "VecEnvWrapper": VecEnvWrapper}
    for name, members in {
        "": {},
        ".atari_wrappers": dict.fromkeys(wrappers, gym.Wrapper),
        ".monitor": {"Monitor": Monitor},
        ".running_mean_std": {"RunningMeanStd": RunningMeanStd},
        ".vec_env": vectors,
        ".vec_env.vec_normalize": {"VecNormalize": VecNormalize},
    }.items():
        module = sys.modules[f"stable_baselines3.common{name}"] = types.ModuleType(f"stable_baselines3.common{name}")
        module.__path__ = []
        vars(module).update(members)


__path__: list[str] = []
_modules()
