// Package pattern matches the regular expressions that tokenizer.json files split text with, at some hundred megabytes a second.
//
// Parse takes an expression in the syntax of Oniguruma, the reference implementation's library, and compiles it to a table: one entry for
// each state and class of characters. A match is what a backtracking matcher finds: the first alternative that matches wins, not the
// longest. A table cannot express everything: back-references, look-behind, look-ahead over more than one character, possessive
// quantifiers and anchors are refused with an error that names them.
//
// Ends finds many matches at a time, and reads words of ASCII letters eight bytes at a time.
//
// The package knows nothing of tokens. Text that is not UTF-8 must be repaired before; chars.Repair does that.
package pattern
