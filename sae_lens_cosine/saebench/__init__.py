"""SAEBench on cosine-scored (and any other SAELens) SAEs, without a fork.

Needs the extra ``saebench``; ``import sae_lens_cosine`` alone never comes here.
"""

from importlib.util import find_spec

if find_spec("sae_bench") is None:
    raise ImportError(
        "sae_lens_cosine.saebench needs SAEBench, which is not installed. Install it "
        'with: pip install "sae-lens-cosine[saebench]"'
    )

from sae_lens_cosine.saebench.datasets import TextTable, load_datasets
from sae_lens_cosine.saebench.probing import run_sparse_probing
from sae_lens_cosine.saebench.summary import ProbingReport

__all__ = ["ProbingReport", "TextTable", "load_datasets", "run_sparse_probing"]
