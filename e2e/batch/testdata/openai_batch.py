"""What a user of OpenAI's stock client does with batches. The base URL and the key come from the environment."""

import io
import json
import os
import sys
import time

import openai

ENDPOINT = "/v1/chat/completions"


def lines(n, **body):
    for i in range(n):
        request = {"model": os.environ["MODEL"], "max_tokens": 4, "messages": [{"role": "user", "content": f"Question {i}"}], **body}
        yield json.dumps({"custom_id": f"line-{i}", "method": "POST", "url": ENDPOINT, "body": request})


def upload(client, content):
    return client.files.create(file=("requests.jsonl", io.BytesIO("\n".join(content).encode())), purpose="batch")


def create(client, file, **more):
    return client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", **more)


def wait(client, batch):
    end = time.monotonic() + 90
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < end, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def refused(status, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except openai.APIStatusError as error:
        assert error.status_code == status, error
        assert error.body["message"] and error.body["type"], error.body
        return error
    raise AssertionError(f"{call} was not refused")


def main():
    client = openai.OpenAI(max_retries=0)
    n = 120

    # Upload, create, wait, download.
    file = upload(client, lines(n))
    assert client.files.retrieve(file.id) == file
    batch = create(client, file, metadata={"team": "a"})
    assert batch.status == "validating" and batch.metadata == {"team": "a"}, batch
    refused(409, client.files.delete, file.id)
    batch = wait(client, batch)
    assert batch.status == "completed" and batch.error_file_id is None and batch.completed_at >= batch.created_at, batch
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (n, n, 0), batch
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [a["custom_id"] for a in answers] == [f"line-{i}" for i in range(n)]
    for a in answers:
        completion = openai.types.chat.ChatCompletion.model_validate(a["response"]["body"])
        assert a["error"] is None and a["response"]["status_code"] == 200 and completion.usage.completion_tokens == 4, a

    # Lines that the engine refuses.
    batch = wait(client, create(client, upload(client, lines(3, max_tokens=-1))))
    assert batch.status == "completed" and batch.output_file_id is None and batch.request_counts.failed == 3, batch
    for line in client.files.content(batch.error_file_id).text.splitlines():
        response = json.loads(line)["response"]
        assert response["status_code"] == 400 and response["body"]["error"]["message"], line

    # A file with mistakes.
    batch = wait(client, create(client, upload(client, [*lines(2), "not JSON", *lines(1)])))
    found = {(e.line, e.code) for e in batch.errors.data}
    assert batch.status == "failed" and found == {(3, "invalid_json_line"), (4, "duplicate_custom_id")}, batch

    # Cancel.
    batch = create(client, upload(client, lines(500, max_tokens=2000)))
    batch = client.batches.cancel(batch.id)
    assert batch.status in ("cancelling", "cancelled"), batch
    assert wait(client, batch).status == "cancelled"
    refused(409, client.batches.cancel, batch.id)

    # Lists, page by page.
    ids = [b.id for b in client.batches.list(limit=2)]
    assert len(ids) == len(set(ids)) == 4 and ids[0] == batch.id, ids
    files = [f.id for f in client.files.list(limit=3)]
    assert files == [f.id for f in client.files.list()] and len(set(files)) == len(files) >= 6, files

    # Mistakes of clients, and other tenants.
    assert refused(400, client.batches.create, input_file_id="file-x", endpoint=ENDPOINT, completion_window="24h").param == "input_file_id"
    refused(400, client.batches.create, input_file_id=file.id, endpoint="/v1/models", completion_window="24h")
    refused(400, client.files.create, file=("a.jsonl", b"{}"), purpose="fine-tune")
    refused(404, client.batches.retrieve, "batch_x")
    refused(404, client.files.content, "file-x")
    other = openai.OpenAI(max_retries=0, api_key="another")
    refused(404, other.files.retrieve, file.id)
    refused(404, other.batches.retrieve, batch.id)
    assert not other.batches.list().data

    # Delete.
    assert client.files.delete(file.id).deleted
    refused(404, client.files.retrieve, file.id)


if __name__ == "__main__":
    sys.exit(main())
