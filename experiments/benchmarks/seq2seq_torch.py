"""The peer of benchmarks/seq2seq: the same translation models in PyTorch, and Opacus for DP-SGD.

Usage: python -m experiments.benchmarks.seq2seq_torch FOLDER

FOLDER has sizes.json, weights.npz and batches.npz from the benchmark. Each line of the standard
input asks for one thing, and one line answers when it is done: `step METHOD` trains on every batch
once; `check METHOD` writes loss and gradient of the first batch, without dropout and noise, to
METHOD.npz. Methods: PyTorch, Opacus (hooks) and Opacus ghost.
"""

import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONGEST_WAVE = 1e4


class Recurrent(nn.Module):
    """The network of `jaxpriv.models.Seq2Seq`; `lstm` is the class of its LSTMs."""

    def __init__(self, sizes: dict[str, Any], lstm: type[nn.Module]):
        super().__init__()
        embedding, hidden = sizes["embedding"], sizes["hidden"]
        self.embed_source = nn.Embedding(sizes["num_source_tokens"], embedding)
        self.embed_target = nn.Embedding(sizes["num_target_tokens"], embedding)
        self.encoder = lstm(embedding, hidden // 2, batch_first=True, bidirectional=True)
        self.decoder = lstm(embedding, hidden, batch_first=True)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, sizes["num_target_tokens"])
        self.drop = nn.Dropout(sizes["dropout"])

    def forward(self, source: Any, length: Any, target: Any) -> torch.Tensor:
        """Returns logits; the sentences of the batch are sorted by the length of the source."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.drop(self.embed_source(source)), length.cpu(), batch_first=True
        )
        outputs, (h, c) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        start = [torch.cat([part[0], part[1]], dim=1)[None] for part in (h, c)]
        states, _ = self.decoder(self.drop(self.embed_target(target)), tuple(start))
        scores = states @ memory.transpose(1, 2)
        is_real = torch.arange(memory.shape[1], device=length.device) < length[:, None]
        weights = scores.masked_fill(~is_real[:, None], -1e9).softmax(dim=-1)
        joined = torch.tanh(self.combine(torch.cat([weights @ memory, states], dim=2)))
        return self.output(self.drop(joined))


class Attention(nn.Module):
    """Attention with several heads."""

    def __init__(self, sizes: dict[str, Any]):
        super().__init__()
        width, self.num_heads = sizes["width"], sizes["num_heads"]
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any, read: Any, **mask: Any) -> torch.Tensor:
        """Attends from x to `read`."""
        query, key, value = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(read), self.value(read))
        )
        attended = functional.scaled_dot_product_attention(query, key, value, **mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of the encoder, or of the decoder if it reads a source."""

    def __init__(self, sizes: dict[str, Any], *, reads_source: bool):
        super().__init__()
        width, hidden = sizes["width"], sizes["hidden"]
        self.norm, self.attention = nn.LayerNorm(width, eps=1e-6), Attention(sizes)
        self.cross = Attention(sizes) if reads_source else None
        self.cross_norm = nn.LayerNorm(width, eps=1e-6) if reads_source else None
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.drop = nn.Dropout(sizes["dropout"])

    def forward(self, x: Any, memory: Any, is_source: Any) -> torch.Tensor:
        """Applies the block; a block of the encoder has no memory."""
        y = self.norm(x)
        own = {"is_causal": True} if self.cross else {"attn_mask": is_source}
        x = x + self.drop(self.attention(y, y, **own))
        if self.cross and self.cross_norm:
            x = x + self.drop(self.cross(self.cross_norm(x), memory, attn_mask=is_source))
        hidden = functional.relu(self.up(self.feed_forward_norm(x)))
        return x + self.drop(self.down(hidden))


class Decoder(nn.Module):
    """Decoder of the transformer."""

    def __init__(self, sizes: dict[str, Any]):
        super().__init__()
        width = sizes["width"]
        self.embed = nn.Embedding(sizes["num_target_tokens"], width)
        blocks = [Block(sizes, reads_source=True) for _ in range(sizes["num_layers"])]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width, eps=1e-6)
        self.output = nn.Linear(width, sizes["num_target_tokens"])
        self.drop = nn.Dropout(sizes["dropout"])

    def forward(self, target: Any, memory: Any, is_source: Any) -> torch.Tensor:
        """Returns logits."""
        x = self.drop(embedded(self.embed, target))
        for block in self.blocks:
            x = block(x, memory, is_source)
        return self.output(self.norm(x))


