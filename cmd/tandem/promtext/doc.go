// Package promtext reads metrics pages in the text format of Prometheus, for commands that read a few values once.
//
// It takes a page, or the URL of one, and returns its series, with functions to add them up and to read their labels. It
// skips lines that cannot be parsed: a page belongs to another program, and one odd line must not hide the rest. It also
// skips types, help texts, timestamps and exemplars.
//
// The picker does not use this package: epp/pool reads six values ten thousand times a second.
package promtext
