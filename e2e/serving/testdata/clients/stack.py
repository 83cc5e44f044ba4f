"""What the scripts of the stock clients share: prompts, decisions, and what two answers have in common.

clients_test.go starts a Tandem stack and runs one class of a script, with

    OPENAI_BASE_URL, ANTHROPIC_BASE_URL   the stack
    OPENAI_API_KEY, ANTHROPIC_API_KEY     anything
    PLAIN_URL                             an undisturbed engine, which tells what is right
    MODEL                                 the model of both

Of every call whose body has to reach the engines as it was sent, one line of JSON goes to stdout.
"""

import asyncio
import json
import os

MODEL = os.environ["MODEL"]
PLAIN_URL = os.environ["PLAIN_URL"]

SHORT, LONG = 10, 200  # words; below and above the threshold of the stack
FORCED, BYPASSED = (SHORT, "force", "remote;reason=forced"), (LONG, "bypass", "local;reason=bypassed")
ALL = ((SHORT, None, "local;reason=short-prompt"), (LONG, None, "remote;reason=uncached"), FORCED, BYPASSED)

# What differs by call, engine, and cache.
NOT_COMPARED = {"id", "created", "created_at", "system_fingerprint", "prompt_tokens_details", "input_tokens_details"}
CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")  # of messages, whose input_tokens leave them out


def prompt(name, words):
    """A text that no engine has seen, since prefixes are cached."""
    return " ".join([name] + ["the cache of a block is token and prefill to decode,"] * (words // 10))


def headers(name, mode=None):
    return {"x-request-id": name} | ({"x-tandem-pd": mode} if mode else {})


def decision(response_headers):
    return response_headers["x-tandem-pd-decision"].split(";attempts")[0]


def comparable(value):
    if isinstance(value, list):
        return [comparable(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {k: comparable(v) for k, v in value.items() if k not in NOT_COMPARED}
    for tokens in CACHED:
        if tokens in out:
            out["input_tokens"] += out.pop(tokens) or 0
    return out


def report(api, name, sent, decided):
    """Tells clients_test.go of a call."""
    print(json.dumps({"api": api, "id": name, "sent": sent.decode(), "remote": decided.startswith("remote")}))


def every_way(test, kind, call, ways=ALL):
    """Calls call(name, words, stream, mode, decision) whole and streamed, in each of the ways."""
    for stream in (False, True):
        for words, mode, decided in ways:
            name = f"{kind}-{'stream' if stream else 'whole'}-{words}-{mode}"
            with test.subTest(name):
                call(name, words, stream, mode, decided)


async def cancel_at(begun, task):
    """Cancels a task when it has begun, and ends as the task does."""
    beginning = asyncio.create_task(begun.wait())
    await asyncio.wait({task, beginning}, return_when=asyncio.FIRST_COMPLETED)
    beginning.cancel()
    task.cancel()
    await task
