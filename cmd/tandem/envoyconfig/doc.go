// Package envoyconfig is the command tandem envoy-config. In go flags; out comes a complete bootstrap of Envoy for the
// user to keep, edit and run. Package epp/extproc/envoyconf writes the bootstrap.
package envoyconfig
