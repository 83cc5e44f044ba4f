"""Prints how many megabytes of a text PyPI's tokenizers and fastokens turn into ids in a second of processor time, on one core: when the
text is seen for the first time, and again. Run: speed.py TOKENIZER.JSON FILE..."""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sys
import time

import fastokens
import tokenizers

for path in sys.argv[2:]:
    text = open(path, encoding="utf-8", errors="replace").read()
    size = len(text.encode()) / 1e6
    for library in (tokenizers, fastokens):
        tokenizer = library.Tokenizer.from_file(sys.argv[1])
        times = []
        for _ in range(3):
            start = time.process_time()
            tokenizer.encode(text)
            times.append(time.process_time() - start)
        print(f"{library.__name__}/{os.path.basename(path)}: {size / times[0]:.1f} MB/cpu-s fresh, {size / times[-1]:.1f} again", flush=True)
