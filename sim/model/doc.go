// Package model says what a simulated model is: its sizes, its speeds and its token ids.
//
// A model file or the name of a built-in model enters; durations of steps and transfers, and the tokens of text, leave. The
// package computes times and does not wait for them.
package model
