// Package bench measures a sidecar, an endpoint picker and the whole path, ours or another's, over their protocols only.
//
// In goes what to measure and for how long; out comes a table: what each program costs for one request, beside the least
// that a program in its place could cost, measured in the same minutes. That is the floor: a bare httputil.ReverseProxy for
// each leg of a sidecar, and for a picker an ext-proc server that parses nothing.
//
// Every series has programs of its own, fresh ones, each on the processor that is kept for them. The load and the engines,
// which answer without thinking, run in this process on the others; what they cost themselves is in the figures too. A
// series is measured in rounds, in which the programs take turns, so that a neighbour who makes the machine slow makes all
// of them slow. The figure that counts is CPU time per request, user and system, as the kernel accounts it; times on the
// clock depend on the machine and are shown beside it.
//
// It measures on Linux only. It proves nothing about correctness, and its engines compute nothing: that is for tandem demo
// and the tests.
package bench
