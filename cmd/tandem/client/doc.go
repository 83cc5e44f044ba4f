// Package client sends requests to an OpenAI-compatible endpoint, and measures the answers as a client sees them.
//
// What enters is the address of an endpoint and a prompt. What leaves is an Answer: when its first token and its end arrived, the
// gaps between tokens, token counts, and, of an endpoint behind Tandem, the decision and the phases that it reports. An answer
// that failed says how and why.
//
// It keeps no statistics, and decides nothing about when to send.
package client
