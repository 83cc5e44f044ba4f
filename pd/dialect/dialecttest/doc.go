// Package dialecttest has the suite that every hand-off protocol passes.
//
// A dialect and examples of its prefill engine's answers enter; the suite reports to a *testing.T. It sends nothing.
package dialecttest
