// Package pyjson reads and writes JSON as the real engine's language, Python, does. The engine's answers depend on it byte for
// byte: blanks, the form of numbers, and the messages and positions of errors.
//
// Values enter and JSON leaves, or a body enters and a description of its error leaves. The package knows no member of any API.
package pyjson
