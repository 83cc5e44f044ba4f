"""What users of the stock Anthropic client do, against a Tandem stack. stack.py says how it is run."""

import asyncio
import unittest

import anthropic

from stack import ALL, BYPASSED, FORCED, LONG, MODEL, PLAIN_URL, SHORT, cancel_at, comparable, decision, every_way, headers, prompt, report

TOOL = {
    "name": "weather",
    "description": "The weather at a place, in °C — “now”.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "integer", "maximum": 1e2}},
        "required": ["place"],
    },
}


def message(name, words, **more):
    said = [{"role": "user", "content": prompt(name, words)}]
    sampling = {"extra_body": {"temperature": 0}}  # the client has no such member
    return {"model": MODEL, "max_tokens": 8, "messages": said} | sampling | more


class Case(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic()  # as the environment says: base URL and key
        self.addCleanup(self.client.close)


class Answers(Case):
    """Calls that succeed."""

    def setUp(self):
        super().setUp()
        self.plain = anthropic.Anthropic(base_url=PLAIN_URL)
        self.addCleanup(self.plain.close)

    def call(self, name, body, stream, mode, decided):
        """One call, whose answer must be that of the plain engine, and whose headers must tell the decision."""
        if stream:
            with self.client.messages.stream(**body, extra_headers=headers(name, mode)) as events:
                got, response = events.get_final_message(), events.response
            with self.plain.messages.stream(**body) as events:
                want = events.get_final_message()
        else:
            raw = self.client.messages.with_raw_response.create(**body, extra_headers=headers(name, mode))
            got, response = raw.parse(), raw.http_response
            want = self.plain.messages.create(**body)
        self.assertEqual(decision(response.headers), decided)
        self.assertEqual(comparable(got.to_dict()), comparable(want.to_dict()))
        self.assertGreater(got.usage.output_tokens, 0)
        report("messages", name, response.request.content, decided)

    def every_way(self, kind, make, ways=ALL):
        every_way(self, kind, lambda name, words, stream, mode, decided: self.call(name, make(name, words), stream, mode, decided), ways)

    def test_messages(self):
        self.every_way("message", message)

    def test_system(self):
        more = {"system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}], "stop_sequences": ["\n\n"],
                "metadata": {"user_id": "Ünïcode \u2028 \U0001f600"}, "extra_body": {"temperature": 0, "top_k": 5, "top_p": 0.5}}
        self.every_way("message-system", lambda name, words: message(name, words, **more), (FORCED, BYPASSED))

    def test_tool_turn(self):
        """The turn after a tool call: content that is not text."""
        def make(name, words):
            body = message(name, words, tools=[TOOL], tool_choice={"type": "auto"})
            body["messages"] += [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Bern"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"stream": true, "kv_transfer_params": 1}'},
                    {"type": "text", "text": "And tomorrow?"}]},
            ]
            return body
        self.every_way("message-turn", make, (FORCED, BYPASSED))

    def test_beta(self):
        """The client adds ?beta=true to the path."""
        for words, mode, decided in ALL:
            body = message(f"beta-{mode}", words)
            raw = self.client.beta.messages.with_raw_response.create(**body, extra_headers=headers(f"beta-{words}-{mode}", mode))
            self.assertEqual(decision(raw.headers), decided)
            self.assertEqual(raw.parse().content[0].text, self.plain.messages.create(**body).content[0].text)

    def test_count(self):
        """Counting is not generating: the request reaches the decode engine as it is, whatever the client forces."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt("count", LONG)}]}
        raw = self.client.messages.with_raw_response.count_tokens(**body, extra_headers=headers("count", "force"))
        self.assertNotIn("x-tandem-pd-decision", raw.headers)
        self.assertEqual(raw.parse().input_tokens, self.plain.messages.count_tokens(**body).input_tokens)
        self.assertGreater(raw.parse().input_tokens, LONG)
        report("count_tokens", "count", raw.http_request.content, "local")


class Errors(Case):
    """Calls that fail, as exceptions. The engine's faults are those of clients_test.go, by request id."""

    def create(self, client=None, **more):
        return (client or self.client.with_options(max_retries=0)).messages.create(**message("errors", SHORT) | more)

    def failure(self, kind, status, error, **more):
        with self.assertRaises(kind) as caught:
            self.create(**more)
        e = caught.exception
        self.assertEqual((type(e), e.status_code, e.type), (kind, status, error))
        self.assertTrue(e.body["error"]["message"])
        return e

    def test_bad_mode(self):
        for stream in (False, True):
            e = self.failure(anthropic.BadRequestError, 400, "invalid_request_error", stream=stream, extra_headers={"x-tandem-pd": "perhaps"})
            self.assertEqual(e.response.headers["x-tandem-pd-decision"], "refused;reason=bad-pd-header")

    def test_unknown_model(self):
        for mode in ("force", "bypass"):
            for stream in (False, True):
                with self.assertRaises(anthropic.NotFoundError) as caught:
                    self.create(model="nobody", stream=stream, extra_headers={"x-tandem-pd": mode})
                self.assertIn("nobody", caught.exception.body["error"]["message"])

    def test_engine_is_full(self):
        with self.assertRaises(anthropic.RateLimitError):
            self.create(extra_headers={"x-request-id": "fault-429"})

    def test_engine_fails(self):
        with self.assertRaises(anthropic.InternalServerError):
            self.create(extra_headers={"x-request-id": "fault-500"})

    def test_retry(self):
        raw = self.client.messages.with_raw_response.create(**message("retry", SHORT), extra_headers={"x-request-id": "fault-once"})
        self.assertEqual(raw.retries_taken, 1)
        self.assertTrue(raw.parse().content[0].text)

    def test_timeout(self):
        for mode in ("force", "bypass"):
            with self.assertRaises(anthropic.APITimeoutError):
                self.create(self.client.with_options(max_retries=0, timeout=0.5), extra_headers=headers("fault-hang", mode))

    def test_stream_breaks(self):
        for mode in ("force", "bypass"):
            text = ""
            with self.assertRaises(anthropic.APIStatusError) as caught:
                with self.client.messages.stream(**message("breaks", SHORT), extra_headers=headers("fault-break", mode)) as events:
                    for piece in events.text_stream:
                        text += piece
            self.assertEqual(caught.exception.body["error"]["type"], "api_error")
            self.assertTrue(text)


