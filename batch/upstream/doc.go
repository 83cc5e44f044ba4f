// Package upstream sends requests of batches and queues to an OpenAI server: the gateway in front of Tandem's picker, or an engine.
//
// Requests enter a [Client], from batch/worker and batch/queue; what leaves are their answers. The Client names an objective that has them yield
// to online traffic, sends as many at a time as its [Pacer] finds that the upstream can take, and tries again what another try may change.
//
// The package does not decide what runs on the engines: the picker's flow control does, by the objective. It stores nothing.
package upstream
