// Package demo runs a whole P/D stack on this machine and proves that it works.
//
// In goes a folder with Tandem's programs; out come a report of how a mixed
// workload was served (package report shows it), one line for each promise,
// and exit code 1 if any of them is broken. Simulated engines, sidecars, the
// endpoint picker and a proxy (package stack puts them together), and one
// engine beside them that nobody disturbs, run as processes on free ports of
// the loopback interface. The stack and the undisturbed engine are asked the
// same; last, a decode leg is made to fail, whose hand-off the sidecar has to
// give back. All of them are ended. With --transport nixl it is the real NIXL
// library that moves the KV.
//
// What it does not do: it measures nothing that could be called performance,
// it builds no program, and it draws no picture.
package demo
