"""Answers for each line of standard input, the path of a tokenizer_config.json and what an engine hands to its chat template, with what
transformers makes of it, or null where it fails. Run: render.py"""

import functools
import json
import sys

from transformers.utils import chat_template_utils


@functools.cache
def read(path):
    config = json.load(open(path, encoding="utf-8"))
    special = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        token = config.get(name)
        if token is not None:
            special[name] = token if isinstance(token, str) else token["content"]
    templates = config["chat_template"]
    if isinstance(templates, str):
        return {"default": templates}, special
    return {t["name"]: t["template"] for t in templates}, special


for line in sys.stdin:
    path, given = json.loads(line)
    templates, special = read(path)
    template = templates["default"]
    if given["tools"] is not None:
        template = templates.get("tool_use", template)
    variables = {"documents": None, **special, **given["variables"]}
    variables.pop("continue_final_message", None)
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        text = compiled.render(messages=given["messages"], tools=given["tools"], **variables)
    except Exception:
        text = None
    print(json.dumps(text, ensure_ascii=False))
