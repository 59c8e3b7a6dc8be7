"""Which test prompts SAEBench's probes get right: it reports only the share."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from sae_bench.evals.sparse_probing import probe_training


class Recorder:
    """For each probe in the order of training: prompts it was tested on, and success.

    The numbers count the test prompts of all classes, one class after another.
    """

    def __init__(self) -> None:
        self.tested: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Per probe: prompt numbers ``[n]`` and whether the answer was right ``[n]``."""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record within this block, by wrapping functions of SAEBench.

        ``prepare_probe_data`` draws and shuffles prompts with torch's generator. It is
        run a second time, from the same state, on the numbers of the prompts: they
        come out in the order of the activations.
        """
        prepare = probe_training.prepare_probe_data
        train = probe_training.train_sklearn_probe
        train_on_all = probe_training.train_probe_gpu
        prompts = torch.empty(0)

        def prepare_and_number(
            activations: dict[str, torch.Tensor], *args: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal prompts
            before = torch.get_rng_state()
            prepared = prepare(activations, *args)
            after = torch.get_rng_state()
            torch.set_rng_state(before)
            prompts = prepare(_numbered(activations), *args)[0][:, 0]
            torch.set_rng_state(after)
            return prepared

        def train_and_record(
            train_inputs: torch.Tensor,
            train_labels: torch.Tensor,
            test_inputs: torch.Tensor,
            test_labels: torch.Tensor,
            **settings: Any,
        ) -> tuple[Any, float]:
            probe, accuracy = train(
                train_inputs, train_labels, test_inputs, test_labels, **settings
            )
            answers = probe.predict(test_inputs.float().cpu().numpy())
            # The test prompts are those that were prepared last.
            right = torch.from_numpy(answers) == test_labels.cpu()
            self.tested.append((prompts.long(), right))
            return probe, accuracy

        def train_on_all_or_none(*args: Any, **settings: Any) -> tuple[Any, float]:
            try:
                return train_on_all(*args, **settings)
            except AssertionError:
                # SAEBench keeps the probe of the best epoch, and has none where no
                # epoch gets a single test prompt right. Only the accuracy is used.
                return None, 0.0

        probe_training.prepare_probe_data = prepare_and_number
        probe_training.train_sklearn_probe = train_and_record
        probe_training.train_probe_gpu = train_on_all_or_none
        try:
            yield
        finally:
            probe_training.prepare_probe_data = prepare
            probe_training.train_sklearn_probe = train
            probe_training.train_probe_gpu = train_on_all


def _numbered(activations: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same classes with one column: numbers of the prompts."""
    start = 0
    numbered = {}
    for label, acts in activations.items():
        # float64: exact, and a floating type as SAEBench's annotations demand.
        numbered[label] = torch.arange(start, start + len(acts)).double()[:, None]
        start += len(acts)
    return numbered
