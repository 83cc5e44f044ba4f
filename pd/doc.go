// Package pd holds what the endpoint picker, the routing sidecar and the simulated engine must agree on to serve one request
// on two pods: the roles of pods, the headers between the components, the client's P/D mode, the picker's plan, results and
// their reasons, the phases of the sidecar's clock, and refusals.
//
// Header values and label values enter as they came from the wire. The values that leave are checked, print in exactly the
// form that was parsed, and contain no address where a client can see them. The package does no I/O, starts no goroutine,
// decides nothing, and imports none of the packages that use it.
package pd
