// Package shadow reports what a second configuration would have decided about live traffic, and what that would have brought.
//
// In come what both configurations decided about each request (sched.Comparison) and how the requests ended. Out comes a View: how often and
// in what the decisions differ, and how much earlier first tokens, and how much faster further ones, are expected to come by the second
// configuration. The package predicts both decisions by one model (epp/latency), which learns from the outcomes of the live ones, and says how well
// that model has predicted these. The load in flight that the shadow sees is what it would be by its own decisions. The package decides nothing, and sees
// no prompts.
package shadow
