// Package setup makes the scheduler's configuration, and how requests wait, from a built EndpointPickerConfig, in one way for the endpoint
// picker and for replays, so that what is replayed is what runs.
//
// It starts nothing and keeps nothing.
package setup
