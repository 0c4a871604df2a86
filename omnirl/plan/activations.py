"""Bytes that a pass through the Thinker takes, a token: what is kept for the backward pass, and what comes and goes.

The coefficients were read off torch's allocator on one H200 by `tests/benchmarks/activations.py`: the true sizes with 2
and 6 layers, passes of 8,192 and 16,384 tokens, torch 2.11, transformers' grouped experts, flash kernels for attention,
LoRA on q, k, v, o and every parameter. They count rows of `hidden` (H) or of an expert's width (I), for each of the k
experts of a token. Formulas are within 3 % of what was measured there; other shapes were not measured.
"""

from __future__ import annotations

from omnirl.plan.architecture import Audio, Text, Vision

_VISION_MEASURED = (27, 1152)
_AUDIO_MEASURED = (480, 128)


def checkpoint_bytes(text: Text, width: int) -> int:
    """Kept for each layer with gradient checkpointing: its input, H. Measured 4.0 KiB a layer.

    Args:
        width: bytes of an element in the pass; the same below.
    """
    return text.layers * text.hidden * width


def kept_bytes(text: Text, width: int, *, adapters_only: bool) -> int:
    """Kept without checkpointing, by all layers: k x (3H + 3I) with frozen experts, k x (4H + 4I) with trained ones,
    and H + queries for attention. Measured 142 and 190 KiB a layer."""
    rows = 3 if adapters_only else 4
    experts = text.experts_per_token * rows * (text.hidden + text.expert_width)
    return text.layers * (experts + text.hidden + text.heads * text.head_dim) * width


def backward_bytes(text: Text, width: int, *, adapters_only: bool) -> int:
    """One layer recomputed and differentiated: k x (6H + 5I) with frozen experts, k x (7H + 6I) with trained ones.
    Measured 254 and 294 KiB."""
    rows = 6 if adapters_only else 7
    return text.experts_per_token * (rows * text.hidden + (rows - 1) * text.expert_width) * width


def forward_bytes(text: Text, width: int, split: int = 1) -> int:
    """One layer's forward pass: k x (3H + 2I) and its input and output. Measured 125 KiB.

    Args:
        split: devices that share the experts' width, in a rollout.
    """
    experts = text.experts_per_token * (3 * text.hidden + -(-2 * text.expert_width // split))
    return (experts + 2 * text.hidden) * width


def vision_peak_bytes(vision: Vision) -> float:
    """A patch's forward pass through the tower: 51.7 KiB at a width of 1152."""
    return 51.7 * 1024 * vision.hidden / _VISION_MEASURED[1]


def vision_kept_bytes(vision: Vision, *, trained: bool) -> float:
    """Kept of a patch while the language model runs: pixels and features, 9.25 KiB, and the inputs of the tower's
    blocks where it is trained, 106.4 KiB at a depth of 27."""
    blocks = 106.4 * 1024 * vision.depth * vision.hidden / (_VISION_MEASURED[0] * _VISION_MEASURED[1])
    return 9.25 * 1024 + (blocks if trained else 0)


def audio_peak_bytes(audio: Audio) -> float:
    """A mel frame's forward pass: 107 KiB, nearly all of it in the convolutions."""
    return 107 * 1024 * _audio_scale(audio)


def audio_kept_bytes(audio: Audio, *, graph: bool) -> float:
    """Kept of a mel frame while the language model runs: its features, and 89 KiB with a graph.

    A LoRA run keeps the graph of the frozen tower too: `enable_input_require_grads`, which verl calls, makes the output
    of the tower's first convolution ask for a gradient.
    """
    features = audio.output * 2 / Audio.FRAMES_PER_TOKEN
    return features + (89 * 1024 * _audio_scale(audio) if graph else 0)


def _audio_scale(audio: Audio) -> float:
    channels, mel_bins = _AUDIO_MEASURED
    return audio.channels * audio.mel_bins / (channels * mel_bins)
