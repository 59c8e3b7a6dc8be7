"""`python -m sae_lens_cosine` is `sae-lens-cosine`."""

from sae_lens_cosine.cli import main

if __name__ == "__main__":
    main()
