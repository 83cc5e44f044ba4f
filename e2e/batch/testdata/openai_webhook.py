"""Reads events with OpenAI's stock client: a line of JSON for each on standard input, with the header and the body of the request."""

import json
import os
import sys

import openai

client = openai.OpenAI(webhook_secret=os.environ["SECRET"])
for line in sys.stdin:
    request = json.loads(line)
    event = client.webhooks.unwrap(request["body"], request["header"])
    print(event.type, event.data.id)
    try:
        client.webhooks.unwrap(request["body"].replace("batch_", "batch-"), request["header"])
    except openai.InvalidWebhookSignatureError:
        continue
    sys.exit("a changed event is accepted")
