// Package programs builds the programs of this repository for tests.
//
// A list of names enters. A directory with their executables leaves, built as `make build` builds them: static, and from the
// current tree. All test packages of one run share the work: executables are kept in bin/test of the checkout, where the Go
// command rebuilds only what has changed, and each call gets hard links to them in its own directory.
//
// The package starts nothing, and it builds no program with a build tag or with the race detector.
package programs
