// Package api is the HTTP surface of a simulated engine of TensorRT-LLM: completions and chat, and the pages of trtllm-serve.
//
// HTTP requests enter; requests to an Engine, and answers in the form of trtllm-serve, leave. Like the real one it refuses members that
// it does not know, and answers nearly every failure with 400. It does not know how KV is handed over.
package api
