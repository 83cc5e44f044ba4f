// Package policies compares what decides between local and remote prefill on real engines.
//
// Its test starts a pair of vLLM engines on CPU, and puts a stack before them for each policy: cost-pd-decider, always local, always remote, and a
// threshold of 16 uncached tokens. The stacks have the engines in common. tandem load compares the first one with each of the others under a mixed load,
// in alternating rounds, and judges. `make test-policies` runs it: 7 GB of disk, 8 GB of memory, and half an hour in which nothing else should run.
package policies
