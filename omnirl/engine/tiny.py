"""A tiny random Qwen3-Omni checkpoint, built without a network.

The folder holds all that a real one holds except the speech output (talker and code2wav): configuration, weights,
tokenizer, processor and chat template. `AutoConfig`, `AutoProcessor` and the Thinker class load it as they load a
released model. It has about 0.6 M parameters and knows nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from omnirl.data.sample import PLACEHOLDERS
from omnirl.data.sources import toy

MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
"""Tokens that stand for media or surround them. A random model may sample them, and must be kept from it."""
MARKUP_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

VOCABULARY = 480
"""Entries learned by the tokenizer, the 256 bytes among them; media and markup tokens come on top."""
HIDDEN, LAYERS, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 64, 2, 2, 1, 32
EXPERTS, EXPERTS_PER_TOKEN = 4, 2
TOWER, TOWER_LAYERS = 64, 2
PATCH, MERGE, TEMPORAL_PATCH = 16, 2, 2
MAX_POSITIONS = 4096
MIN_PIXELS, MAX_PIXELS = 32 * 32, 256 * 256

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}"
    "{%- elif part['type'] == 'text' %}{{- part['text'] }}"
    "{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

ENGLISH = """
A baker makes 24 rolls each morning and sells half of them before noon. How many rolls are left in the afternoon?
Maria buys 3 notebooks for $2.50 each and a pen for $1.25. How much money does she spend in total?
The train leaves the station at 8 in the morning and travels 60 miles per hour. How far does it go in 4 hours?
There are 15 students in the class. If 5 more students join and then 3 of them leave, how many students are there now?
John has twice as many marbles as his brother. Together they have 36 marbles. How many marbles does each of them have?
She earns $12 an hour and works 8 hours a day, 5 days a week. How much does she earn in one week?
Let's think step by step and output the final answer. So the answer is 10 + 5 = 15. Each of 7 boxes weighs 20 pounds.
What is the sum of the first ten numbers? What did the man do after he opened the door? Which of the following is true?
"""


def build(output: Path, *, seed: int, corpus: Iterable[str] | None = None) -> Path:
    """Write a tiny random checkpoint.

    Args:
        output: the folder to make; it must not exist, and appears whole or not at all.
        seed: of the weights. The same seed and corpus give the same files on one machine.
        corpus: texts that the tokenizer should cut into few tokens, besides some English; by default the questions of
            the toy task.

    Returns:
        `output`.

    Raises:
        FileExistsError: `output` is there already.
    """
    from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration

    if output.exists():
        raise FileExistsError(f"`{output}` exists")
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(toy.wordings() if corpus is None else corpus)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3OmniMoeForConditionalGeneration(make_config(tokenizer)).float()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        model.save_pretrained(scratch)
        make_processor(tokenizer).save_pretrained(scratch)
        scratch.chmod(0o755)
        scratch.rename(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return output


def make_tokenizer(corpus: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer of Qwen's class, trained on `corpus` and some English."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX, Qwen2Tokenizer

    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    # Media marks in a prompt never reach the tokenizer as text.
    texts = [re.sub("|".join(PLACEHOLDERS.values()), "", text) for text in corpus]
    lines = [*texts, *["system\nuser\nassistant\nDescribe. one two three\n"] * 20, *ENGLISH.strip().splitlines()]
    trainer = BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    trained.train_from_iterator(lines, trainer)
    learned = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        unk_token=PAD,
        bos_token=None,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=dict(MEDIA_TOKENS),
        model_max_length=MAX_POSITIONS,
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.add_tokens([AddedToken(START, special=True, normalized=False)], special_tokens=True)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return tokenizer


def make_config(tokenizer: Any) -> Any:
    """The configuration, with every token id inside the tokenizer's vocabulary."""
    from transformers import Qwen3OmniMoeConfig

    def token(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(MEDIA_TOKENS.get(name, name)))

    def first(word: str) -> int:
        return int(tokenizer.encode(word, add_special_tokens=False)[0])

    start, end, pad = token(START), token(END), token(PAD)
    section = HEAD_DIM // 8
    media = {
        "image_token_id": token("image_token"),
        "video_token_id": token("video_token"),
        "audio_token_id": token("audio_token"),
        "vision_start_token_id": token("vision_bos_token"),
        "vision_end_token_id": token("vision_eos_token"),
        "audio_start_token_id": token("audio_bos_token"),
        "audio_end_token_id": token("audio_eos_token"),
    }
    text = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": HIDDEN,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1_000_000.0,
            "mrope_section": [HEAD_DIM // 2 - 2 * section, section, section],
            "mrope_interleaved": True,
        },
        "pad_token_id": pad,
        "eos_token_id": end,
    }
    vision = {
        "depth": TOWER_LAYERS,
        "hidden_size": TOWER,
        "intermediate_size": 2 * TOWER,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL_PATCH,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
    }
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": TOWER_LAYERS,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 2 * TOWER,
        "d_model": TOWER,
        "output_dim": HIDDEN,
        "downsample_hidden_size": 16,
        "n_window": 50,
        "n_window_infer": 800,
    }
    thinker = {
        "text_config": text,
        "vision_config": vision,
        "audio_config": audio,
        "position_id_per_seconds": 13,
        "user_token_id": first("user"),
        **media,
    }
    return Qwen3OmniMoeConfig(
        thinker_config=thinker,
        enable_audio_output=False,
        im_start_token_id=start,
        im_end_token_id=end,
        tts_pad_token_id=pad,
        tts_bos_token_id=start,
        tts_eos_token_id=end,
        system_token_id=first("system"),
        user_token_id=first("user"),
        assistant_token_id=first("assistant"),
        architectures=["Qwen3OmniMoeForConditionalGeneration"],
    )


def make_processor(tokenizer: Any) -> Any:
    """The processor; videos are taken at the size at which they come, since rows carry their own pixel budget."""
    from transformers import Qwen2VLImageProcessor, Qwen3OmniMoeProcessor, WhisperFeatureExtractor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    vision: dict[str, Any] = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": TEMPORAL_PATCH,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    budget = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    return Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(budget), **vision),
        video_processor=Qwen2VLVideoProcessor(size=dict(budget), do_resize=False, **vision),
        feature_extractor=WhisperFeatureExtractor(feature_size=128, sampling_rate=16_000, hop_length=160, n_fft=400),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
