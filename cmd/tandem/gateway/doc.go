// Package gateway is the command tandem gateway: the embedded gateway as a process, for trying Tandem out where Envoy is
// absent. The gateway itself is e2e/gateway's.
package gateway
