"""Answers for each case of cases.json with what transformers' Jinja environment makes of it, or null where it fails. Run: cases.py"""

import json
import os

from transformers.utils import chat_template_utils

for case in json.load(open(os.path.join(os.path.dirname(__file__), "cases.json"), encoding="utf-8")):
    try:
        template = chat_template_utils._compile_jinja_template(case["template"])
        text = template.render(**case.get("vars", {}))
    except Exception:
        text = None
    print(json.dumps(text, ensure_ascii=False))
