// Package reporter holds the plugins that report numbers about answers to the gateway.
//
// The token counts of an answer enter; values of dynamic metadata leave, which a rate limiter or an access log of the gateway reads.
// The package reads no answers (epp/extproc does). It is the only one that uses CEL, the language of the expressions.
package reporter
