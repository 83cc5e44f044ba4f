// Package tandem is the root of the house: it holds no code, only the tests of
// the house rules, which say who may know whom and how files are kept.
//
// The rooms begin one level below; docs/architecture.md has the map, and the doc.go of
// each room says what enters and leaves it and what it does not do.
package tandem
