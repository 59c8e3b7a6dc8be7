"""Training that survives being interrupted: a checkpoint at the next step boundary.

SAELens raises wherever the signal finds it, in the middle of an optimizer step if need
be, and its single runner then saves neither weights nor optimizer. Here the signal is
noted, the step finished, and everything saved.
"""

import shlex
import shutil
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sae_lens import logger
from sae_lens.saes.sae import T_TRAINING_SAE, T_TRAINING_SAE_CONFIG
from sae_lens.training import sae_trainer
from sae_lens.training._interruption import InterruptedException
from sae_lens.training.sae_trainer import SAETrainer
from typing_extensions import override

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(InterruptedException):
    """Training stopped on a signal, at a step boundary.

    Attributes:
        signal_number: the signal.
        checkpoint: the folder that was written; None if checkpoints are turned off.
    """

    def __init__(self, signal_number: int, checkpoint: Path | None):
        self.signal_number = signal_number
        self.checkpoint = checkpoint
        kept = f"checkpoint at {checkpoint}" if checkpoint else "nothing was saved"
        super().__init__(f"{signal.Signals(signal_number).name}: {kept}")


class InterruptibleTrainer(SAETrainer[T_TRAINING_SAE, T_TRAINING_SAE_CONFIG]):
    """SAELens's trainer, which on SIGINT or SIGTERM saves a checkpoint and stops.

    The checkpoint holds weights, optimizer, schedulers, counters, the activation scaler
    and what `save_checkpoint_fn` adds (under SAELens's runner the position of the
    activation store), and appears under its name only when it is complete. A second
    signal stops at once, without one.
    """

    received: int | None = None

    @override
    def fit(self) -> T_TRAINING_SAE:
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number in SIGNALS:
                signal.signal(number, self.note)
            return super().fit()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def note(self, signal_number: int, frame: FrameType | None) -> None:
        """Remember a signal; the next step boundary acts on it."""
        del frame
        if self.received is not None:
            raise SystemExit(128 + signal_number)
        self.received = signal_number
        name = signal.Signals(signal_number).name
        logger.warning(f"{name}: saving a checkpoint after this step; again to abort")

    @override
    def maybe_reset_sparsity(self) -> dict[str, Any]:
        # `fit` starts every step with this call, when all counters agree. Saved before
        # the reset, which the resumed run does then.
        if self.received is not None:
            raise Interrupted(self.received, self.save_on_interruption())
        return super().maybe_reset_sparsity()

    def save_on_interruption(self) -> Path | None:
        """The folder of a complete checkpoint, or None if they are turned off."""
        if self.cfg.checkpoint_path is None:
            logger.warning("checkpoint_path is None: nothing is saved")
            return None
        folder = Path(self.cfg.checkpoint_path)
        whole = folder / str(self.n_training_samples)
        partial = whole.with_suffix(".partial")
        self.save_checkpoint(partial.name)
        if whole.exists():  # SAELens's own of this step, whose step counter is behind
            shutil.rmtree(whole)
        partial.rename(whole)
        return whole


@contextmanager
def interruptible_training() -> Generator[None, None, None]:
    """SAELens modules that are imported inside train with `InterruptibleTrainer`."""
    sae_trainer.SAETrainer = InterruptibleTrainer  # type: ignore[misc]
    try:
        yield
    finally:
        sae_trainer.SAETrainer = SAETrainer  # type: ignore[misc]


def resume_command(arguments: Sequence[str], checkpoint: Path) -> str:
    """What to type to go on from ``checkpoint``."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--resume_from_checkpoint":
            skip = True
        elif not argument.startswith("--resume_from_checkpoint="):
            kept.append(argument)
    return shlex.join(
        ["sae-lens-cosine", "train", *kept, "--resume_from_checkpoint", str(checkpoint)]
    )
