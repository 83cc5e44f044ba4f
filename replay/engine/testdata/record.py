"""Records what vLLM's scheduler decides, step by step, for scripted requests.

    .tools/vllm/bin/python replay/engine/testdata/record.py .tools/tinymodel replay/engine/testdata

It drives vllm.v1.core.sched.scheduler.Scheduler in this process. No model runs: every request that has computed all its tokens
is given one that no other request has. Each scenario is written to a JSON file of its own:

    vllm      version
    config    step_tokens, sequences, block_tokens, blocks: those of the engine; blocks is without the null block
    requests  step: before which step it was added; prompt, output: tokens;
              parts: identities of the whole blocks of the prompt and the answer, equal where all tokens up to their end are equal
    steps     scheduled: [request, tokens] in the scheduler's order; running, waiting: requests after scheduling;
              free: blocks that no request uses after scheduling
"""
import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm import SamplingParams
from vllm import __version__ as version
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 32

# A request: the step before which it is added, its prompt as pieces (name, tokens), and the tokens of its answer. Equal names
# have equal tokens, so prompts that begin with the same pieces share a prefix.
SCENARIOS = {
    # Prompts are computed in chunks, beside requests that have their answers generated.
    "chunks": (dict(step_tokens=256, sequences=8, blocks=200), [
        (0, [("a", 40)], 12), (1, [("b", 700)], 4), (2, [("c", 300)], 5), (2, [("d", 33)], 3), (6, [("e", 1)], 2), (9, [("f", 256)], 1), (9, [("g", 257)], 2),
    ]),
    # More requests than may run at a time.
    "sequences": (dict(step_tokens=512, sequences=3, blocks=200), [
        (0, [("a", 50)], 6), (0, [("b", 60)], 3), (0, [("c", 70)], 9), (0, [("d", 80)], 4), (0, [("e", 90)], 1), (3, [("f", 100)], 2), (12, [("g", 20)], 3),
    ]),
    # Prompts that begin alike, in the same step and later; the whole prompt of one is cached.
    "prefixes": (dict(step_tokens=512, sequences=8, blocks=200), [
        (0, [("s", 160), ("a", 40)], 5), (0, [("s", 160), ("b", 50)], 3), (2, [("s", 160), ("a", 40), ("c", 64)], 2), (4, [("s", 160)], 3), (4, [("s", 96)], 3),
        (9, [("s", 160), ("a", 32)], 2), (9, [("x", 160)], 2),
    ]),
    # A prompt whose whole blocks another one is still computing in chunks.
    "chunked-prefix": (dict(step_tokens=128, sequences=8, blocks=200), [
        (0, [("s", 320), ("a", 20)], 3), (1, [("s", 320), ("b", 20)], 3), (4, [("s", 320), ("b", 20)], 2),
    ]),
    # Few blocks: cached blocks make room, the least recently used first.
    "eviction": (dict(step_tokens=512, sequences=4, blocks=20), [
        (0, [("a", 200)], 2), (4, [("b", 200)], 2), (8, [("a", 200)], 2), (12, [("c", 260)], 2), (16, [("a", 200)], 2), (20, [("b", 200)], 2), (24, [("a", 128), ("d", 100)], 40),
        (30, [("e", 250)], 2), (70, [("c", 260)], 2),
    ]),
    # Blocks run out while answers grow: the youngest is preempted, and computed again.
    "preemption": (dict(step_tokens=512, sequences=8, blocks=16), [
        (0, [("a", 120)], 60), (0, [("b", 120)], 50), (1, [("c", 125)], 40), (2, [("d", 60)], 4), (30, [("e", 70)], 20),
    ]),
    # The blocks of a preempted request are still cached when it runs again, those of its answer as well.
    "resumption": (dict(step_tokens=512, sequences=8, blocks=16), [
        (0, [("a", 60)], 240), (0, [("b", 60)], 240),
    ]),
    # A long prompt waits until there are blocks for all of it, though its first chunk would fit; what comes after it waits, too.
    "whole-prompt": (dict(step_tokens=128, sequences=8, blocks=16), [
        (0, [("a", 250)], 20), (3, [("b", 330)], 3), (4, [("c", 20)], 3),
    ]),
}


def config(model, step_tokens, sequences, blocks):
    c = EngineArgs(model=model, dtype="float32", max_model_len=2048, block_size=BLOCK, max_num_batched_tokens=step_tokens, max_num_seqs=sequences,
                   enable_prefix_caching=True, enable_chunked_prefill=True, async_scheduling=False, enforce_eager=True).create_engine_config()
    c.cache_config.num_gpu_blocks = blocks + 1  # the null block is one of them
    return c


class Recorder:
    def __init__(self, model, settings):
        c = config(model, **settings)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32)
        self.scheduler = Scheduler(vllm_config=c, kv_cache_config=KVCacheConfig(num_blocks=settings["blocks"] + 1, kv_cache_tensors=[],
                                   kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
                                   structured_output_manager=StructuredOutputManager(c), block_size=BLOCK)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.tokens, self.identities = {}, {}
        self.requests, self.steps = [], []

    def piece(self, name, n):
        """The first n tokens of a piece."""
        begin = self.tokens.setdefault(name, 4096 * (1 + len(self.tokens)))
        return list(range(begin, begin + n))

    def parts(self, tokens):
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        return [self.identities.setdefault(tuple(tokens[:end]), 1 + len(self.identities)) for end in ends]

    def add(self, step, pieces, output):
        number = len(self.requests)
        prompt = [t for name, n in pieces for t in self.piece(name, n)]
        answer = self.piece(f"answer {number}", output)
        self.requests.append(dict(step=step, prompt=len(prompt), output=output, parts=self.parts(prompt + answer), answer=answer))
        self.scheduler.add_request(Request(request_id=str(number), prompt_token_ids=prompt, pooling_params=None, block_hasher=self.hasher,
                                           sampling_params=SamplingParams(max_tokens=output, ignore_eos=True, temperature=0)))

    def step(self):
        s = self.scheduler
        out = s.schedule()
        numbers = lambda all: [int(r.request_id) for r in all]
        self.steps.append(dict(scheduled=[[int(i), n] for i, n in out.num_scheduled_tokens.items()], running=numbers(s.running),
                               waiting=numbers(s.kv_holding_waiting) + numbers(s.waiting), free=s.kv_cache_manager.block_pool.get_num_free_blocks()))
        ids = list(out.num_scheduled_tokens)
        sampled = []
        for i in ids:
            r = s.requests[i]
            done = r.num_computed_tokens >= r.num_tokens
            sampled.append([self.requests[int(i)]["answer"][r.num_output_tokens]] if done else [])
        s.update_from_output(out, ModelRunnerOutput(req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)}, sampled_token_ids=sampled))

    def play(self, script):
        left = list(script)
        while left or self.scheduler.has_unfinished_requests():
            while left and left[0][0] <= len(self.steps):
                self.add(*left.pop(0))
            self.step()


def main(model, to):
    for name, (settings, script) in SCENARIOS.items():
        r = Recorder(model, settings)
        r.play(script)
        for one in r.requests:
            del one["answer"]
        lines = lambda all: "[\n    " + ",\n    ".join(json.dumps(one) for one in all) + "\n  ]"
        with open(os.path.join(to, name + ".json"), "w") as f:
            f.write('{\n  "vllm": %s,\n  "config": %s,\n  "requests": %s,\n  "steps": %s\n}\n' % (
                json.dumps(version), json.dumps(dict(settings, block_tokens=BLOCK)), lines(r.requests), lines(r.steps)))
        print(name, len(r.steps), "steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
