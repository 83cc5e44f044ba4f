// Package demo implements the command tandem demo, which runs a whole P/D stack on this machine and proves that it works.
//
// It takes a folder with Tandem's programs. It prints a report of how a mixed workload was served (package report formats
// it), with one line for each promise, and returns exit code 1 if any promise is broken. Simulated engines, sidecars, the
// endpoint picker and a proxy run as processes on free ports of the loopback interface (package stack starts them). One more
// engine, the reference, runs without any of them. Stack and reference get the same requests, and their tokens are compared.
// Which pods served a request is taken from the sidecars' spans.
// Last, the demo makes a decode leg fail, so that the sidecar has to release the hand-off. Then it ends all processes. With
// --transport nixl the real NIXL library moves the KV.
//
// The demo does not measure performance, build programs or draw pictures.
package demo
