// Package envoyconfig implements the command tandem envoy-config. It takes flags and prints a complete Envoy bootstrap for
// the user to keep, edit and run. Package epp/extproc/envoyconf generates it.
package envoyconfig
