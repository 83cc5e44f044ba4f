// Package loglimit limits how often a component logs what can happen to every request at once.
//
// An outage of an engine must be visible in the log without filling it: a Limiter writes one warning per interval, with the
// number of those that it suppressed. Suppressed ones are logged for debugging; metrics and traces have them all.
package loglimit
