// Package worker has the lines of batches computed by an OpenAI server, the upstream: the gateway in front of Tandem's picker, or an
// engine.
//
// Open batches and their input files enter, from batch/store. What leaves are requests to the upstream, and the results of lines,
// as segments of output files. A [Worker]
//
//   - validates the input files of new batches, and cuts them into chunks;
//   - leases chunks, those of batches that are behind their window first, else from each batch in turn;
//   - sends the lines of a chunk in the order of their prompts, so that those with the same prefix find it in the KV cache, with an
//     objective that has them yield to online traffic, at the pace that batch/upstream finds;
//   - ends batches whose lines all have a result.
//
// A line may be sent more than once, always with the same x-request-id; its result counts once (see batch/store). Results that are
// older than a second are durable, so that a worker that is killed loses little of what engines have computed.
//
// The package does not decide what runs on the engines: the picker's flow control does, by the objective. It serves no API.
package worker
