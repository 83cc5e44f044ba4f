"""Has a model say what its prompt asks for, so that parsers of reasoning and of calls of tools have something to parse.

A prompt with the words `say HEX` is answered with the text that HEX has in UTF-8, and the token that ends an answer. HEX keeps the marks of
parsers out of the prompt. The answer begins after the last "assistant" line of the prompt: what follows was said before, by this engine or by
another one.
"""

import re

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

ASKED = re.compile(r"say ([0-9a-f]+)")
ANSWER = "<|start|>assistant\n"


class Scripted(AdapterLogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)
        self.tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
        self.answer = self.tokenizer.encode(ANSWER, add_special_tokens=False)

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        return self.say

    def say(self, prompt, said, logits):
        asked = ASKED.search(self.tokenizer.decode(prompt))
        if not asked:
            return logits
        script = self.tokenizer.encode(bytes.fromhex(asked[1]).decode(), add_special_tokens=False)
        at = len(prompt)
        while prompt[at - len(self.answer):at] != self.answer:
            at -= 1
        done = len(prompt) - at + len(said)
        token = script[done] if done < len(script) else self.tokenizer.eos_token_id
        forced = torch.full_like(logits, float("-inf"))
        forced[token] = 0
        return forced
