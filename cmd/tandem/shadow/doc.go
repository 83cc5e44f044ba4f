// Package shadow implements the command tandem shadow, which shows what a second configuration would have decided about the traffic of a running
// picker (its --shadow-config), where that differs, and what it is expected to bring.
//
// It reads /debug/shadow of the picker's admin port, and prints it for a person. It changes nothing, and computes nothing itself.
package shadow
