// Package up implements the command tandem up, which runs a whole P/D stack on this machine until it is stopped.
//
// Flags say how many engines to simulate and how their KV moves, or which running engines to use. It prints a ready line on
// stdout, as all our servers do, and on stderr a command to paste and the ports of all programs. It runs until SIGINT or
// SIGTERM, which end all programs and then tandem up with exit code 0. A program that ends by itself is started again at its
// addresses, and stderr says so. If that fails again and again, or if Envoy ends, the others end too; the error names the
// program, its last lines and the folder with the logs of all programs.
//
// Package stack starts and ends the programs; its doc says what happens to them if tandem up is killed.
package up
