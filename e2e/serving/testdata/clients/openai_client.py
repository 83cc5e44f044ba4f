"""What users of the stock OpenAI client do, against a Tandem stack. stack.py says how it is run."""

import asyncio
import itertools
import unittest

import openai

from stack import ALL, BYPASSED, FORCED, LONG, MODEL, PLAIN_URL, SHORT, cancel_at, comparable, decision, every_way, headers, prompt, report

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
RESPONSE_TOOL = {"type": "function"} | TOOLS[0]["function"]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "prompt",
        "schema": {"type": "object", "properties": {"model": {"type": "string"}, "n": {"const": 3}}},
    },
}


def chat(name, words, **more):
    messages = [{"role": "user", "content": prompt(name, words)}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0} | more


def text(name, words, **more):
    return {"model": MODEL, "prompt": prompt(name, words), "max_tokens": 8, "temperature": 0} | more


def response(name, words, **more):
    return {"model": MODEL, "instructions": "Be short.", "input": prompt(name, words), "max_output_tokens": 8, "temperature": 0} | more


# The client's object of each API.
APIS = {"chat": lambda c: c.chat.completions, "completions": lambda c: c.completions, "responses": lambda c: c.responses}


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


def response_contents(events):
    """The same of a stream of responses, whose last event has the whole answer."""
    events = list(events)
    assert [e.sequence_number for e in events] == list(range(len(events))), "events are missing"
    return {
        "types": [kind for kind, _ in itertools.groupby(e.type for e in events)],
        "text": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
        "whole": comparable(events[-1].response.to_dict()),
        "usage": comparable(events[-1].response.usage.to_dict()),
    }


class Case(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI()  # as the environment says: base URL and key
        self.addCleanup(self.client.close)


class Answers(Case):
    """Calls that succeed."""

    def setUp(self):
        super().setUp()
        self.plain = openai.OpenAI(base_url=PLAIN_URL + "/v1")
        self.addCleanup(self.plain.close)

    def call(self, api, name, body, decided, mode=None):
        """One call, whose answer must be that of the plain engine, and whose headers must tell the decision."""
        raw = APIS[api](self.client).with_raw_response.create(**body, extra_headers=headers(name, mode))
        self.assertEqual(decision(raw.headers), decided)
        got, want = raw.parse(), APIS[api](self.plain).create(**body)
        if body.get("stream"):
            read = response_contents if api == "responses" else contents
            got, want = read(got), read(want)
            self.assertIsNotNone(got["usage"], "the stream brought no usage")
        else:
            got, want = comparable(got.to_dict()), comparable(want.to_dict())
        self.assertEqual(got, want)
        report(api, name, raw.http_request.content, decided)
        return raw

    def every_way(self, api, kind, make, ways=ALL):
        def call(name, words, stream, mode, decided):
            more = {"stream": True} if stream else {}
            if stream and api != "responses":  # whose streams have the usage anyway
                more["stream_options"] = {"include_usage": True}
            self.call(api, name, make(name, words, **more), decided, mode)
        every_way(self, kind, call, ways)

    def test_chat(self):
        self.every_way("chat", "chat", chat)

    def test_completions(self):
        self.every_way("completions", "text", text)

    def test_responses(self):
        self.every_way("responses", "response", response)

    def test_response_tools(self):
        """Functions, which the client runs, and a conversation in place of a text."""
        def make(name, words, **more):
            said = [{"role": "user", "content": [{"type": "input_text", "text": prompt(name, words)}]},
                    {"role": "assistant", "content": "It rains."}, {"role": "user", "content": "And tomorrow?"}]
            return response(name, words, **more) | {"input": said, "tools": [RESPONSE_TOOL], "tool_choice": "auto", "store": False}
        self.every_way("responses", "response-tools", make, (FORCED, BYPASSED))

    def test_response_stream(self):
        """The client's own way to read a stream, which minds the order of the events."""
        def final(client, **more):
            with client.responses.stream(**response("events", LONG), **more) as events:
                return comparable(events.get_final_response().to_dict())
        self.assertEqual(final(self.client, extra_headers=headers("events", "force")), final(self.plain))

    def test_tools(self):
        more = {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False, "response_format": SCHEMA, "seed": 2**62 + 1,
                "logit_bias": {"5": -100}, "metadata": {"Ünïcode": "\u2028 \U0001f600"}, "stop": ["\n\n"]}
        self.every_way("chat", "tools", lambda name, words, **kw: chat(name, words, **kw, **more), (FORCED, BYPASSED))

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
        self.every_way("chat", "turn", make, (FORCED, BYPASSED))

    def test_several_choices(self):
        raw = self.call("chat", "several", chat("several", LONG, n=2, temperature=0.5, seed=7),
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
    """Calls that fail, as exceptions. The engine's faults are those of clients_test.go, by request id."""

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

    def test_responses(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(**response("errors", SHORT), extra_headers={"x-tandem-pd": "perhaps"})
        self.assertEqual((caught.exception.code, caught.exception.type), ("bad-pd-header", "invalid_request_error"))
        for mode in ("force", "bypass"):
            with self.assertRaises(openai.NotFoundError):
                self.client.responses.create(**response("errors", SHORT) | {"model": "nobody"}, extra_headers={"x-tandem-pd": mode})

    def test_stream_breaks(self):
        for mode in ("force", "bypass"):
            with self.assertRaises(openai.APIError) as caught:
                list(self.create(stream=True, extra_headers=headers("fault-break", mode)))
            self.assertEqual(caught.exception.code, "internal")

    def test_response_stream_breaks(self):
        """The client gives the event, and raises nothing."""
        for mode in ("force", "bypass"):
            events = list(self.client.responses.create(**response("breaks", SHORT), stream=True, extra_headers=headers("fault-break", mode)))
            self.assertEqual((events[-1].type, events[-1].code, events[-1].sequence_number), ("error", "internal", len(events) - 1))
            self.assertTrue(any(e.type == "response.output_text.delta" for e in events))

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
    """No endpoint is there to serve."""

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

                with self.assertRaises(asyncio.CancelledError):
                    await cancel_at(begun, asyncio.create_task(read()))

        for mode in ("force", "bypass"):
            asyncio.run(leave(mode))


if __name__ == "__main__":
    unittest.main()
