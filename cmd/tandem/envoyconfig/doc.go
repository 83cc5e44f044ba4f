// Package envoyconfig is the command tandem envoy-config. In go flags; out comes a complete bootstrap of Envoy for the
// user to keep, edit and run. The bootstrap itself is epp/extproc's.
package envoyconfig
