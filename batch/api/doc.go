// Package api serves OpenAI's Batch API: /v1/files and /v1/batches.
//
// HTTP requests enter. Uploads are streamed into batch/blob, and what they are goes to batch/store; nothing of a file is kept in memory.
// What leaves are OpenAI's objects, and errors in OpenAI's form with a status that says whose fault it is. The lines of an input file are
// read when a batch is created from it, by batch/worker: a file with errors becomes a batch that has failed, with the number of each line.
//
// A tenant sees only its own files and batches. Tenants are told apart by their API key, or by a header that a gateway sets; keys are
// hashed and not checked: that is the business of the gateway.
package api
