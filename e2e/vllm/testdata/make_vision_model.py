"""Writes a tiny Qwen2-VL with random weights, a tokenizer and an image processor into the folder that is named.

What it says of an image makes no sense, but depends on the image, so that an encoding that is wrong shows. An image of 56 by 56 pixels
has 16 patches, which become four tokens of a prompt. The same packages always make the same model.
"""

import pathlib
import random
import sys

import torch
from make_model import CONTEXT, HIDDEN, INNER, KV_HEADS, HEADS, LAYERS, SEED, VOCABULARY, corpus, write
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATCH = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}


def write_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(random.Random(SEED)), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": SPECIAL[1:],
    })


def write_processors(folder):
    common = {
        "processor_class": "Qwen2VLProcessor", "min_pixels": 56 * 56, "max_pixels": 224 * 224,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25], **PATCH,
    }
    write(folder / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor", **common})
    write(folder / "video_preprocessor_config.json", {"video_processor_type": "Qwen2VLVideoProcessor", **common})


def write_model(folder):
    ids = {token: i for i, token in enumerate(SPECIAL)}
    ends = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    config = Qwen2VLConfig(
        text_config={
            "model_type": "qwen2_vl_text", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}, **ends,
        },
        vision_config={
            "depth": 2, "embed_dim": HIDDEN, "hidden_size": HIDDEN, "num_heads": 2, "mlp_ratio": 2, "in_channels": 3,
            "patch_size": PATCH["patch_size"], "spatial_merge_size": PATCH["merge_size"],
            "temporal_patch_size": PATCH["temporal_patch_size"], "hidden_act": "quick_gelu",
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=False,
    )
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    torch.manual_seed(SEED)
    model = Qwen2VLForConditionalGeneration(config).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:
                weights.normal_(0, 1.0 if "embed_tokens" in name else 0.5 if "lm_head" in name else 0.25)
    model.save_pretrained(folder)
    write(folder / "generation_config.json", ends)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_vision_model.py FOLDER")
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_tokenizer(target)
    write_processors(target)
    write_model(target)
