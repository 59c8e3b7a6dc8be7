"""Running SAEBench's code without leaving traces in the caller's process."""

import contextlib
import io
import random
import warnings
from collections.abc import Iterator

import jaxtyping
import torch


@contextlib.contextmanager
def saebench_session(device: torch.device) -> Iterator[None]:
    """Undo, on leaving, everything that SAEBench's probing changes globally.

    - Its shape annotations raise ``BeartypeCallHintParamViolation`` under beartype
      0.23 (widths 1 and 8 bound to one name), so jaxtyping's checks are off inside.
    - It seeds Python's and torch's generators: the caller's states come back.
    - It switches gradients on and leaves them on; inside inference mode its probes
      could not train at all.
    """
    checks_were_off = jaxtyping.config.jaxtyping_disable
    python_state = random.getstate()
    cuda_devices = [device] if device.type == "cuda" else []
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with (
            torch.random.fork_rng(devices=cuda_devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            # SAEBench passes `penalty`, which scikit-learn 1.8 deprecates and finds
            # inconsistent with the default of its successor (and obeys): two warnings
            # for each of hundreds of probes.
            for category in (FutureWarning, UserWarning):
                warnings.filterwarnings("ignore", ".*penalty.*", category)
            yield
    finally:
        random.setstate(python_state)
        jaxtyping.config.update("jaxtyping_disable", checks_were_off)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow what SAEBench prints: several lines for every probe."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
