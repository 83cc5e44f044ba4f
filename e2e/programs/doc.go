// Package programs builds the programs of this repository for tests.
//
// What enters is a list of names; what leaves is a directory with their executables, as `make build` makes them: static, and
// out of the tree as it is now. All test packages of one run share the work: executables are kept in bin/test of the checkout,
// where the Go command rebuilds only what has changed, and each call gets hard links to them in a directory of its own.
//
// It starts nothing, and it builds no program with a build tag or with the race detector.
package programs
