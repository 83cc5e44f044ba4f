// Package ranks tests pools of pods with many data-parallel ranks, as wide expert parallelism has them: each rank is an engine, and an
// endpoint with a port of its own.
//
// The package has tests only. Engines are simulated, and run in the test's process with the sidecars; the picker and the gateway are
// programs. What is compared are counts: which rank got how many requests, and who read whose KV cache. No test measures times.
package ranks
