// Package tandem contains no code, only tests of rules that hold for the whole repository: which package may import which,
// and how files are kept.
//
// docs/architecture.md lists the packages; the doc.go of each says what enters, what leaves and what it does not do.
package tandem
