"""Record the whole training of behaviour policies in an environment."""

from primorl.simulators.environments import make  # before Stable-Baselines3, which imports Gym

# isort: split
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import stable_baselines3
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import DtypeObservation
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from primorl.base.errors import PipelineError
from primorl.base.processes import ONE_THREAD_UP_TO
from primorl.base.reporting import progress_bar
from primorl.config.datasets import ReplayOptions
from primorl.data.sources.minari.writing import Episode, EpisodeWriter
from primorl.data.sources.spaces import spaces_of
from primorl.simulators.batches import Pendulums, vector_env

Array = npt.NDArray[Any]
_Layer = tuple[torch.nn.Parameter, torch.nn.Parameter]
"""Weight ``[m, n]`` and bias ``[m]``."""

_FOREVER = 2**62  # time steps; a callback ends the training


def record_training(environment: str, options: ReplayOptions, root: Path, dataset_id: str) -> None:
    """Train behaviour policies and keep the first ``options.episodes`` episodes of their training.

    Random exploration comes first, then a policy that improves: a replay dataset in the sense of D4RL (Fu et al.,
    2020). Episodes still running at the end are dropped. Several runs, each from scratch and with an equal share of the
    episodes, follow one another, and so do their episodes in the dataset.

    Args:
        environment: a Gymnasium id with discrete actions, or a one-dimensional box of them.
        options: the learner and how much it collects.
        root: the folder of Minari datasets to write into.
        dataset_id: the new dataset's id.

    Raises:
        PipelineError: if the environment is unknown, or has other actions than the learner's.
    """
    reference = _recordable(environment)
    _check_actions(environment, reference, options)
    writer = EpisodeWriter(root, dataset_id, reference, options.algorithm)
    reference.close()
    with progress_bar(options.episodes, f"collect {environment}", "episode") as progress:

        def keep(episode: Episode) -> None:
            writer.add(episode)
            progress.update(1)

        for run in range(options.runs):
            share = options.episodes // options.runs + (run < options.episodes % options.runs)
            # Environment i of a run takes the seed of the run plus i: runs must not share any.
            _record_run(environment, options, share, options.seed + run * options.num_envs, keep)
    writer.flush()


def _check_actions(environment: str, env: gymnasium.Env[Any, Any], options: ReplayOptions) -> None:
    spaces = spaces_of(f"environment {environment!r}", env.observation_space, env.action_space)
    if spaces.discrete_actions != (options.algorithm == "dqn"):
        found, allowed = (
            ("discrete", "dqn") if spaces.discrete_actions else ("a box", "ddpg, td3 or sac")
        )
        raise PipelineError(
            f"options.algorithm: found {options.algorithm!r}, but the actions of {environment!r} are {found}; "
            f"allowed is {allowed}"
        )
    if not np.isfinite([*spaces.action_low, *spaces.action_high]).all():
        raise PipelineError(
            f"environment {environment!r}: found an action space without finite bounds; allowed are finite ones; "
            "wrap the environment in gymnasium.wrappers.RescaleAction"
        )


def _recordable(environment: str) -> gymnasium.Env[Any, Any]:
    """Build the environment with observations in single precision, as the dataset's schema has them."""
    env = make(environment)
    if env.observation_space.dtype != np.float64:
        return env
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it lowers the precision, as it is asked to
        return DtypeObservation(env, "float32")  # as text, which Minari can write down


def _record_run(
    environment: str, options: ReplayOptions, share: int, seed: int, keep: Callable[[Episode], None]
) -> None:
    """Train one behaviour policy until ``share`` episodes were kept."""
    kept = 0

    def finished(episode: Episode) -> None:
        nonlocal kept
        if kept < share:  # several environments may end in the same step as the last one
            keep(episode)
            kept += 1

    envs = RecordingEnvs(
        vector_env(environment, options.num_envs, lambda: _recordable(environment)), finished
    )
    threads = torch.get_num_threads()
    # With two, networks of 64 units take three times the processor time of one, and no less wall time.
    torch.set_num_threads(1 if max(options.hidden) <= ONE_THREAD_UP_TO else threads)
    try:
        learner = _learner(envs, options, seed, lambda: kept / share)
        learner.learn(
            _FOREVER, callback=lambda *_: kept < share, log_interval=None, reset_num_timesteps=False
        )
    finally:
        torch.set_num_threads(threads)
        envs.close()


