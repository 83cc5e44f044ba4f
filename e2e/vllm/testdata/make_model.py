"""Writes a tiny Llama with random weights and a tokenizer of its own into the folder that is named.

Its words make no sense. But they depend on every token before them, so that a KV cache that is wrong anywhere shows, and
the weights are wide enough apart for greedy decoding to give the same tokens whatever else is in the batch. The same
packages always make the same model.
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20260101
VOCABULARY = 1024  # ids 300 to 1000 are ordinary tokens, which is where tests take their prompts from
CONTEXT = 4096
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 64, 2, 2, 1, 128
HEAD = HIDDEN // HEADS
SPECIAL = {"pad": "<|pad|>", "bos": "<|bos|>", "eos": "<|eos|>", "start": "<|start|>", "end": "<|end|>"}
CHAT = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def corpus(dice):
    """Lines of invented words, enough of them for a whole vocabulary of merges."""
    consonants, vowels = "bcdfghjklmnprstvwz", "aeiou"
    syllables = [c + v for c in consonants for v in vowels]
    lexicon = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(600)]
    lexicon += "the of and to in is user assistant system cache block token prefill decode prompt".split()
    for _ in range(5000):
        yield " ".join(dice.choices(lexicon, k=dice.randint(3, 12))) + dice.choice(".,;!?\n") + str(dice.randrange(1000))


def write_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(random.Random(SEED)), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
        **{f"{name}_token": SPECIAL[name] for name in ("pad", "bos", "eos")},
    })


def write_config(folder):
    ids = {f"{name}_token_id": i for i, name in enumerate(SPECIAL) if name in ("pad", "bos", "eos")}
    write(folder / "generation_config.json", ids)
    write(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "intermediate_size": INNER,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, **ids,
    })


def write_weights(folder):
    source = torch.Generator().manual_seed(SEED)

    def noise(rows, columns, scale=0.25):
        return torch.randn(rows, columns, generator=source) * scale

    weights = {
        "model.embed_tokens.weight": noise(VOCABULARY, HIDDEN, 1.0),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": noise(VOCABULARY, HIDDEN, 0.5),
    }
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = noise(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write(path, content):
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py FOLDER")
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_tokenizer(target)
    write_config(target)
    write_weights(target)
