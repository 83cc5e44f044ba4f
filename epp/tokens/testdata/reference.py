"""Answers for each line of standard input, a text in base64, with the ids that PyPI's tokenizers make of it, without special tokens around
it and with them. Bytes that are not UTF-8 are replaced. Run: reference.py TOKENIZER.JSON"""

import base64
import json
import sys

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.no_truncation()
tokenizer.no_padding()
for line in sys.stdin:
    text = base64.b64decode(line).decode("utf-8", "replace")
    print(json.dumps([tokenizer.encode(text, add_special_tokens=special).ids for special in (False, True)]))
