// Package fault describes what goes wrong on purpose in a simulated engine: connections that break, answers that are late,
// wrong or incomplete, engines that die, hand-offs that are damaged or stale.
//
// Faults enter a List; each request takes the first fault that matches it. The package decides which request is hit, damages
// hand-offs, and cuts answers off at a chosen point (Writer). It runs no requests: package api applies faults to them.
package fault
