// Package drain is the command tandem drain: it waits until a pod that is to end has nothing left to do. It is what the
// preStop hook of an engine's container runs, because an engine that gets SIGTERM cuts its streams at once and loses the KV
// caches that nobody has read yet.
//
// In go the addresses of the pod's own parts; out comes a line for each change of what is left, and exit code 0 once nothing
// is, or 1 when the time is over. What is gone has nothing left. Two looks in a row must agree, since a request may just be
// on its way between sidecar and engine.
//
// With --install it does none of that: it copies its own program to where containers without it can run it.
//
// It ends nothing and takes no pod out of rotation, with one exception: an Envoy is told to fail its health checks and to
// have its clients reconnect elsewhere, because nobody else tells it.
package drain
