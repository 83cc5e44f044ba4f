// Package handler holds the profile handlers, which say which profiles run for a request and in which order, and the deciders,
// which say whether a stage runs on an endpoint of its own.
//
// The names of the profiles enter a handler, once; the stages leave. What is known of a request and of the endpoints enters a
// decider; a ruling with its reason leaves. Neither runs a profile (epp/sched does).
package handler
