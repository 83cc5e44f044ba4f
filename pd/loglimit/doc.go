// Package loglimit limits how often a component logs events that can happen to every request at once.
//
// Warnings enter, and some of them leave for the log. An outage must show in the log without filling it: a Limiter writes one
// warning per interval, with the number of those that it suppressed, which it logs at debug level. It knows no metrics.
package loglimit
