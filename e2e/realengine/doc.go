// Package realengine runs the processes of a real engine for tests, whichever engine it is: packages vllm and sglang say how
// to start theirs.
//
// A command enters; an [Engine] leaves, with methods that do to it what happens to engines: it can be paused, resumed, killed,
// and restarted at its address. An engine is several processes, which all methods treat as one.
//
// [Find] returns the programs and the model, which make puts into .tools. If the test's process is killed, Linux kills the
// engine with it.
package realengine
