// Package connectors tests the sidecar on pairs of real vLLM engines that hand over by another connector than NIXL's. The package
// has tests only, and `make test-connectors` runs them: each pair has a minute of start, and a plain engine with the same weights
// says what the answers must be.
//
// Each pair but that of ranks has a few rounds of random bodies and damaged hand-offs, too; CONNECTORSFLAGS=-connectors.fuzz=3m has minutes of
// them. A run that fails prints the seed that makes the same bodies and damage again.
package connectors
