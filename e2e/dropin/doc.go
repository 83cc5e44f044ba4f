// Package dropin tests our picker and our sidecar in the places of llm-d's: behind an Envoy that is configured as llm-d's
// stand-alone chart does it, with the arguments and the configuration of its charts and guides.
//
// In goes that configuration, as we understand it, in our words: testdata. Out comes whether requests are answered as by an
// engine alone, and what the parts that are not ours get to see. The objects of the cluster around them are the matter of
// cmd/epp and cmd/sidecar; what the wire carries in our own stack, of e2e/serving.
package dropin
