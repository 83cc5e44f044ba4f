// Package api is the HTTP surface of a simulated SGLang engine: /generate, the OpenAI APIs, Anthropic's messages, and the engine's own
// paths.
//
// Requests and the engine enter; answers leave, byte for byte in the real engine's form where its clients can see it, with faults
// applied (package fault). Recordings of the real engine, testdata/golden, are the measure. The package knows nothing of pages and
// of the messages between engines: it asks package sglang. It opens no ports: package server does.
package api
