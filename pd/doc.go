// Package pd holds what the endpoint picker, the routing sidecar and the simulated engine must agree on to serve one
// request on two pods: the roles of pods, the headers between the parts, the user's mode, the picker's plan, what was
// decided and why, the phases of the sidecar's clock, refusals, the engine's hand-off object, and the decision between
// local and remote prefill.
//
// What enters are header values, label values and raw JSON as they came from the wire; what leaves are values that are
// checked, printable in exactly the form that was parsed, and free of addresses where a client can see them. Nothing here
// does I/O, keeps state or starts a goroutine, and nothing here knows the rooms that use it.
package pd
