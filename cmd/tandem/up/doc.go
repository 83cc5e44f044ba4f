// Package up implements the command tandem up, which runs a whole P/D stack on this machine until it is stopped.
//
// Flags say how many engines to simulate and how their KV moves, or which running engines to use. It prints a ready line on
// stdout, as all our servers do, and on stderr a command to paste and the ports of all programs. It runs until SIGINT or
// SIGTERM, which end all programs and then tandem up with exit code 0, or until one of the programs ends by itself. That
// ends the others too; the error names the program and has its last lines.
//
// Package stack starts and ends the programs; its doc says what happens to them if tandem up is killed.
package up