class EmptyPool(Case):
    """No endpoint is there to serve."""

    def test_no_endpoint(self):
        messages = self.client.with_options(max_retries=0).messages
        body = message("empty", SHORT)
        for call in (lambda: messages.create(**body), lambda: messages.count_tokens(model=MODEL, messages=body["messages"])):
            with self.assertRaises(anthropic.APIStatusError) as caught:
                call()
            e = caught.exception
            self.assertEqual((e.status_code, e.type), (503, "overloaded_error"))
            self.assertEqual(e.response.headers["retry-after"], "1")
            self.assertEqual(e.response.headers["x-tandem-pd-decision"], "refused;reason=no-endpoint")


class Cancellation(Case):
    """Streams that are left at their first token. Each would go on for long; nothing may be left of them."""

    TOKENS = 4096  # more than that is refused

    def test_with(self):
        for mode in ("force", "bypass"):
            body = message("with " + mode, LONG, max_tokens=self.TOKENS)
            with self.client.messages.stream(**body, extra_headers={"x-tandem-pd": mode}) as events:
                self.assertTrue(next(events.text_stream))

    def test_task(self):
        async def leave(mode):
            async with anthropic.AsyncAnthropic() as client:
                begun = asyncio.Event()

                async def read():
                    body = message("task " + mode, LONG, max_tokens=self.TOKENS)
                    async with client.messages.stream(**body, extra_headers={"x-tandem-pd": mode}) as events:
                        async for _ in events.text_stream:
                            begun.set()

                with self.assertRaises(asyncio.CancelledError):
                    await cancel_at(begun, asyncio.create_task(read()))

        for mode in ("force", "bypass"):
            asyncio.run(leave(mode))


if __name__ == "__main__":
    unittest.main()