def _learner(
    envs: "RecordingEnvs", options: ReplayOptions, seed: int, done: Callable[[], float]
) -> Any:
    common: dict[str, Any] = {
        "learning_rate": options.learning_rate,
        "learning_starts": options.learning_starts,
        "gradient_steps": options.gradient_steps,
        "policy_kwargs": {"net_arch": list(options.hidden), "optimizer_class": _Adam},
        "seed": seed,
        "device": "cpu",  # networks this small lose more to transfers than an accelerator gains
    }
    if options.algorithm == "dqn":
        learner = stable_baselines3.DQN("MlpPolicy", envs, train_freq=1, **common)
        # Its own schedule counts time steps, whose number nobody knows; random actions grow rarer over the first half.
        learner.exploration_schedule = lambda _: max(options.action_noise, 1 - 2 * done())
        return _without_modes(learner)
    algorithms = {"ddpg": _DDPG, "td3": stable_baselines3.TD3, "sac": stable_baselines3.SAC}
    noise = _Noise(options.action_noise, int(np.prod(envs.action_space.shape or ())), envs.num_envs)
    return _without_modes(
        algorithms[options.algorithm]("MlpPolicy", envs, action_noise=noise, **common)
    )


def _without_modes(learner: Any) -> Any:
    """Keep the policy from switching between training and evaluation, in which these networks do not differ."""
    learner.policy.set_training_mode = lambda mode: (
        None
    )  # with it the networks' modules are visited twice an update
    return learner


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Move parameters into one vector, of which they are views from then on."""
    parts = list(tensors)
    vector = torch.cat([each.detach().flatten() for each in parts])
    for part, view in zip(
        parts, torch.split(vector, [each.numel() for each in parts]), strict=True
    ):
        part.data = view.view(part.shape)
    return vector


class _Adam:
    """``torch.optim.Adam`` with its default settings and the same numbers to the last bit.

    That class loads PyTorch's compiler, which takes as long as PyTorch itself, and moves one parameter after the other.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float) -> None:
        self.param_groups = [{"lr": lr}]  # stable-baselines3 sets it before every update
        own = list(parameters)
        self.values = _joined(own)
        self._gradient, self._first, self._second = (
            torch.zeros_like(self.values) for _ in range(3)
        )
        for each, view in zip(
            own, torch.split(self._gradient, [each.numel() for each in own]), strict=True
        ):
            each.grad = view.view(each.shape)
        self._steps = 0

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._gradient.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter along its gradient."""
        self._steps += 1
        self._first.lerp_(self._gradient, 1 - 0.9)
        self._second.mul_(0.999).addcmul_(self._gradient, self._gradient, value=1 - 0.999)
        scale = self._second.sqrt().div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        self.values.addcdiv_(
            self._first, scale, value=-self.param_groups[0]["lr"] / (1 - 0.9**self._steps)
        )


class _DDPG(stable_baselines3.DDPG):
    """Its updates with backward passes written out, without the gradients that nobody uses: the same bits, faster."""

    def _setup_model(self) -> None:
        super()._setup_model()
        joined = [_joined(net.parameters()) for net in (self.actor_target, self.critic_target)]
        online = [net.optimizer.values for net in (self.actor, self.critic)]  # type: ignore[attr-defined]
        self._moving = list(zip(joined, online, strict=True))
        nets = [
            list(net.parameters())
            for net in (self.actor, self.critic, self.actor_target, self.critic_target)
        ]
        self._layers = [
            list(zip(net[::2], net[1::2], strict=True)) for net in nets
        ]  # weight and bias of each layer

    @torch.no_grad()
    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """Update critic, actor and both targets ``gradient_steps`` times."""
        assert self.replay_buffer is not None
        actor, critic, actor_target, critic_target = self._layers
        for _ in range(gradient_steps):
            seen, taken, after, done, earned = self.replay_buffer.sample(batch_size)[:5]
            future = _forward(
                critic_target, torch.cat((after, _forward(actor_target, after)[-1].tanh()), 1)
            )[-1]
            wanted = earned + (1 - done) * self.gamma * future
            kept = _forward(critic, torch.cat((seen, taken), 1))
            _backward(critic, kept, (kept[-1] - wanted) * (2 / batch_size), weights=True)
            self.critic.optimizer.step()
            hidden = _forward(actor, seen)
            chosen = hidden[-1].tanh()
            kept = _forward(critic, torch.cat((seen, chosen), 1))
            slope = _backward(
                critic, kept, torch.full_like(kept[-1], -1 / batch_size), weights=False
            )
            _backward(
                actor,
                hidden,
                torch.ops.aten.tanh_backward(slope[:, seen.shape[1] :], chosen),
                weights=True,
            )
            self.actor.optimizer.step()
            for target, values in self._moving:
                target.mul_(1 - self.tau).add_(values, alpha=self.tau)

    @torch.no_grad()
    def predict(self, observation: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        """Actions [N, A] of the actor, without noise."""
        squashed = _forward(self._layers[0], torch.from_numpy(observation))[-1].tanh()
        return self.policy.unscale_action(squashed.numpy()), None


def _forward(layers: list[_Layer], inputs: torch.Tensor) -> list[torch.Tensor]:
    """Inputs ``[B, n]`` of every layer, with ReLU between layers, and at last the output."""
    kept = [inputs]
    for weight, bias in layers:
        if len(kept) > 1:
            kept[-1].relu_()
        kept.append(torch.addmm(bias, kept[-1], weight.t()))
    return kept


def _backward(
    layers: list[_Layer], kept: list[torch.Tensor], slope: torch.Tensor, *, weights: bool
) -> torch.Tensor:
    """Turn the output's gradient ``slope`` into gradients of weights, or else into that of the inputs, returned."""
    for at in reversed(range(len(layers))):
        weight, bias = layers[at]
        if weights:
            torch.mm(slope.t(), kept[at], out=weight.grad)
            torch.sum(slope, 0, out=bias.grad)
        if at > 0:
            slope = torch.ops.aten.threshold_backward(slope @ weight, kept[at], 0)
        elif not weights:
            slope = slope @ weight
    return slope


