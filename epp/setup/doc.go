// Package setup makes the scheduler's configuration from a built EndpointPickerConfig, in one way for the endpoint picker and for
// replays, so that what is replayed is what runs.
//
// It starts nothing and keeps nothing. Queues are the caller's: see config.Built.Queues.
package setup
