// Package queue answers requests from message queues, on capacity that online traffic leaves.
//
// Messages enter from a [Source], whose format is that of llm-d's Async Processor: a request, its id and its deadline. What leaves is one
// result for each message, in the list or subject that its producer reads. A [Consumer]
//
//   - claims messages while its gates are open: hours of the day, a budget of messages, and how full the picker says that engines are;
//   - has their requests answered by batch/upstream, which paces and repeats them;
//   - renews its claims, so that those of a consumer that is killed, and only those, go to another one;
//   - answers messages whose deadline has passed, that are cancelled or invalid, with an error, and keeps those that failed as dead letters.
//
// A request may be sent more than once, always with the same x-request-id. A message has one result: a Source stores it together with the end of the
// claim, or where a second one is refused.
//
// [Redis] is a sorted set, [NATS] a subject of JetStream, [Kafka] a topic, [SQS] a queue of Amazon's, and [PubSub] a subscription of Google's, where a
// result may be stored twice. The package decides neither what runs on the engines, nor who may write to a queue.
package queue
