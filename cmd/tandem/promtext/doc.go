// Package promtext reads metrics pages in the text format of Prometheus, for commands that look at a few values once.
//
// In goes a page, or the URL of one; out come its series, to be added up or asked for their labels. Lines that cannot be
// read are left out: a page is another program's, and one odd line must not hide the rest. Types, help texts, timestamps
// and exemplars are skipped.
//
// It is not what the picker reads pages with: epp/pool does that ten thousand times a second, for six values.
package promtext
