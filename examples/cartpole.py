"""Train CartPole-v1 with a policy, an advantage and a loss compiled over tensordicts.

The three functions of an actor-critic (PPO) each take a tensordict, read the entries they need and
write their results into it. Everything else in the tensordict belongs to somebody else: the
collector carries episode counters, monitors log further quantities each at its own interval, and
the loss sees minibatches of all of that. So one compiled function meets many key sets:

- with stock ``torch.compile`` and the ``tensordict`` package, every new key set compiles the
  function again, up to the recompile limit, after which it runs without the compiler;
- with ``backend="tdcompile"`` a function depends on the entries that it touches and on no other.

Run it (about a minute; the column of the reference needs ``pip install tensordict``)::

    python examples/cartpole.py
    python examples/cartpole.py --package tdcompile --seconds 60 --seed 0 --output cartpole.png

Expected output: a progress line, then a table with a column a package. In the column ``tdcompile``
the numbers of compilations, graph breaks and recompile limits are small and do not depend on how
long it trains; the mean return climbs from about 20 to 475, and the learning curve is saved as
``cartpole.png``. Training ends when the last 20 episodes reach ``--target`` or after ``--seconds``.
The seconds of the two packages cannot be compared: the first one fills the compiler's caches.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import matplotlib
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

matplotlib.use("Agg")  # no display needed, and chosen before pyplot picks one
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PACKAGES = ("tdcompile", "tensordict")
DEFAULT_BACKEND = {"tdcompile": "tdcompile", "tensordict": "inductor"}

NUM_ENVS = 16
NUM_STEPS = 64  # per iteration and environment; a power of two suits the scan in `advantage`
NUM_EPOCHS = 4
MINIBATCH = 256
GAMMA, LAMBDA, CLIP, ENTROPY_WEIGHT = 0.98, 0.9, 0.2, 0.005
LEARNING_RATE = 1.5e-3
WINDOW = 20  # episodes in "mean return at the start" and "at the end"

# What people log while they train, each with the interval (in iterations) at which it is collected.
# The keys of the collector's tensordict are therefore not the same in every iteration.
MONITORS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "cart_speed": (2, lambda obs: obs[..., 1].abs()),
    "edge_distance": (3, lambda obs: 2.4 - obs[..., 0].abs()),
    "is_upright": (5, lambda obs: obs[..., 2].abs() < 0.05),
    "energy": (7, lambda obs: obs[..., 1].square() + obs[..., 3].square()),
}


# --- the three functions --------------------------------------------------------------------------


def mlp(num_outputs: int, gain: float) -> nn.Sequential:
    """Return a small network on CartPole's four observations, its last layer scaled by `gain`."""
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Functions:
    """Policy, advantage and loss over tensordicts, closed over an actor and a critic.

    Each reads and writes by key and knows nothing of the further entries of its tensordict.
    Symbols: N environments, T steps, M transitions of a minibatch.
    """

    def __init__(self) -> None:
        self.actor = mlp(2, gain=0.01)
        self.critic = mlp(1, gain=1.0)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of both networks."""
        return [*self.actor.parameters(), *self.critic.parameters()]

    def policy(self, td: Any) -> Any:
        """Write "logits" (N, 2), "value", "action" and "log_prob" (N,) from "obs" (N, 4)."""
        log_probs = self.actor(td["obs"]).log_softmax(-1)
        # Gumbel's trick: the argmax of noisy log-probabilities is a sample of the distribution.
        noise = -torch.log(-torch.log(torch.rand_like(log_probs).clamp(1e-6, 1 - 1e-6)))
        action = (log_probs + noise).argmax(-1)
        td["logits"] = log_probs
        td["value"] = self.critic(td["obs"]).squeeze(-1)
        td["action"] = action
        td["log_prob"] = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return td

    def advantage(self, td: Any) -> Any:
        """Write "advantage" and "returns" (T, N) by generalised advantage estimation.

        The recursion A[t] = delta[t] + c[t] * A[t + 1] is a scan: log2(T) doublings, not T steps.
        """
        next_value = self.critic(td["next", "obs"]).squeeze(-1)
        not_terminated = (~td["next", "terminated"]).float()
        not_done = (~td["next", "done"]).float()
        total = td["next", "reward"] + GAMMA * not_terminated * next_value - td["value"]
        decay = GAMMA * LAMBDA * not_done
        shift = 1
        while shift < td.batch_size[0]:
            zeros = torch.zeros_like(total[:shift])
            total = total + decay * torch.cat([total[shift:], zeros])
            decay = decay * torch.cat([decay[shift:], zeros])
            shift *= 2
        td["advantage"] = total
        td["returns"] = total + td["value"]
        return td

    def loss(self, td: Any) -> Any:
        """Write PPO's "objective" (M,), to be minimised in the mean, and "entropy" (M,)."""
        log_probs = self.actor(td["obs"]).log_softmax(-1)
        log_prob = log_probs.gather(-1, td["action"].unsqueeze(-1)).squeeze(-1)
        ratio = (log_prob - td["log_prob"]).exp()
        advantage = (td["advantage"] - td["advantage"].mean()) / (td["advantage"].std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        value_loss = (self.critic(td["obs"]).squeeze(-1) - td["returns"]).square()
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        td["entropy"] = entropy.detach()
        td["objective"] = 0.5 * value_loss - gain - ENTROPY_WEIGHT * entropy
        return td


# --- what the compiler did ------------------------------------------------------------------------


@dataclass
class Usage:
    """What the compiler did, and how long calls took."""

    compilations: int = 0
    graph_breaks: int = 0
    limit_hits: int = 0
    call_us: list[float] = field(default_factory=list)


def compiler_counts() -> tuple[int, int, int]:
    """Return this process's (compilations, graph breaks, frames given up at a recompile limit)."""
    # PyTorch keeps these counters in a private module and has no public reader; the example needs
    # them only to print its table.
    from torch._dynamo.utils import counters  # noqa: TID251

    frames = counters["frames"]
    return frames["ok"], sum(counters["graph_break"].values()), frames["total"] - frames["ok"]


class Metered:
    """A compiled function that records what its calls cost."""

    def __init__(self, function: Callable[[Any], Any], backend: str | None) -> None:
        self.function = function if backend is None else torch.compile(function, backend=backend)
        self.usage = Usage()

    def __call__(self, td: Any) -> Any:
        """Call the function and add the cost to `usage`."""
        before = compiler_counts()
        start = time.perf_counter()
        result = self.function(td)
        elapsed = time.perf_counter() - start
        after = compiler_counts()
        self.usage.call_us.append(elapsed * 1e6)
        self.usage.compilations += after[0] - before[0]
        self.usage.graph_breaks += after[1] - before[1]
        self.usage.limit_hits += after[2] - before[2]
        return result


# --- training -------------------------------------------------------------------------------------


@dataclass
class Result:
    """The outcome of one training run."""

    package: str
    usage: dict[str, Usage]
    returns: list[float]  # per finished episode, in order
    frames: list[int]  # environment frames at the end of each of those episodes
    num_frames: int
    seconds: float

    def mean_return(self, episodes: slice) -> float:
        """Return the mean return over `episodes`, nan where there are none."""
        chosen = self.returns[episodes]
        return statistics.fmean(chosen) if chosen else float("nan")


class Collector:
    """Steps the environments and hands out tensordicts (T, N)."""

    def __init__(self, td_class: Any, seed: int) -> None:
        self.td_class = td_class
        # SAME_STEP: at an episode's end the observation is that of the next one already, and the
        # last one of the old episode is in `info`. So every transition is a real one.
        self.envs = SyncVectorEnv(
            [lambda: gym.make("CartPole-v1")] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP
        )
        obs, _ = self.envs.reset(seed=seed)
        self.obs = torch.from_numpy(obs)
        self.step_count = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.episode = torch.arange(NUM_ENVS)
        self.num_frames = 0
        self.returns: list[float] = []
        self.return_frames: list[int] = []

    def collect(self, policy: Callable[[Any], Any], iteration: int) -> Any:
        """Return NUM_STEPS steps of `policy` in all environments (T, N), with a nested "next"."""
        monitors = {k: f for k, (every, f) in MONITORS.items() if iteration % every == 0}
        steps = []
        for _ in range(NUM_STEPS):
            entries = {"obs": self.obs, "step_count": self.step_count, "episode": self.episode}
            entries |= {key: monitor(self.obs) for key, monitor in monitors.items()}
            td = policy(self.td_class(entries, batch_size=[NUM_ENVS]))
            td["next"] = self._step(td["action"].numpy())
            steps.append(td)
        return torch.stack(steps)

    def _step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = self.envs.step(action)
        done = terminated | truncated
        final_obs = obs
        if done.any():
            final_obs = obs.copy()
            final_obs[done] = np.stack(info["final_obs"][done])
        self.num_frames += NUM_ENVS
        self.obs = torch.from_numpy(obs)
        self.step_count = self.step_count + 1
        for index in np.flatnonzero(done):
            # Every step is worth one point, so an episode's return is its length.
            self.returns.append(float(self.step_count[index]))
            self.return_frames.append(self.num_frames)
        done_t = torch.from_numpy(done)
        self.step_count = self.step_count.masked_fill(done_t, 0)
        self.episode = torch.where(done_t, self.episode + NUM_ENVS, self.episode)
        return self.td_class(
            {
                "obs": torch.from_numpy(final_obs),
                "reward": torch.from_numpy(reward).float(),
                "terminated": torch.from_numpy(terminated),
                "done": done_t,
            },
            batch_size=[NUM_ENVS],
        )


def train(
    package: str,
    *,
    seconds: float,
    seed: int,
    target: float,
    backend: str | None,
    max_iterations: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Result:
    """Train with the `TensorDict` of `package` and return what came out.

    Args:
        package: "tdcompile" or "tensordict".
        seconds: wall-clock limit; the first iteration, which compiles, is not counted.
        seed: of the networks, the environments and the sampling.
        target: mean return over the last 20 episodes at which training ends.
        backend: of `torch.compile`; None runs without the compiler.
        max_iterations: limit on iterations of collecting and learning, None for no limit.
        progress: called with one line of text an iteration.
    """
    module = importlib.import_module(package)
    td_class = module.TensorDict
    if package == "tdcompile" and backend is not None:
        module.install()  # what `backend="tdcompile"` does by itself, and other backends need
    torch.compiler.reset()
    torch.manual_seed(seed)
    functions = Functions()
    optimizer = torch.optim.Adam(functions.parameters(), lr=LEARNING_RATE, eps=1e-5)
    policy, advantage, loss = (
        Metered(f, backend) for f in (functions.policy, functions.advantage, functions.loss)
    )
    collector = Collector(td_class, seed)
    start = training_start = time.perf_counter()
    iteration = 0
    while True:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * max(0.1, 1 - iteration / 200)
        with torch.no_grad():
            rollout = advantage(collector.collect(policy, iteration))
        transitions = rollout.reshape(-1)
        for _ in range(NUM_EPOCHS):
            for index in torch.randperm(NUM_STEPS * NUM_ENVS).split(MINIBATCH):
                minibatch = loss(transitions[index])
                optimizer.zero_grad()
                minibatch["objective"].mean().backward()
                nn.utils.clip_grad_norm_(functions.parameters(), 0.5)
                optimizer.step()
        iteration += 1
        if iteration == 1:
            training_start = time.perf_counter()
        elapsed = time.perf_counter() - start
        last = collector.returns[-WINDOW:]
        mean = statistics.fmean(last) if last else float("nan")
        progress(
            f"{package}: {elapsed:3.0f} s, {collector.num_frames:7,d} frames, "
            f"{len(collector.returns):5d} episodes, mean return of the last {WINDOW} {mean:5.1f}"
        )
        solved = len(last) == WINDOW and mean >= target
        is_late = time.perf_counter() - training_start >= seconds
        if solved or is_late or iteration == max_iterations:
            break
    collector.envs.close()
    usage = {"policy": policy.usage, "advantage": advantage.usage, "loss": loss.usage}
    return Result(
        package, usage, collector.returns, collector.return_frames, collector.num_frames, elapsed
    )


# --- report ---------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Result], str]] = {
    "compilations: policy": lambda r: str(r.usage["policy"].compilations),
    "compilations: advantage": lambda r: str(r.usage["advantage"].compilations),
    "compilations: loss": lambda r: str(r.usage["loss"].compilations),
    "graph breaks": lambda r: str(sum(u.graph_breaks for u in r.usage.values())),
    "recompile limits hit": lambda r: str(sum(u.limit_hits for u in r.usage.values())),
    "policy call, median (us)": lambda r: f"{statistics.median(r.usage['policy'].call_us):.0f}",
    "environment frames": lambda r: f"{r.num_frames:,d}",
    "episodes": lambda r: str(len(r.returns)),
    f"mean return, first {WINDOW} episodes": lambda r: f"{r.mean_return(slice(WINDOW)):.1f}",
    f"mean return, last {WINDOW} episodes": lambda r: f"{r.mean_return(slice(-WINDOW, None)):.1f}",
}


def format_table(packages: Sequence[str], results: dict[str, Result]) -> str:
    """Return the table, a column for each of `packages`; one without result is not installed."""
    width = max(map(len, ROWS))
    columns = [max(len(name), len("not installed")) for name in packages]
    lines = [
        "  ".join([" " * width, *(f"{n:>{c}}" for n, c in zip(packages, columns, strict=True))])
    ]
    for title, cell in ROWS.items():
        cells = [cell(results[name]) if name in results else "not installed" for name in packages]
        lines.append(
            "  ".join(
                [f"{title:<{width}}", *(f"{t:>{c}}" for t, c in zip(cells, columns, strict=True))]
            )
        )
    return "\n".join(lines)


def save_curve(results: dict[str, Result], target: float, path: Path) -> None:
    """Save the mean return of the last 20 episodes against environment frames as PNG."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, result in results.items():
        means = [
            statistics.fmean(result.returns[max(0, end - WINDOW) : end])
            for end in range(1, len(result.returns) + 1)
        ]
        axes.plot(result.frames, means, label=name)
    if target <= 500:
        axes.axhline(target, color="grey", linewidth=0.8, linestyle="--", label="target")
    axes.set(
        title="CartPole-v1",
        xlabel="environment frames",
        ylabel=f"mean return of the last {WINDOW} episodes",
        ylim=(0, 520),
    )
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


class ProgressLine:
    """Prints the latest line in place on a terminal, and a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self.in_place = sys.stdout.isatty()
        self.interval_s = 0.2 if self.in_place else 5.0
        self.printed_at = -self.interval_s
        self.line = ""

    def __call__(self, line: str) -> None:
        """Take the next line and print it if the last one is old enough."""
        self.line = line
        if time.monotonic() >= self.printed_at + self.interval_s:
            self.print()

    def print(self) -> None:
        """Print the latest line."""
        before, after = ("\r", "") if self.in_place else ("", "\n")
        print(before + self.line, end=after, flush=True)
        self.printed_at = time.monotonic()

    def finish(self) -> None:
        """Leave the latest line on the screen and go to the next."""
        self.print()
        if self.in_place:
            print()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", choices=PACKAGES, help="train with one only (default: both)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=45.0,
        help="limit for a package, after its first iteration (%(default)s)",
    )
    parser.add_argument("--iterations", type=int, help="limit for a package (default: none)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", type=float, default=475.0, help="mean return that ends training (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("cartpole.png"), help="learning curve")
    parser.add_argument(
        "--backend",
        help="of torch.compile (default: tdcompile, and inductor for tensordict); none: eager",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the table and save the learning curve."""
    options = parse_arguments(arguments)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    # The recompile limits that stock PyTorch runs into are counted in the table.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    # The reference goes first, while nothing is installed into the compiler.
    packages = [options.package] if options.package else ["tensordict", "tdcompile"]
    results: dict[str, Result] = {}
    for package in packages:
        if importlib.util.find_spec(package) is None:
            continue
        backend = options.backend or DEFAULT_BACKEND[package]
        progress = ProgressLine()
        results[package] = train(
            package,
            seconds=options.seconds,
            seed=options.seed,
            target=options.target,
            backend=None if backend == "none" else backend,
            max_iterations=options.iterations,
            progress=progress,
        )
        progress.finish()
    print(format_table(packages, results))
    if results:
        save_curve(results, options.target, options.output)
        print(f"learning curve: {options.output}")


if __name__ == "__main__":
    main()
