"""Writes small vocabularies of each kind, for tests that need nothing fetched. Run: small.py FOLDER"""

import json
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

t = Tokenizer(models.Unigram())
t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.StripAccents(), normalizers.Replace(Regex(" {2,}"), " ")])
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
unigram = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False)
save("unigram", t, unigram)

# What no class of the library sets: bytes for unknown characters, a prefix at the beginning of a text only.
file = json.loads(t.to_str())
file["normalizer"], file["pre_tokenizer"] = None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
file["model"]["byte_fallback"] = True
before = len(file["model"]["vocab"])
file["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(255)]  # one lacks
for a in file["added_tokens"]:
    a["id"] += 255 if a["id"] >= before else 0
open(f"{sys.argv[1]}/bytes.json", "w").write(json.dumps(file, ensure_ascii=False))

# SentencePiece's table of a few rules, by its trainer with normalization_rule_tsv.
CHARSMAP = """
AAQAAAAwAAANJAAACgUAAAEAAIAuvAAALg0AAB0AAIDMOAIAgQUAABQAAIDMAAIAgRkAAKkJAAAXAACACwAAgJHoAgCLBQAAAAAAgKYFAAAaAACABQAAgKAF
AACABAIAgD0AAAMAAICVeAIAhLgCAJwdAAAQAACAgQkAAIAUAgANAACAoREAAKz0AgAuIAAAohkAAAcAAIAJAACAJwAAACYAAAApAAAAKAAAACsAAAAqAAAA
LQAAACwAAAAvAAAALgAAADEAAAC8wAIAMwAAADIAAAA1AAAANAAAADcAAAA2AAAAOQAAADgAAAA7AAAAOgAAAD0AAAA8AAAAPwAAAD4AAABBAAAAQAAAAEMA
AABCAAAARQAAAEQAAABHAAAARgAAAEkAAABIAAAASwAAAEoAAABNAAAATAAAAE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAA
WAAAAFsAAABaAAAAXQAAAFwAAABfAAAAXgAAAGEAAABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGW8AgBrAAAAagAAAG0AAABhmAIAbwAAAG4A
AABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkAAAB4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACDAAAAggAAAIUAAACEAAAA
hwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAAAIwAAACPAAAAjgAAAJEAAACQAAAAkwAAAJIAAACVAAAAlAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0A
AACcAAAAnwAAAJ4AAAChAAAAoAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAAAKkAAACoAAAAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAA
sgAAALUAAAC0AAAAtwAAALYAAAC5AAAAuAAAALsAAAC6AAAAvQAAALwAAAC/AAAAvgAAAMEAAADAAAAAwwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgA
AADLAAAAygAAAM0AAADMAAAAzwAAAMOoAQDRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2wAAANoAAADdAAAA3AAAAN8AAADeAAAA
4QAAAO20AQDjAAAA77gBAOUAAADkAAAA5wAAAOYAAADpAAAA6AAAAOsAAADqAAAA7QAAAOwAAADiwAEA4+QBAPEAAADwAAAA8wAAAPIAAAD1AAAA9AAAAPcA
AAD2AAAA+QAAAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAACgAgADEAQQBCAEUAZmkAaGFuAMOhAMOpAM6pAOKApgA=
"""
file = json.loads(t.to_str())
file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True},
                      {"type": "Precompiled", "precompiled_charsmap": "".join(CHARSMAP.split())}, {"type": "Lowercase"}]}
file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
open(f"{sys.argv[1]}/charsmap.json", "w").write(json.dumps(file, ensure_ascii=False))

t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
t.normalizer = normalizers.BertNormalizer()
t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
wordpiece = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
save("wordpiece", t, wordpiece)

t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
t.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.CharDelimiterSplit("a")])
save("cased", t, wordpiece)
