"""Answers for each request of requests.json with what vLLM's chat API hands to a chat template: messages and tools, once as texts and once as
lists of parts, and the further variables; null if it refuses the request. The first line has the form of messages that vLLM finds out for
each template of VOCABULARIES. Run with vLLM's Python: prepare.py VOCABULARIES"""

import json
import os
import sys

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import chat_utils, hf


class Tracker:
    """Stands for what collects images."""

    class model_config:
        enable_prompt_embeds = False

    def create_parser(self, **_):
        return self

    def mm_placeholder_storage(self):
        return {}


def prepare(body, form):
    request = ChatCompletionRequest.model_validate(body)
    messages = []
    for message in request.messages:
        messages += chat_utils._parse_chat_message_content(message, Tracker(), form, False)
    chat_utils._postprocess_messages(messages)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(None, "auto").get_apply_chat_template_kwargs()
    return {"messages": messages, "tools": tools, "variables": {k: v for k, v in params.items() if k not in ("chat_template", "return_dict", "tools")}}


def plain(body, form, developer):
    try:
        out = prepare(json.loads(body), form)
        if not developer and any(m["role"] == "developer" for m in out["messages"]):
            out["messages"] = hf._consolidate_system_messages(hf._convert_developer_to_system(out["messages"]))
        return out
    except Exception:
        return None


forms = {}
for family in sorted(os.listdir(sys.argv[1])):
    template = json.load(open(os.path.join(sys.argv[1], family, "tokenizer_config.json"), encoding="utf-8")).get("chat_template")
    if isinstance(template, str):
        forms[family] = hf._detect_content_format(template, default="string")
print(json.dumps(forms))
for request in json.load(open(os.path.join(os.path.dirname(__file__), "requests.json"), encoding="utf-8")):
    print(json.dumps({form: plain(json.dumps(request), form, False) for form in ("string", "openai")}, ensure_ascii=False))
