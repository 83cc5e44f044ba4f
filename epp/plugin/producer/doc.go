// Package producer holds the plugins that add knowledge about a request or its endpoints before the pick, for others to use.
//
// Prompts, and what the picker did with them, enter; the tokens that an endpoint has cached, and what a request adds to its
// load, leave. Producers neither drop nor rate candidates, and one holds a request only while another with the same prompt is being
// picked for (burst-prefix-cache-producer). The index of prefixes itself is in epp/prefix.
package producer
