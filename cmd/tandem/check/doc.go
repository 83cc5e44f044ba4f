// Package check implements the command tandem check: it takes an EndpointPickerConfig, and prints the configuration that the
// endpoint picker would use, or all problems of it. For a configuration of llm-d's it can print what has another effect here. It
// starts nothing and sends nothing.
package check
