// Package e2e holds the tests of the whole: programs of this repository, started as a user starts them, in front of
// engines. The same cases run on the simulated engine in every `make test`, and with the build tag vllm on a real vLLM pair
// that the environment names (see vllm_test.go).
//
// Nothing in this package is imported by anything.
package e2e
