// Package policies compares what decides between local and remote prefill on real engines.
//
// Its test starts engines on CPU, and puts a stack before them for each policy: cost-pd-decider, always local, always remote, and a threshold of
// 16 uncached tokens. The engines are a pair of vLLM or of SGLang, whose decode engine computes no prompts, so that what stays local goes to a plain engine. The
// stacks have the engines in common. tandem load compares the first one with each of the others under a mixed load, in alternating rounds, and judges.
// `make test-policies` runs it with vLLM: 7 GB of disk, 8 GB of memory, and half an hour in which nothing else should run; `make test-policies-sglang` with SGLang.
package policies