class Transformer(nn.Module):
    """The network of `jaxpriv.models.Transformer`."""

    def __init__(self, sizes: dict[str, Any]):
        super().__init__()
        self.embed_source = nn.Embedding(sizes["num_source_tokens"], sizes["width"])
        blocks = [Block(sizes, reads_source=False) for _ in range(sizes["num_layers"])]
        self.encoder, self.norm = nn.ModuleList(blocks), nn.LayerNorm(sizes["width"], eps=1e-6)
        self.decoder, self.drop = Decoder(sizes), nn.Dropout(sizes["dropout"])

    def forward(self, source: Any, length: Any, target: Any) -> torch.Tensor:
        """Returns logits."""
        places = torch.arange(source.shape[1], device=length.device)
        is_source = (places < length[:, None])[:, None, None]
        x = self.drop(embedded(self.embed_source, source))
        for block in self.encoder:
            x = block(x, None, is_source)
        return self.decoder(target, self.norm(x), is_source)


def embedded(table: nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    """Embeds tokens, with sinusoids of their places."""
    width = table.embedding_dim
    places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
    rates = LONGEST_WAVE ** (-torch.arange(0, width, 2, device=tokens.device) / width)
    angles = places[:, None] * rates
    return table(tokens) * math.sqrt(width) + torch.cat([angles.sin(), angles.cos()], dim=1)


RENAMED = (
    ("encoder_", "encoder."),
    ("blocks_", "blocks."),
    ("LayerNorm_0", "norm"),
    ("LayerNorm_1", "feed_forward_norm"),
    ("_Attention_0", "attention"),
    ("_FeedForward_0/", ""),
    ("feed_forward/", ""),
    ("Dense_1", "up"),
    ("Dense_0", "down"),
    ("kernel", "weight"),
    ("scale", "weight"),
    ("embedding", "weight"),
)
"""Names of Flax and of PyTorch, replaced in this order."""

CELLS = {
    "cell/": ("decoder", ""),
    "encoder/forward_rnn/cell/": ("encoder", ""),
    "encoder/backward_rnn/cell/": ("encoder", "_reverse"),
}


def place(params: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Returns the view of a parameter, or of a gradient, that has the Flax name."""
    for start, (lstm, direction) in CELLS.items():
        if name.startswith(start):
            gate, kind = name.removeprefix(start).split("/")
            what = {"kernel": "weight", "bias": "bias"}[kind]
            part = params[f"{lstm}.{what}_{gate[0]}h_l0{direction}"].chunk(4)["ifgo".index(gate[1])]
            return part.T if kind == "kernel" else part
    torch_name = name
    for old, new in RENAMED:
        torch_name = torch_name.replace(old, new)
    param = params[torch_name.replace("/", ".")]
    return param.T if name.endswith("kernel") else param


def model_of(sizes: dict[str, Any], weights: dict[str, np.ndarray], *, lstm: Any) -> nn.Module:
    """Returns the model with the given weights."""
    model = Recurrent(sizes, lstm) if "embedding" in sizes else Transformer(sizes)
    params = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, param in params.items():
            if "bias_ih" in name:  # Flax has one bias where PyTorch has two
                param.zero_()
                param.requires_grad_(False)
        for name, value in weights.items():
            place(params, name).copy_(torch.tensor(value))
    return model.to(DEVICE).train()


def losses_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mean cross-entropy of the tokens of each sentence."""
    inputs = batch["target"][:, :-1].contiguous()  # as Opacus's embeddings need it
    logits = model(batch["source"], batch["source_length"], inputs)
    wanted, count = batch["target"][:, 1:], batch["target_length"] - 1
    losses = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    is_real = torch.arange(wanted.shape[1], device=count.device) < count[:, None]
    return (losses.view(wanted.shape) * is_real).sum(dim=1) / count


class Method:
    """A way to train: `gradient` leaves the gradient of a batch in the parameters."""

    def __init__(self, name: str, sizes: dict[str, Any], weights: dict[str, np.ndarray]):
        self.name, self.sizes = name, sizes
        self.is_private = name != "PyTorch"
        lstm: Any = nn.LSTM
        if self.is_private:
            from opacus.layers import DPLSTM

            lstm = DPLSTM
        self.model = model_of(sizes, weights, lstm=lstm)
        self.optimizer: Any = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        if self.is_private:
            self.wrapped, self.optimizer = self._private()

    def _private(self) -> tuple[Any, Any]:
        from opacus import optimizers
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

        clip_norm = self.sizes["clip_norm"]
        if self.name == "Opacus":
            wrapped: Any = GradSampleModule(self.model, loss_reduction="sum")
            kind: Any = optimizers.DPOptimizer
        else:
            wrapped = GradSampleModuleFastGradientClipping(
                self.model, loss_reduction="sum", max_grad_norm=clip_norm, use_ghost_clipping=True
            )
            kind = optimizers.DPOptimizerFastGradientClipping
        optimizer = kind(
            self.optimizer,
            noise_multiplier=self.sizes["noise_multiplier"],
            max_grad_norm=clip_norm,
            expected_batch_size=self.sizes["batch"],
            loss_reduction="mean",
        )
        return wrapped, optimizer

    def gradient(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Computes the gradient of a batch, or of each sentence; returns the losses."""
        self.optimizer.zero_grad()
        if not self.is_private:
            losses = losses_of(self.model, batch)
            losses.mean().backward()
            return losses
        if self.name == "Opacus":
            losses = losses_of(self.wrapped, batch)
            losses.sum().backward()
            return losses
        # As Opacus's DPTensorFastGradientClipping does: norms, then the weighted sum.
        self.wrapped.enable_hooks()
        losses = losses_of(self.wrapped, batch)
        losses.sum().backward(retain_graph=True)
        weights = self.wrapped.get_clipping_coef()
        self.optimizer.zero_grad()
        self.wrapped.disable_hooks()
        (losses * weights).sum().backward()
        return losses

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Trains on a batch."""
        self.gradient(batch)
        if not self.is_private:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.sizes["plain_clip_norm"])
        self.optimizer.step()

    def check(self, batch: dict[str, torch.Tensor], names: list[str]) -> dict[str, np.ndarray]:
        """Returns the mean loss, and the gradient (that of DP-SGD summed) by Flax name."""
        losses = self.gradient(batch)
        if self.is_private:
            self.optimizer.pre_step()
        gradients = {
            name: torch.zeros_like(param) if param.grad is None else param.grad
            for name, param in self.model.state_dict(keep_vars=True).items()
        }
        factor = self.sizes["batch"] if self.is_private else 1
        named = {name: factor * place(gradients, name).cpu().numpy() for name in names}
        return {"loss": losses.mean().detach().cpu().numpy(), **named}


def read_batches(path: Path) -> list[dict[str, torch.Tensor]]:
    """Reads batches: sorted by the length of the source, and cut to their longest sentence."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    batches = []
    for rows in zip(*arrays.values(), strict=True):
        batch = dict(zip(arrays, rows, strict=True))
        order = np.argsort(-batch["source_length"], kind="stable")
        batch = {name: value[order].astype(np.int64) for name, value in batch.items()}
        for side in ("source", "target"):
            batch[side] = batch[side][:, : batch[f"{side}_length"].max()]
        batches.append({name: torch.tensor(value).to(DEVICE) for name, value in batch.items()})
    return batches


def main(words: list[str]) -> None:
    """Answers the requests of the standard input."""
    warnings.simplefilter("ignore")
    (folder,) = map(Path, words)
    sizes = json.loads((folder / "sizes.json").read_text())
    with np.load(folder / "weights.npz") as file:
        weights = {name: file[name] for name in file.files}
    batches = read_batches(folder / "batches.npz")
    methods: dict[str, Method] = {}
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        if verb == "check":
            quiet = {**sizes, "dropout": 0.0, "noise_multiplier": 0.0}
            arrays: dict[str, Any] = Method(name, quiet, weights).check(batches[0], list(weights))
            np.savez(folder / f"{name}.npz", **arrays)
        else:
            if name not in methods:
                methods[name] = Method(name, sizes, weights)
            train: Callable[..., None] = methods[name].step
            for batch in batches:
                train(batch)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
