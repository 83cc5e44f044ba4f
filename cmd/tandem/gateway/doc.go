// Package gateway is the command tandem gateway: the embedded gateway as a process, for trying Tandem out where Envoy is
// absent. The gateway itself is stack/gateway's.
package gateway
