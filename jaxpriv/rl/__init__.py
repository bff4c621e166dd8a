"""Reinforcement learning: PPO for many agents at once, and episodes of trained agents."""

from jaxpriv.rl import losses, ppo, rollout
from jaxpriv.rl.ppo import PUREJAXRL, Hyperparameters, Stages

__all__ = ["PUREJAXRL", "Hyperparameters", "Stages", "losses", "ppo", "rollout"]
