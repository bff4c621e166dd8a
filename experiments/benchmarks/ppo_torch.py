"""The peer of benchmarks/ppo: PPO of torch-ac on Minigrid's MultiRoom.

Usage: python -m experiments.benchmarks.ppo_torch ROOMS SIZE MAX_STEPS MAPS UPDATES LSTM_UNITS SEED

Prints one JSON object: seconds of the training, and the mean return and the number of the episodes
that ended in each update.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
import torch_ac
from minigrid.envs.multiroom import MultiRoomEnv
from minigrid.wrappers import ReseedWrapper
from torch import nn

NUM_ENVS, NUM_ACTIONS = 16, 7


class Agent(nn.Module, torch_ac.RecurrentACModel):
    """The network of `jaxpriv.models.ActorCritic` with heads of 64 units."""

    def __init__(self, lstm_units: int):
        super().__init__()
        self.lstm_units = lstm_units
        convolutions = [nn.Conv2d(3, 16, 2), nn.Conv2d(16, 32, 2), nn.Conv2d(32, 64, 2)]
        first, second, third = convolutions
        self.embedding = nn.Sequential(
            first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), third, nn.ReLU(), nn.Flatten()
        )
        self.cell = nn.LSTMCell(64, lstm_units) if lstm_units else None
        width = lstm_units or 64
        self.actor = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, NUM_ACTIONS))
        self.critic = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 1))
        with torch.no_grad():
            for layer in (*self.actor, *self.critic):
                if isinstance(layer, nn.Linear):
                    layer.weight.normal_()
                    layer.weight /= layer.weight.norm(dim=1, keepdim=True)
                    layer.bias.zero_()

    @property
    def recurrent(self) -> bool:
        """Whether the agent has a memory."""
        return self.cell is not None

    @property
    def memory_size(self) -> int:
        """Numbers of the memory."""
        return 2 * self.lstm_units

    def forward(self, observation: torch.Tensor, memory: Any = None) -> tuple[Any, ...]:
        """Returns the policy and the value, and with an LSTM the memory."""
        x = self.embedding(observation.permute(0, 3, 1, 2))
        if self.cell is not None:
            h, c = self.cell(x, tuple(memory.split(self.lstm_units, dim=1)))
            x, memory = h, torch.cat([h, c], dim=1)
        policy = torch.distributions.Categorical(logits=self.actor(x))
        decision = policy, self.critic(x).squeeze(1)
        return decision if self.cell is None else (*decision, memory)


class Algorithm(torch_ac.PPOAlgo):
    """PPO that remembers how many episodes ended in an update; torch-ac forgets it at the end."""

    num_episodes = 0
    _counter = 0

    @property
    def log_done_counter(self) -> int:
        """Number of episodes that have ended in the update so far."""
        return self._counter

    @log_done_counter.setter
    def log_done_counter(self, value: int) -> None:
        if value == 0:
            self.num_episodes = self._counter
        self._counter = value


def stacked(observations: list[dict[str, Any]], device: Any = None) -> torch.Tensor:
    """Stacks the images of observations."""
    images = np.stack([observation["image"] for observation in observations])
    return torch.tensor(images, dtype=torch.float32, device=device)


def main(words: list[str]) -> None:
    """Trains one agent."""
    rooms, size, max_steps, maps, updates, lstm_units, seed = map(int, words)
    torch.manual_seed(seed)
    np.random.seed(seed)  # torch-ac shuffles by the global generator
    rng = np.random.default_rng(seed)
    envs = []
    for _ in range(NUM_ENVS):
        env = MultiRoomEnv(
            minNumRooms=rooms, maxNumRooms=rooms, maxRoomSize=size, max_steps=max_steps
        )
        # Maps in random order without end, as a reset of ours draws them.
        seeds = (1 + rng.integers(maps, size=10_000)).tolist()
        envs.append(ReseedWrapper(env, seeds=seeds))
    recurrence = 4 if lstm_units else 1
    agent = Agent(lstm_units)
    algorithm = Algorithm(
        envs, agent, recurrence=recurrence, preprocess_obss=lambda obs, device=None: stacked(obs)
    )
    returns, counts, started = [], [], time.perf_counter()
    for _ in range(updates):
        experiences, logs = algorithm.collect_experiences()
        algorithm.update_parameters(experiences)
        # Where fewer than 16 episodes ended, the log begins with older ones, at first with zeros.
        count = algorithm.num_episodes
        ended = logs["return_per_episode"][-count:] if count else [0.0]
        returns.append(float(np.mean(ended)))
        counts.append(count)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "returns": returns, "num_episodes": counts}))


if __name__ == "__main__":
    main(sys.argv[1:])
