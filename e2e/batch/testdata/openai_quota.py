"""What a user of OpenAI's stock client sees whose quota is used up: an error at once, without further tries."""

import json
import os

import openai

ENDPOINT = "/v1/chat/completions"
sent = []  # requests


def content(n):
    body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Hi"}]}
    return "\n".join(json.dumps({"custom_id": str(i), "method": "POST", "url": ENDPOINT, "body": body}) for i in range(n)).encode()


def over_quota(call, **kwargs):
    sent.clear()
    try:
        call(**kwargs)
    except openai.RateLimitError as error:
        assert error.code == "insufficient_quota" and error.type == "insufficient_quota", error.body
        assert len(sent) == 1, f"the client sent {len(sent)} requests"
        return error.body["message"]
    raise AssertionError(f"{call} was not refused")


def main():
    client = openai.OpenAI(http_client=openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}))
    file = client.files.create(file=("requests.jsonl", content(4)), purpose="batch")
    assert file.expires_at - file.created_at == 48 * 3600, file
    short = client.files.create(file=("requests.jsonl", content(1)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert short.expires_at - short.created_at == 3600, short
    assert "bytes" in over_quota(client.files.create, file=("requests.jsonl", content(20)), purpose="batch")

    new = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h"}
    client.batches.create(**new)
    client.batches.create(**new)
    assert "batches" in over_quota(client.batches.create, **new)
    other = openai.OpenAI(api_key="another", http_client=openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}))
    many = other.files.create(file=("requests.jsonl", content(9)), purpose="batch")
    assert "lines" in over_quota(other.batches.create, **{**new, "input_file_id": many.id})


if __name__ == "__main__":
    main()
