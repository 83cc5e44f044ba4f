// Package demo runs a whole P/D stack on this machine and proves that it works.
//
// In goes a folder with the programs sim and sidecar; out come a table with one
// row for each request, one line for each promise, and exit code 1 if any of
// them is broken. It starts a prefill, a decode and an undisturbed reference
// engine, and the sidecar, as processes on free ports of the loopback
// interface, asks the stack and the reference the same, and ends all of them.
//
// What it does not do: it measures nothing that could be called performance,
// it builds no program, and it has no endpoint picker: it writes the headers
// that one would send.
package demo
