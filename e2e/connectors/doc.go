// Package connectors tests the sidecar on pairs of real vLLM engines that hand over by another connector than NIXL's. The package
// has tests only, and `make test-connectors` runs them: each pair has a minute of start, and a plain engine with the same weights
// says what the answers must be.
package connectors
