// Package headroom measures how far below their goals the times of online requests stay, so that work that can wait takes only what they
// leave.
//
// In go the picks of requests ([Watch.Picked], on the request path), the beginnings of answers ([Watch.Stamp], likewise) and outcomes
// ([Watch.Observe], apart from it). A goal is what the client wants by x-llm-d-slo-ttft-ms or x-llm-d-slo-tpot-ms, or the configuration for
// clients that name nothing. Out come metrics, and a header on the answers to requests of negative priority: the share of its goal that is
// left when a request ends of which only a few of a hundred take longer, over the latest seconds. It is negative while more of them miss it.
//
// The package knows only what Tandem's sidecars report. It decides nothing, and delays no request: the batch server goes by the header.
package headroom
