// Package up is the command tandem up: a whole P/D stack on this machine, left running.
//
// In go flags: how many engines to simulate, and what moves their KV, or which engines run already. Out come a ready line on
// stdout, as from every server here, and on stderr what a person needs next: a command to paste, and what listens where. It
// runs until SIGINT or SIGTERM, which end all programs and then it with exit code 0, or until one of them ends by itself,
// which ends the others too; the error names it and gives its last lines.
//
// The stack itself is stack's: it says what becomes of the programs should this one be killed.
package up
