"""What reserved latents add to the time and memory of a training step.

    python benchmarks/sink_step.py

alternates full steps (forward, loss, backward, clip, Adam) of two cosine SAEs that
differ in `sink_rank` alone, and prints the ratio of their medians. Memory is what
steps add to the peak resident size of a process of their own.
"""

import multiprocessing
import re
import statistics
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from sae_lens import TrainingSAE
from sae_lens.saes.sae import TrainStepInput

from sae_lens_cosine import CosineBatchTopKTrainingSAEConfig

D_IN, K, BATCH = 576, 32, 2048


def batch(seed: int) -> torch.Tensor:
    """Ordinary tokens and 1% of sinks in two directions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, D_IN, generator=generator) * 5
    x[: BATCH // 100, :2] += 20_000 * torch.randn(BATCH // 100, 2, generator=generator)
    return x


class Arm:
    def __init__(self, sink_rank: int, d_sae: int) -> None:
        torch.manual_seed(0)
        self.sae = TrainingSAE.from_dict(
            CosineBatchTopKTrainingSAEConfig(
                d_in=D_IN, d_sae=d_sae, k=K, sink_rank=sink_rank
            ).to_dict()
        )
        self.optimizer = torch.optim.Adam(self.sae.parameters())
        for seed in range(5):  # past the estimation
            self.step(batch(seed))

    def step(self, x: torch.Tensor) -> None:
        dead = torch.zeros(self.sae.cfg.d_sae, dtype=torch.bool)
        output = self.sae.training_forward_pass(TrainStepInput(x, {}, dead, 0, False))
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.sae.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def peak_kibibytes(sink_rank: int, d_sae: int) -> int:
    """Growth of the peak resident size over a few steps; for a fresh process."""
    before = peak_resident_kibibytes()
    arm = Arm(sink_rank, d_sae)
    for seed in range(5, 10):
        arm.step(batch(seed))
    return peak_resident_kibibytes() - before


def peak_resident_kibibytes() -> int:
    """Of this process alone; getrusage would count that of its parent in (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def main(
    d_sae: Annotated[int, typer.Option()] = 2304,
    repetitions: Annotated[int, typer.Option(min=5)] = 15,
) -> None:
    arms = {"sink_rank=0": Arm(0, d_sae), "sink_rank=3": Arm(3, d_sae)}
    assert arms["sink_rank=3"].sae.sink_latents
    x = batch(99)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repetitions):
        for name, arm in arms.items():
            start = time.perf_counter()
            arm.step(x)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    fresh = multiprocessing.get_context("spawn")
    peaks: dict[str, int] = {}
    for name, rank in (("sink_rank=0", 0), ("sink_rank=3", 3)):
        with fresh.Pool(1) as pool:
            peaks[name] = pool.apply(peak_kibibytes, (rank, d_sae))
    for name in arms:
        print(
            f"{name}: median {medians[name]:.3f} s of {repetitions}, "
            f"peak {peaks[name] / 2**10:.0f} MiB"
        )
    plain, treated = arms
    print(f"time ratio {medians[treated] / medians[plain]:.3f}")
    print(f"memory ratio {peaks[treated] / peaks[plain]:.3f}")


if __name__ == "__main__":
    typer.run(main)