class _Noise(VectorizedActionNoise):
    """Draws the numbers of its base class in one call: one call for each environment took 15% of the time."""

    def __init__(self, deviation: float, size: int, num_envs: int):
        super().__init__(NormalActionNoise(np.zeros(size), np.full(size, deviation)), num_envs)
        self._deviation, self._shape = deviation, (num_envs, size)

    def __call__(self) -> npt.NDArray[np.float32]:
        """Draw normal numbers [N, A] from stable-baselines3's own, global generator."""
        return np.random.normal(0.0, self._deviation, self._shape).astype(np.float32)


class RecordingEnvs(VecEnv):
    """Copies of one environment side by side, which record every step that they are asked to take.

    `vector_env` makes them; Gymnasium's steps are 2.5 times as fast as stable-baselines3's own. Recording sits at the
    environment's own boundary, so an episode holds the clipped action that was executed, the raw reward and the true
    last observation, even if the learner changes them.

    Args:
        envs: the copies, with observations in a box of one dimension; each begins again in the step in which it ends.
        finished: called with every episode that ends, in order of time, then of environment.
    """

    def __init__(self, envs: SyncVectorEnv | Pendulums, finished: Callable[[Episode], None]):
        self._envs, num_envs = envs, envs.num_envs
        observation_space, action_space = (
            self._envs.single_observation_space,
            self._envs.single_action_space,
        )
        assert isinstance(observation_space, Box)
        assert isinstance(action_space, Box | Discrete)
        self._space, self._finished = action_space, finished
        # Of each environment's running episode the observations, actions and rewards so far.
        self._running: list[tuple[list[Array], list[Array], list[float]]] = [
            ([], [], []) for _ in range(num_envs)
        ]
        self._asked: Array = np.empty(0)
        super().__init__(num_envs, observation_space, action_space)

    def reset(self) -> Array:
        """Start every environment afresh; the seeds given to ``seed`` count once."""
        observations: Array = self._envs.reset(seed=list(self._seeds))[0]
        self._reset_seeds()
        self._running = [([first], [], []) for first in observations.copy()]
        return observations

    def step_async(self, actions: Array) -> None:
        """Keep the actions [N, A], clipped to the space: recorded actions are those executed."""
        if isinstance(self._space, Box):
            actions = np.clip(actions, self._space.low, self._space.high)
        self._asked = actions.astype(self._space.dtype)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment once; those that end start again at once, as stable-baselines3 expects."""
        observations, rewards, terminated, truncated, infos = self._envs.step(self._asked)
        done = terminated | truncated
        now = observations.copy()
        reports: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i, (seen, taken, earned) in enumerate(self._running):
            last = (
                now[i] if not done[i] else infos["final_obs"][i].astype(now.dtype)
            )  # before it starts again
            seen.append(last)
            taken.append(self._asked[i])
            earned.append(rewards[i])
            if done[i]:
                ended, cut = bool(terminated[i]), bool(truncated[i])
                self._finished(
                    Episode(np.stack(seen), np.stack(taken), np.array(earned), ended, cut)
                )
                reports[i] = {
                    "terminal_observation": last,
                    "TimeLimit.truncated": cut and not ended,
                }
                self._running[i] = ([now[i]], [], [])
        return observations, rewards.astype(np.float32), done, reports

    def close(self) -> None:
        """Close every environment."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Give the render mode, which stable-baselines3 asks for (there is none), and nothing else."""
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refuse: no attribute of an environment can be set."""
        raise AttributeError(attr_name)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Refuse: no method of an environment can be called."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Say of each environment that no learner's wrapper is around it."""
        return [False for _ in self._get_indices(indices)]
