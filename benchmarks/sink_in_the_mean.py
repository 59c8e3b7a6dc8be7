"""What an unmasked attention sink does to a mean-pooled feature, on SmolLM2.

SAEBench averages a latent over all real tokens of a prompt. SmolLM2 has no BOS token,
so its sink, the first token, is one of them. Printed for news texts at layer 15:

    python benchmarks/sink_in_the_mean.py [FOLDER_OF_AN_SAE]

Without an SAE, features are 1000 random directions, read by a ReLU.
"""

import sys
from collections.abc import Callable

import torch
from sae_lens import SAE

from sae_lens_cosine.demo.model import load_demo_model
from sae_lens_cosine.demo.text import probing_task
from sae_lens_cosine.evaluation import sink_norm_limit

HOOK = "blocks.15.hook_resid_post"
PROMPTS, CONTEXT = 40, 128


@torch.no_grad()
def activations() -> list[torch.Tensor]:
    """``[tokens, d_model]`` of each prompt."""
    model = load_demo_model()
    task = probing_task("ag_news", train_per_class=PROMPTS // 2, test_per_class=1)
    texts = [text for label in ("world", "sports") for text in task.train[label]]
    found = []
    for text in texts:
        tokens = model.to_tokens(text, prepend_bos=False)[:, :CONTEXT]
        _, cache = model.run_with_cache(tokens, names_filter=HOOK, stop_at_layer=16)
        found.append(cache[HOOK][0])
    return found


@torch.no_grad()
def report(prompts: list[torch.Tensor], encode: Callable) -> None:
    norms = [acts.norm(dim=-1) for acts in prompts]
    limit = sink_norm_limit(torch.cat(prompts))
    sinks = [n > limit for n in norms]
    tokens = sum(map(len, norms))
    print(
        f"{len(prompts)} prompts, {tokens / len(prompts):.0f} tokens each; "
        f"{sum(int(s.sum()) for s in sinks)} sinks "
        f"({100 * sum(int(s.sum()) for s in sinks) / tokens:.1f}% of the tokens), "
        f"{sum(bool(s[0]) for s in sinks)} of them first tokens"
    )
    print(
        f"median norm {torch.cat(norms).median():.0f}, "
        f"of sinks {torch.cat([n[s] for n, s in zip(norms, sinks, strict=True)]).median():.0f}"
    )
    latents = [encode(acts).double() for acts in prompts]
    with_sink = torch.stack([a.mean(0) for a in latents])
    without = torch.stack([a[~s].mean(0) for a, s in zip(latents, sinks, strict=True)])
    of_sinks = torch.stack(
        [a[s].sum(0) / len(a) for a, s in zip(latents, sinks, strict=True)]
    )
    alive = without.mean(0) > 0
    share = (of_sinks.sum(0) / with_sink.sum(0))[alive]
    hit = share > 0.01
    print(f"features that fire on ordinary tokens: {int(alive.sum())}")
    print(f"  moved by a sink (over 1% of their mean): {int(hit.sum())}")
    print(
        f"  share of those features' mean that is the sink's: "
        f"median {100 * share[hit].median():.1f}%"
    )
    # The feature that the sink moves most: its mean over one prompt, token by token.
    feature = int((of_sinks.mean(0) * alive).argmax())
    acts, sink = latents[0][:, feature], sinks[0]
    ordinary = acts[~sink].sum()
    print(
        f"for example feature {feature} in the first prompt: sink {acts[sink].sum():.0f}"
        f", the other {int((~sink).sum())} tokens together {ordinary:.0f}; mean "
        f"{acts.mean():.1f} with the sink, {acts[~sink].mean():.2f} without"
    )
    spread = without.std(0)[alive][hit] / with_sink.std(0)[alive][hit]
    print(
        "  spread of their means between prompts, without over with the sink: "
        f"median {spread.median():.3f}"
    )


def main() -> None:
    prompts = activations()
    if len(sys.argv) > 1:
        report(prompts, SAE.load_from_disk(sys.argv[1]).encode)
        return
    directions = torch.randn(576, 1000, generator=torch.Generator().manual_seed(0))
    directions /= directions.norm(dim=0)
    report(prompts, lambda acts: torch.relu(acts @ directions))


if __name__ == "__main__":
    main()
