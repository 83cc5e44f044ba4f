// Package harness starts the programs of this repository for tests of the whole system, sends requests to them and observes
// them from outside.
//
// A Pair is a prefill, a decode and a plain engine; a Fleet is engines, sidecars, pickers and a proxy; a Call is a client's
// request. A Gate delays what one side of a connection sends, and a Tap records what an engine receives. Programs that a test
// starts end with it, and their last output is logged if the test fails.
//
// Engines are simulated unless Lend gives real ones. The package judges nothing by itself, except where a function's name
// begins with Must.
package harness
