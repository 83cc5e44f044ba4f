"""What users of the stock OpenAI client do, against a Tandem stack. openai_test.go starts the stack and runs one class:

    OPENAI_BASE_URL=http://HOST:PORT/v1 OPENAI_API_KEY=any MODEL=... PLAIN_URL=http://HOST:PORT/v1 python client.py Answers

PLAIN_URL is an undisturbed engine, which tells what is right. Of every call whose body has to reach the engines as it was
sent, one line of JSON goes to stdout.
"""

import asyncio
import json
import os
import unittest

import openai

MODEL = os.environ["MODEL"]
NOT_COMPARED = {"id", "created", "system_fingerprint", "prompt_tokens_details"}  # differ by call, engine, and cache

TOOLS = [{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place, in °C — “now”.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "maximum": 1e2}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "prompt",
        "schema": {"type": "object", "properties": {"model": {"type": "string"}, "n": {"const": 3}}},
    },
}


def prompt(name, words):
    """A text that nobody has seen, since prefixes are cached."""
    return " ".join([name] + ["the cache of a block is token and prefill to decode,"] * (words // 10))


SHORT, LONG = 10, 200  # words; below and above the threshold of the stack
FORCED, BYPASSED = (SHORT, "force", "remote;reason=forced"), (LONG, "bypass", "local;reason=bypassed")
ALL = ((SHORT, None, "local;reason=short-prompt"), (LONG, None, "remote;reason=uncached"), FORCED, BYPASSED)


def chat(name, words, **more):
    messages = [{"role": "user", "content": prompt(name, words)}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0} | more


def text(name, words, **more):
    return {"model": MODEL, "prompt": prompt(name, words), "max_tokens": 8, "temperature": 0} | more


def comparable(value):
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in NOT_COMPARED}
    if isinstance(value, list):
        return [comparable(v) for v in value]
    return value


def contents(chunks):
    """A stream without the cuts between its chunks, which are the engine's to make, and their repeated members."""
    out = {"text": "", "finish": None, "usage": None}
    for chunk in chunks:
        for choice in chunk.choices:
            out["text"] += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
            out["finish"] = choice.finish_reason or out["finish"]
        if chunk.usage is not None:
            out["usage"] = comparable(chunk.usage.to_dict())
    return out


class Case(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI()  # as the environment says: base URL and key
        self.addCleanup(self.client.close)


class Answers(Case):
    """Calls that succeed."""

    def setUp(self):
        super().setUp()
        self.plain = openai.OpenAI(base_url=os.environ["PLAIN_URL"])
        self.addCleanup(self.plain.close)

    def call(self, api, name, body, decision, mode=None):
        """One call, whose answer must be that of the plain engine, and whose headers must tell the decision."""
        headers = {"x-request-id": name} | ({"x-tandem-pd": mode} if mode else {})
        raw = api(self.client).with_raw_response.create(**body, extra_headers=headers)
        self.assertEqual(raw.headers["x-tandem-pd-decision"].split(";attempts")[0], decision)
        got, want = raw.parse(), api(self.plain).create(**body)
        if body.get("stream"):
            got, want = contents(got), contents(want)
            self.assertIsNotNone(got["usage"], "include_usage brought no usage")
        else:
            got, want = comparable(got.to_dict()), comparable(want.to_dict())
        self.assertEqual(got, want)
        print(json.dumps({"id": name, "sent": raw.http_request.content.decode(), "remote": decision.startswith("remote")}))
        return raw

    def every_way(self, api, kind, make, ways=ALL):
        for stream in (False, True):
            more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            for words, mode, decision in ways:
                name = f"{kind}-{'stream' if stream else 'whole'}-{words}-{mode}"
                with self.subTest(name):
                    self.call(api, name, make(name, words, **more), decision, mode)

    def test_chat(self):
        self.every_way(lambda c: c.chat.completions, "chat", chat)

    def test_completions(self):
        self.every_way(lambda c: c.completions, "text", text)

    def test_tools(self):
        more = {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False, "response_format": SCHEMA, "seed": 2**62 + 1,
                "logit_bias": {"5": -100}, "metadata": {"Ünïcode": "\u2028 \U0001f600"}, "stop": ["\n\n"]}
        self.every_way(lambda c: c.chat.completions, "tools", lambda name, words, **kw: chat(name, words, **kw, **more),
                       (FORCED, BYPASSED))

    def test_tool_turn(self):
        """The turn after a tool call: messages that are not text, and content in parts."""
        def make(name, words, **more):
            body = chat(name, words, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}, **more)
            body["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"stream": true, "kv_transfer_params": 1}'},
                {"role": "user", "content": [{"type": "text", "text": "And tomorrow?"}]},
            ]
            return body
        self.every_way(lambda c: c.chat.completions, "turn", make, (FORCED, BYPASSED))

    def test_several_choices(self):
        raw = self.call(lambda c: c.chat.completions, "several", chat("several", LONG, n=2, temperature=0.5, seed=7),
                        "local;reason=not-splittable")
        self.assertEqual(len(raw.parse().choices), 2)

    def test_timing(self):
        raw = self.client.chat.completions.with_raw_response.create(**chat("timing", LONG))
        timing = dict(entry.strip().split(";dur=") for entry in raw.headers["server-timing"].split(","))
        self.assertLessEqual({"epp", "recv", "prefill", "handoff", "first", "decode"}, timing.keys())
        self.assertTrue(all(float(ms) >= 0 for ms in timing.values()))

    def test_models(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])


