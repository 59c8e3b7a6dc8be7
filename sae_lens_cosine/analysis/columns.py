"""Results of the analysis: frozen models, with one array a quantity."""

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer


class Frozen(BaseModel):
    """A result. NaN in a column stands for undefined, and is ``null`` in JSON."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)  # None becomes NaN


def _with_nulls(column: np.ndarray) -> list[Any]:
    return np.where(np.isnan(column), None, column).tolist()  # type: ignore[arg-type]


Floats = Annotated[np.ndarray, BeforeValidator(_floats), PlainSerializer(_with_nulls)]
"""float64, mostly ``[latents]``."""

Latents = Annotated[
    np.ndarray,
    BeforeValidator(lambda values: np.asarray(values, dtype=np.int64)),
    PlainSerializer(lambda column: column.tolist()),
]
"""int64 ``[latents]``: numbers of latents, or counts."""
