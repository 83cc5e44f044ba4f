// Package docs holds the pages for users and the tests that keep them true.
//
// The tests read README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and every page of this folder. They follow the links,
// check the commands, and run those of howto with the servers that they start. They compile the Go examples, and compare the
// names of flags, metrics, headers, reasons, plugins and span attributes with the source. `make docs` writes the generated
// parts anew: configuration.md, and the tables of flags.md.
//
// The package has no code except its tests.
package docs
