"""A clock for arms that alternate, and the tokens that the arms see."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

D_IN = 576


def tokens(batch: int, device: str, sinks: bool = False) -> torch.Tensor:
    """Ordinary tokens of norm 120; with 1% of sinks in two directions if wanted."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, D_IN, generator=generator) * 5
    if sinks:
        n = max(batch // 100, 16)
        x[:n, :2] += 20_000 * torch.randn(n, 2, generator=generator)
    return x.to(device)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def alternate(
    arms: dict[str, Callable[[], Any]], repetitions: int, device: str
) -> dict[str, dict[str, float]]:
    """Seconds of each arm: median, fastest and slowest of the repetitions."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for repetition in range(repetitions + 3):
        for name, run in arms.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            if repetition >= 3:
                seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "median": statistics.median(values),
            "fastest": min(values),
            "slowest": max(values),
        }
        for name, values in seconds.items()
    }


def in_fresh_process(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``run`` returns there, with as many threads as here.

    glibc keeps what is freed there: how often large tensors come from the system anew
    depends on where memory happens to lie, and moves the ratio of two arms by 5%.
    """
    os.environ |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    with multiprocessing.get_context("spawn").Pool(
        1, torch.set_num_threads, (torch.get_num_threads(),)
    ) as pool:
        return pool.apply(run, args, kwargs)
