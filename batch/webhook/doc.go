// Package webhook tells a server of the operator's when batches have ended.
//
// Batches that have ended enter, from batch/store; what leaves are requests with OpenAI's events batch.completed, batch.failed, batch.expired and
// batch.cancelled, signed as Standard Webhooks says. An event is sent until the server has answered with 2xx, for three days, also by a process that
// starts later. The server may get it more than once, with the same webhook-id.
//
// The address is the operator's: no client can have the package send anything elsewhere, and redirects are not followed. An event names the
// batch, and holds nothing of its contents.
package webhook
