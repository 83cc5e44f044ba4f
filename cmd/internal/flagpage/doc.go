// Package flagpage holds FLAGS.md to what the programs do. In goes a table of that page and a program's Load; every row is
// tried, and what the page says otherwise fails the test. Only tests import it.
package flagpage
