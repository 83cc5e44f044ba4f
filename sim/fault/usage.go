package fault

import (
	"fmt"
	"strings"
)

// kind is a value of Fault.Fault.
type kind struct {
	name string
	does string // for a person
}

// kinds lists all kinds of faults.
var kinds = []kind{
	{Refuse, "the connection is closed without an answer. With leg any, no match and no count, the port is closed too: clients cannot connect"},
	{ResetBefore, "the connection is reset before any byte of an answer; the engine never sees the request"},
	{ResetAfter, "the engine works; the connection is reset after the headers and, of a stream, the first event"},
	{Truncate, "the engine works; the body ends too early: after half of its bytes, or after the first event"},
	{Slow, "the engine sees the request arg milliseconds later; arg stop: never, until the faults are deleted"},
	{Status, "answers with HTTP status arg (400 to 599) in the engine's envelope; the engine never sees the request. With 503, the hand-off of a decode leg is released"},
	{Crash, "the engine dies when it gets the request: running requests end with 500, and the port closes"},
	{NoHandoff, "a prefill leg without kv_transfer_params in its answer; no blocks are kept for a decode engine"},
	{BadHandoff, "a prefill leg whose kv_transfer_params are damaged; arg is one of " + strings.Join(Damages(), ", ")},
	{Stale, "a prefill leg whose lease ends at once, and whose blocks have been overwritten"},
}

// Kinds returns the values of Fault.Fault.
func Kinds() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// Usage describes the JSON form of a fault for a person, as paragraphs.
func Usage() []string {
	lines := []string{
		"POST /sim/faults on the admin port makes something go wrong, DELETE /sim/faults ends all faults. The body is JSON; only fault is required, and each request takes the first fault that matches it:",
		`{"fault": "status", "arg": "503", "leg": "decode", "count": 3, "match": "gold"}`,
	}
	for _, k := range kinds {
		lines = append(lines, fmt.Sprintf("%s: %s", k.name, k.does))
	}
	return append(lines,
		"leg: prefill, decode or any (default), which includes every path of the data port but /metrics",
		"count: how many requests it hits before it ends; 0 (default): no limit",
		"match: part of the request's X-Request-Id or model; default: all requests",
		"at: moves reset-after, truncate, slow or crash to a point of the answer: headers (the engine has done the work, nothing has been sent), body (the headers have been sent), or a number of events of a stream")
}
