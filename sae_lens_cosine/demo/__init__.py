"""The demonstration: a real language model, real text, three SAEs, one report.

`model` loads SmolLM2-135M-Instruct and `text` the rows to train on and to probe,
both from Python packages and never from a model hub.
"""
