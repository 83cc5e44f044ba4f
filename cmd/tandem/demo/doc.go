// Package demo implements the command tandem demo, which runs a whole P/D stack on this machine and proves that it works.
//
// It takes a folder with Tandem's programs. It prints a report of how a mixed workload was served (package report formats
// it), with one line for each check, and returns exit code 1 if any check fails. Simulated engines, sidecars, the
// endpoint picker and a proxy run as processes on free ports of the loopback interface (package stack starts them). One more
// engine, the reference, runs without any of them. Stack and reference get the same requests, and their tokens are compared.
// Which pods served a request is taken from the sidecars' spans.
// Last, the demo makes a decode leg fail, so that the sidecar has to release what prefill keeps for it. Then it ends all processes. With
// --transport nixl the real NIXL library moves the KV.
//
// After that the demo compares local prefill with P/D. The same load goes to two stacks in turns: to one in which each engine serves
// whole requests, and to one in which half of them prefill for others. The engines are simulated, so the figures are those of a
// model; how late requests are sent tells whether the machine kept up with it.
//
// The engines simulate those of vLLM, SGLang or TensorRT-LLM. All that differs between them is in the descriptions of engine.go.
//
// The demo does not measure the performance of Tandem, build programs or draw pictures.
package demo
