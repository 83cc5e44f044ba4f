// Package boottest runs scripts of commands, as a user would type them, with the test binary as the program. Only tests
// import it.
package boottest
