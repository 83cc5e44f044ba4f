// Package picker holds the plugins that choose among candidates by their totals.
//
// The totals of a round enter; the indices of the chosen candidates leave, best first. Random choices come from the round, so
// that a seed repeats them. Pickers do not compute the totals and do not reserve load (epp/sched does).
package picker
