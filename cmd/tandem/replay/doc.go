// Package replay implements the command tandem replay: it takes a trace, or a synthetic load, and runs it through the endpoint picker
// in virtual time, once for every combination of configuration, threshold, pool, engine and speed that its flags name. It prints a
// table, or JSON, and draws a page.
//
// It reads files and writes those that flags name. It starts no server and sends nothing. Package replay has the model.
package replay
