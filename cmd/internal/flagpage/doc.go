// Package flagpage checks docs/flags.md against the programs. It takes a table of that page and a program's Load, and tries every
// row; a row that disagrees with the program fails the test. Only tests import it.
package flagpage
