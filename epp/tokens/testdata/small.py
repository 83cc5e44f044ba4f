"""Writes small vocabularies of each kind, for tests that need nothing fetched. Run: small.py FOLDER"""

import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """The quick brown fox jumps over the lazy dog, and the dog sleeps. She sells sea shells by the sea shore.
Der schnelle braune Fuchs springt über den faulen Hund. Быстрая лиса прыгает через собаку. 敏捷的狐狸跳过了懒狗。
func main() { for i := range 10 { fmt.Println(i, "hello, world") } }
We're testing tokenizers: they've got to be exact, aren't they? It's 1234 tokens, I'd say; you'll see.
café naïve über straße Ångström ﬁne ２０２４
""".splitlines()

ADDED = [
    AddedToken("<|start|>", special=True),
    AddedToken("<|end|>", special=True, lstrip=True, rstrip=True),
    AddedToken("<mask>", lstrip=True),
    AddedToken("<nl>", rstrip=True, normalized=False),
    AddedToken("whole", single_word=True, normalized=False),
    AddedToken("café", normalized=True),
    AddedToken("<|start|><|start|>", special=True),
]


def save(name, tokenizer, trainer):
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_tokens(ADDED)
    tokenizer.save(f"{sys.argv[1]}/{name}.json")


LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

t = Tokenizer(models.BPE())
t.normalizer = normalizers.NFC()
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
t.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 0)])
save("bytelevel", t, trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|start|>"], show_progress=False))

t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
save("roberta", t, trainers.BpeTrainer(vocab_size=400, initial_alphabet=["a", "b"], special_tokens=["<s>", "</s>"], show_progress=False))
