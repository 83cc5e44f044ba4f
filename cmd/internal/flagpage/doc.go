// Package flagpage checks docs/flags.md against the programs. It takes the tables of a program on that page and the program's Load,
// and tries every row; a row that disagrees with the program fails the test, and so does a name in llm-d.txt that has none. Only
// tests import it.
package flagpage
