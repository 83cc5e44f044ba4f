// Package gateway implements the command tandem gateway, which runs the embedded gateway of package stack/gateway as a
// process, for trials without Envoy.
package gateway
