"""Prints how many megabytes of a text PyPI's tokenizers and fastokens turn into ids in a second of processor time, on one core: when it is
the first text, when it comes after FILE.other, and when it is seen again. Run: speed.py TOKENIZER.JSON FILE..."""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sys
import time

import fastokens
import tokenizers

def seconds(tokenizer, text):
    start = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - start


def read(path):
    return open(path, encoding="utf-8", errors="replace").read()


for path in sys.argv[2:]:
    text, other = read(path), read(path + ".other")
    size = len(text.encode()) / 1e6
    for library in (tokenizers, fastokens):
        first = seconds(library.Tokenizer.from_file(sys.argv[1]), text)
        tokenizer = library.Tokenizer.from_file(sys.argv[1])
        tokenizer.encode(other)
        fresh, *again = [seconds(tokenizer, text) for _ in range(3)]
        print(f"{library.__name__}/{os.path.basename(path)}: {size / first:.1f} MB/cpu-s first, {size / fresh:.1f} fresh, {size / again[-1]:.1f} again", flush=True)
