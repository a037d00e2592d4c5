"""``source: propofol``: simulated anaesthesias of the package ``anesthesim``, each led by a controller of its own."""

from pathlib import Path

import gymnasium
import numpy as np
import numpy.typing as npt

from primorl.base.errors import PipelineError
from primorl.base.reporting import progress_bar
from primorl.config.datasets import PropofolDataset, PropofolOptions
from primorl.data.sources import Reader
from primorl.data.sources.minari.reading import read_recorded
from primorl.data.sources.minari.writing import Episode, EpisodeWriter
from primorl.data.sources.spaces import declared
from primorl.simulators.environments import make

_ENVIRONMENT = "anesthesim:anesthesim/PropofolControl-v0"
_ERROR, _FASTEST = (
    3,
    200.0,
)  # where the observation has BIS - 50, and the fastest infusion [µg/kg/min]

Environment = gymnasium.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]


class Propofol:
    """See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the dataset names another environment.
    """

    def __init__(self, name: str, dataset: PropofolDataset):
        if dataset.environment != _ENVIRONMENT:
            raise PipelineError(
                f"datasets/{name}.yaml: environment: found {dataset.environment}; allowed is {_ENVIRONMENT}"
            )
        self._options = dataset.options

    def collect(self, target: Path) -> None:
        """Simulate the patients, and keep each as one episode of a Minari dataset."""
        declared(_ENVIRONMENT)  # a clear error where the package is missing
        patients = self._options.patients
        with (
            make(_ENVIRONMENT) as env,
            progress_bar(patients, "collect propofol", "patient") as progress,
        ):
            writer = EpisodeWriter(target, "propofol-v0", env, "proportional")
            for seeds in np.random.SeedSequence(self._options.seed).spawn(patients):
                writer.add(anaesthetise(env, self._options, seeds))
                progress.update()
            writer.flush()

    def open(self, raw: Path) -> Reader:
        """Read that dataset."""
        return read_recorded(raw, *declared(_ENVIRONMENT))


def anaesthetise(
    env: Environment, options: PropofolOptions, seeds: np.random.SeedSequence
) -> Episode:
    """One patient, under a proportional controller: rate = base + gain · (BIS - 50) + noise.

    The patient's pharmacokinetics are the simulator's to draw; base, gain and the noise's standard deviation are drawn
    here, uniformly from the ranges of ``options`` (µg/kg/min; per unit of BIS), once for the patient. The noise is
    drawn anew at every step, from a normal distribution.
    """
    rng = np.random.default_rng(seeds)
    base, gain, noise = (rng.uniform(*span) for span in (options.base, options.gain, options.noise))
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    observations, actions, rewards = [observation], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        rate = base + gain * observation[_ERROR] + noise * rng.normal()
        actions.append(np.clip([rate], 0.0, _FASTEST).astype(np.float32))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(float(reward))
    return Episode(
        np.stack(observations),
        np.stack(actions),
        np.array(rewards),
        bool(terminated),
        bool(truncated),
    )
