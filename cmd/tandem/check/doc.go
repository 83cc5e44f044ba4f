// Package check is the command tandem check: in goes an EndpointPickerConfig, out comes what the endpoint picker would make
// of it, or everything that is wrong with it. It starts nothing and sends nothing.
package check