class Errors(Case):
    """Calls that fail, as exceptions. The engine's faults are those of openai_test.go, by request id."""

    def create(self, client=None, **more):
        return (client or self.client.with_options(max_retries=0)).chat.completions.create(**chat("errors", SHORT) | more)

    def failure(self, kind, status, **more):
        with self.assertRaises(kind) as caught:
            self.create(**more)
        self.assertIs(type(caught.exception), kind)
        self.assertEqual(caught.exception.status_code, status)
        self.assertTrue(caught.exception.message)
        self.assertIsInstance(caught.exception.body, dict)
        return caught.exception

    def test_bad_mode(self):
        for stream in (False, True):
            e = self.failure(openai.BadRequestError, 400, stream=stream, extra_headers={"x-tandem-pd": "perhaps"})
            self.assertEqual((e.code, e.type), ("bad-pd-header", "invalid_request_error"))
            self.assertEqual(e.response.headers["x-tandem-pd-decision"], "refused;reason=bad-pd-header")

    def test_not_splittable(self):
        e = self.failure(openai.BadRequestError, 400, n=2, extra_headers={"x-tandem-pd": "force"})
        self.assertEqual(e.code, "not-splittable")

    def test_engine_refuses(self):
        for mode in ("force;fallback", "bypass"):
            self.failure(openai.BadRequestError, 400, max_tokens=-1, extra_headers={"x-tandem-pd": mode})

    def test_unknown_model(self):
        for mode in ("force", "bypass"):
            for stream in (False, True):
                e = self.failure(openai.NotFoundError, 404, model="nobody", stream=stream, extra_headers={"x-tandem-pd": mode})
                self.assertIn("nobody", e.message)

    def test_unknown_path(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.files.list()

    def test_engine_is_full(self):
        self.failure(openai.RateLimitError, 429, extra_headers={"x-request-id": "fault-429"})

    def test_engine_fails(self):
        self.failure(openai.InternalServerError, 500, extra_headers={"x-request-id": "fault-500"})

    def test_retry(self):
        raw = self.client.chat.completions.with_raw_response.create(
            **chat("retry", SHORT), extra_headers={"x-request-id": "fault-once"})
        self.assertEqual(raw.retries_taken, 1)
        self.assertTrue(raw.parse().choices[0].message.content)

    def test_timeout(self):
        for mode in ("force", "bypass"):
            with self.assertRaises(openai.APITimeoutError):
                self.create(self.client.with_options(max_retries=0, timeout=0.5),
                            extra_headers={"x-request-id": "fault-hang", "x-tandem-pd": mode})


class EmptyPool(Case):
    """Nobody is there to serve."""

    def test_no_endpoint(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            self.client.with_options(max_retries=0).chat.completions.create(**chat("empty", SHORT))
        e = caught.exception
        self.assertEqual((e.status_code, e.code, e.type), (503, "no-endpoint", "service_unavailable_error"))
        self.assertEqual(e.response.headers["retry-after"], "1")
        self.assertEqual(e.response.headers["x-tandem-pd-decision"], "refused;reason=no-endpoint")


class Cancellation(Case):
    """Streams that are left at their first token. Each would go on for long; nothing may be left of them."""

    TOKENS = 4096  # more than that is refused

    def test_close(self):
        for mode in ("force", "bypass"):
            stream = self.client.chat.completions.create(**chat("leave " + mode, LONG) | {"max_tokens": self.TOKENS}, stream=True,
                                                         extra_headers={"x-tandem-pd": mode})
            self.assertTrue(any(chunk.choices and chunk.choices[0].delta.content for chunk in stream))  # reads up to the first
            stream.close()

    def test_with(self):
        with self.client.chat.completions.with_streaming_response.create(
                **chat("with", LONG) | {"max_tokens": self.TOKENS}, stream=True) as response:
            self.assertEqual(response.headers["x-tandem-pd-decision"].split(";attempts")[0], "remote;reason=uncached")
            next(response.iter_lines())

    def test_task(self):
        async def leave(mode):
            async with openai.AsyncOpenAI() as client:
                begun = asyncio.Event()

                async def read():
                    async for _ in await client.chat.completions.create(
                            **chat("task " + mode, LONG) | {"max_tokens": self.TOKENS}, stream=True,
                            extra_headers={"x-tandem-pd": mode}):
                        begun.set()

                task = asyncio.create_task(read())
                await begun.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        for mode in ("force", "bypass"):
            asyncio.run(leave(mode))


if __name__ == "__main__":
    unittest.main()
