// Package harness starts the programs of this repository for tests of the whole system, sends requests to them and observes
// them from outside.
//
// A Pair is a prefill, a decode and a plain engine; a Fleet is engines, sidecars, pickers and a proxy; a Call is a client's
// request. A Gate delays what one side of a connection sends, a Valve holds requests, and a Tap records what an engine receives.
// Programs that a test starts end with the test, which logs their last output if it fails.
//
// Engines are simulated unless Lend returns real ones. Only functions whose names begin with Must check anything.
package harness
