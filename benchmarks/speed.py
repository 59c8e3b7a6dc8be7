"""How long a training step and inference take, as ratios to SAELens's own classes.

    python benchmarks/speed.py --out benchmarks/results/speed.json

A step is SAELens's: forward, loss, firing counts, backward, clip, Adam. The arms of a
comparison alternate in one process, after a warm-up; figures are medians, with the
fastest and slowest (for sink latents, in the median of five processes). The product of
a batch with the encoder alone, below which no step can come, stands next to each.
Memory is the most that tensors take at a time, the state of training included.

`--parts step,inference` and the like measure some of it. JSON, a Markdown table and a
plot are written beside each other.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from common import environment, listed, sae_trainer, save_json, save_text
from sae_lens import (
    BatchTopKTrainingSAEConfig,
    TopKTrainingSAEConfig,
    TrainingSAEConfig,
)
from speed_clock import D_IN, alternate, in_fresh_process, tokens
from speed_inference import measure_inference
from speed_report import markdown, plot
from torch.profiler import ProfilerActivity, profile

from sae_lens_cosine import (
    CosineBatchTopKTrainingSAEConfig,
    CosineTopKTrainingSAEConfig,
    SinkBatchTopKTrainingSAEConfig,
)

PARTS = ("step", "dead", "topk", "sinks", "growth", "inference")

Configs = dict[str, Callable[..., TrainingSAEConfig]]


def _cosine(**cfg: Any) -> CosineBatchTopKTrainingSAEConfig:
    return CosineBatchTopKTrainingSAEConfig(**{"sink_rank": 0, **cfg})


ARMS: Configs = {
    "SAELens batchtopk": BatchTopKTrainingSAEConfig,
    "cosine_batchtopk": _cosine,
    "cosine_batchtopk, per feature": lambda **c: _cosine(
        exponent_mode="per_feature", **c
    ),
    "cosine_batchtopk, dense step": lambda **c: _cosine(
        use_sparse_activations=False, **c
    ),
    "sink_batchtopk": lambda **c: SinkBatchTopKTrainingSAEConfig(sink_rank=0, **c),
    "SAELens topk": TopKTrainingSAEConfig,
    "cosine_topk": lambda **c: CosineTopKTrainingSAEConfig(sink_rank=0, **c),
    "cosine_batchtopk, sink latents": lambda **c: _cosine(sink_rank=3, **c),
}


class Step:
    """One arm under SAELens's trainer, some latents dead if wanted."""

    def __init__(
        self,
        arm: str,
        d_sae: int,
        k: int,
        batch: int,
        device: str,
        dead: float = 0.0,
        sinks: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.x = tokens(batch, device, sinks)
        config = ARMS[arm](d_in=D_IN, d_sae=d_sae, k=k, device=device)
        data: Iterator[torch.Tensor] = repeat(self.x)
        self.trainer = sae_trainer(config, data, 10**6, batch, device)
        self.dead = torch.arange(d_sae, device=device) < dead * d_sae
        for _ in range(10 * sinks):  # past the estimation
            self()
        assert bool(getattr(self.trainer.sae, "sink_latents", [])) == (
            "sink latents" in arm
        )

    def __call__(self) -> None:
        trainer = self.trainer
        trainer.sae.b_enc.data[self.dead] = -1e4
        trainer.n_forward_passes_since_fired.fill_(0)
        trainer.n_forward_passes_since_fired[self.dead] = 10**6
        trainer.step(self.x)
        trainer.n_training_steps += 1


def peak_bytes(
    arm: str, d_sae: int, k: int, batch: int, device: str, sinks: bool
) -> int:
    """The most bytes of tensors that live at a time in training, from its start.

    What the allocator is asked for, so that it is the same in every run: resident
    memory of one and the same step differs by 10% between processes. To be called in a
    fresh process, because the profiler counts what a former run still holds.
    """

    def train() -> None:
        step = Step(arm, d_sae, k, batch, device, sinks=sinks)
        for _ in range(4):
            step()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train()
        return torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        train()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return max(
        event["args"]["Total Allocated"]
        for event in events
        if event["name"] == "[memory]"
    )


def measure_steps(
    arms: list[str],
    d_sae: int,
    k: int,
    batch: int,
    *,
    repetitions: int,
    device: str,
    dead: float = 0.0,
    sinks: bool = False,
) -> dict[str, Any]:
    """Steps of some arms beside each other; the first arm is what ratios are to."""
    x = tokens(batch, device)
    W_enc = torch.randn(D_IN, d_sae, device=device)
    steps = {arm: Step(arm, d_sae, k, batch, device, dead, sinks) for arm in arms}
    runs: dict[str, Callable[[], Any]] = {"x @ W_enc": lambda: x @ W_enc, **steps}
    seconds = alternate(runs, repetitions, device)
    return {
        "d_in": D_IN,
        "d_sae": d_sae,
        "k": k,
        "batch": batch,
        "dead": dead,
        "seconds": seconds,
        "ratio": {a: seconds[a]["median"] / seconds[arms[0]]["median"] for a in arms},
    }


def measure_peaks(
    arms: list[str], d_sae: int, k: int, batch: int, device: str, sinks: bool = False
) -> dict[str, dict[str, float]]:
    """Memory of each arm, in a fresh process each."""
    peaks = {
        arm: in_fresh_process(peak_bytes, arm, d_sae, k, batch, device, sinks)
        for arm in arms
    }
    return {
        "peak_bytes": peaks,
        "peak_ratio": {arm: peaks[arm] / peaks[arms[0]] for arm in arms},
    }


def median_process(processes: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The cell of `measure_steps` with the median ratio of several fresh processes,
    which differ among themselves by more than the arms.
    """
    cells = [in_fresh_process(measure_steps, *args, **kwargs) for _ in range(processes)]

    def ratio(cell: dict[str, Any]) -> float:
        *_, last = cell["ratio"].values()
        return last

    cells.sort(key=ratio)
    return cells[processes // 2] | {"ratio_by_process": [ratio(c) for c in cells]}


def batch_for(d_sae: int, batch: int) -> int:
    """Smaller where SAELens's dense step would need more than 10 GB or so."""
    return min(batch, 2 ** int(math.log2(batch * 16384 / d_sae)))


def main(
    out: Annotated[Path, typer.Option(help="JSON to write; table and plot beside it.")],
    parts: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(PARTS),
    sizes: Annotated[str, typer.Option(help="d_sae, comma-separated.")] = (
        "4608,16384,65536"
    ),
    ks: Annotated[str, typer.Option(help="Comma-separated.")] = "16,32,64,128",
    batch: int = 2048,
    repetitions: Annotated[int, typer.Option(min=5)] = 7,
    threads: int = 2,
    device: str = "cpu",
) -> None:
    if out.exists():
        raise typer.BadParameter(f"{out} exists: name a new file.", param_hint="--out")
    wanted = listed(parts, PARTS, "--parts")
    torch.set_num_threads(threads)
    first, *_ = widths = [int(size) for size in sizes.split(",")]
    common: dict[str, Any] = {"repetitions": repetitions, "device": device}
    batchtopk = list(ARMS)[:5]
    found: dict[str, Any] = {"threads": threads, "device": device, **environment()}

    def note(part: str, cell: dict[str, Any]) -> None:
        found.setdefault(part, []).append(cell)
        ratios = {name: round(value, 3) for name, value in cell["ratio"].items()}
        print(part, cell["d_sae"], cell["k"], cell["batch"], ratios, flush=True)

    for d_sae in widths:
        n = batch_for(d_sae, batch)
        if "step" in wanted:
            cell = measure_steps(batchtopk, d_sae, 32, n, **common)
            cell |= measure_peaks(batchtopk[:3], d_sae, 32, n, device)
            note("step", cell)
        if "inference" in wanted:
            note("inference", measure_inference(d_sae, 32, n, repetitions, device))
        if "sinks" in wanted:
            pair = ["cosine_batchtopk", "cosine_batchtopk, sink latents"]
            cell = median_process(5, pair, d_sae, 32, n, sinks=True, **common)
            cell |= measure_peaks(pair, d_sae, 32, n, device, sinks=True)
            note("sinks", cell)
    if "dead" in wanted:
        note("dead", measure_steps(batchtopk[:3], first, 32, batch, dead=0.2, **common))
    if "topk" in wanted:
        topk = ["SAELens topk", "cosine_topk"]
        note("topk", measure_steps(topk, first, 32, batch, **common))
    if "growth" in wanted:
        for k in (int(k) for k in ks.split(",")):
            note("growth", measure_steps(batchtopk[:2], first, k, batch, **common))
        for n in (batch // 4, batch // 2, batch * 2):
            note("growth", measure_steps(batchtopk[:2], first, 32, n, **common))
    save_json(out, found, indent=1)
    save_text(out.with_suffix(".md"), markdown(found))
    plot(found, out.with_suffix(".png"))
    print(out.with_suffix(".md").read_text())


if __name__ == "__main__":
    typer.run(main)
