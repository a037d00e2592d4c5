"""Behaviour policies trained here, every episode recorded."""

import primorl.simulators.gym_notice  # noqa: F401  before Stable-Baselines3, which imports Gym
