"""Mean latents against SAEBench's own pooling, and how often an SAE encodes."""

import pytest
import torch
from sae_bench.sae_bench_utils import activation_collection
from tiny_lm import CONTEXT, RESIDUAL, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import run_sparse_probing
from sae_lens_cosine.saebench.activations import ActivationCache, tokenize
from sae_lens_cosine.saebench.handover import Hook
from sae_lens_cosine.saebench.host import saebench_session
from sae_lens_cosine.saebench.pooling import ChannelsAsLatents, Pooler
from sae_lens_cosine.saebench.sinks import mask_sinks

CPU = torch.device("cpu")


class Counting:
    """An SAE that counts the tokens it encodes."""

    def __init__(self) -> None:
        self.sae = make_sae()
        self.dtype = self.sae.dtype
        self.tokens = 0

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.tokens += x.shape[:-1].numel()
        return self.sae.encode(x)


@pytest.fixture
def cache(model: HookedTransformer, tmp_path) -> ActivationCache:
    return ActivationCache(model, tmp_path, 7, show_progress=False)


def test_equals_saebenchs_means_and_encodes_shared_prompts_once(
    model: HookedTransformer, cache: ActivationCache
) -> None:
    first = make_texts("first")
    second = LabelledTexts("second", first.train, first.test)
    with saebench_session(CPU):
        texts = [tokenize(data, model, CONTEXT) for data in (first, second)]
        sae = Counting()
        pooler = Pooler(sae, texts, batch_size=5, device=CPU)
        for data in texts:
            acts = cache.get(data, Hook(RESIDUAL, 1))
            masks = [mask_sinks(data, acts, m) for m in ("none", "first_token")]
            for mask, pooled in zip(
                masks, pooler.pool(data.name, acts, masks), strict=True
            ):
                padded = torch.zeros(*data.real.shape, acts.acts.shape[-1])
                padded[data.real] = acts.acts * mask.keep[:, None]
                expected = activation_collection.get_sae_meaned_activations(
                    {"": padded}, sae.sae, 1000
                )[""]
                torch.testing.assert_close(pooled, expected)
    # Not those of the second data set: they are the first's.
    assert sae.tokens == int(texts[0].real.sum())


def test_means_are_saebenchs_to_the_last_bit(
    model: HookedTransformer, cache: ActivationCache
) -> None:
    # Channels stand for latents: no matrix product, which may round by its shape. The
    # tokenizer puts BOS first, so the other tokens do not begin at position 0.
    with saebench_session(CPU):
        texts = tokenize(make_texts("t"), model, CONTEXT)
        acts = cache.get(texts, Hook(RESIDUAL, 1))
        masks = [mask_sinks(texts, acts, m) for m in ("none", "first_token")]
        channels = ChannelsAsLatents(acts.acts.dtype)
        pooler = Pooler(channels, [texts], batch_size=5, device=CPU)
        for mask, pooled in zip(
            masks, pooler.pool(texts.name, acts, masks), strict=True
        ):
            padded = torch.zeros(*texts.real.shape, acts.acts.shape[-1])
            padded[texts.real] = acts.acts * mask.keep[:, None]
            expected = activation_collection.get_sae_meaned_activations(
                {"": padded}, channels, 1000
            )[""]
            assert torch.equal(pooled, expected)


def test_a_prompt_with_another_mask_is_encoded_again(
    model: HookedTransformer, cache: ActivationCache
) -> None:
    data = make_texts("first")
    again = LabelledTexts("again", data.train, data.test)
    texts = [tokenize(data, model, CONTEXT), tokenize(again, model, CONTEXT)]
    sae = Counting()
    pooler = Pooler(sae, texts, batch_size=5, device=CPU)
    plain, masked = (
        pooler.pool(t.name, acts, [mask_sinks(t, acts, masking)])[0]
        for t, masking in zip(texts, ("none", "first_token"), strict=True)
        for acts in [cache.get(t, Hook(RESIDUAL, 1))]
    )
    assert sae.tokens == 2 * int(texts[0].real.sum())
    assert not torch.allclose(plain, masked)


def test_probes_use_the_given_latents_alone(model: HookedTransformer, tmp_path) -> None:
    texts = make_texts("colours")
    # Of 48 latents the last 8 are the whole SAE of 8 latents.
    sae, small = make_sae(), make_sae(d_sae=8)
    with torch.no_grad():
        for name in ("W_enc", "W_dec", "b_enc"):
            rows = getattr(sae, name)
            getattr(small, name).copy_(rows[..., -8:] if name != "W_dec" else rows[-8:])
    settings = {
        "model": model,
        "datasets": texts,
        "output": tmp_path,
        "context_size": CONTEXT,
        "show_progress": False,
    }
    report = run_sparse_probing(
        {"sae": sae, "small": small},
        latents={"sae": [*range(40, 48)]},
        **settings,
    )
    metrics = [report[name].eval_result_metrics.sae for name in ("sae", "small")]
    assert metrics[0] == metrics[1]
    # It is another result than that of all latents.
    free = run_sparse_probing({"sae": sae}, **settings)["sae"]
    assert free.sae_lens_id != report["sae"].sae_lens_id
    assert free.eval_result_metrics.sae != metrics[0]

    for latents, message in (
        ({"no": [1]}, r"latents=\['no'\] are not among the SAEs: sae"),
        ({"sae": [48] * 5}, r"latents=\[48.*d_sae=48"),
        ({"sae": [1, 1, 2, 3, 4]}, "k=5 is more than the 4 latents of 'sae'"),
    ):
        with pytest.raises(ValueError, match=message):
            run_sparse_probing({"sae": sae}, latents=latents, **settings)
