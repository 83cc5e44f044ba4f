package epp

import (
	"fmt"
	"math"
	"strconv"
)

// Signal identifies a number that the picker knows of every endpoint. Declare makes one; Candidate.Value reads it. It is an
// index into an array.
type Signal uint8

// Declaration is everything that the picker needs to know about a signal: pool reads the signal from metrics pages, scorers
// read it by Candidate.Value, and /debug/endpoints and explanations show it under its name.
type Declaration struct {
	Name  string // in JSON and in configurations: lower case, words joined by underscores
	Title string // heading of its column in tables; "" = only in JSON
	Unit  Unit
	Kind  SignalKind
	// Default is what Value returns while the signal is unknown.
	Default float64

	// Pages names the series of the metrics page by engine, for a PageSignal. Engines that are not listed do not report it.
	Pages map[string]string
	// Parameter is the field of page.EngineConfig in which an operator names another series; "" = the operator does it by an
	// entry of customMetrics whose attributeKey is Name.
	Parameter string
	// Label is the label of the endpoint that holds the number, for a LabelSignal.
	Label string
}

// SignalKind says where the value of a signal comes from.
type SignalKind uint8

// The kinds of signals.
const (
	PageSignal     SignalKind = iota // the endpoint's metrics page
	LabelSignal                      // a label of the endpoint
	ComputedSignal                   // a Producer, for one request
)

// Unit says which values of a signal are possible, how those of several engines are combined, and how values are printed.
type Unit uint8

// The units.
const (
	Count   Unit = iota // whole things, such as requests; the values of several engines on one page are summed
	Ratio               // from 0 to 1; the values of several engines are averaged
	Seconds             // the values of several engines are averaged
	Total               // what has added up since the engine was started; the values of several engines are summed
)

// maxValue is more than any engine counts; a larger number is an error of the page.
const maxValue = 1 << 40

// Valid reports whether a value is possible in this unit.
func (u Unit) Valid(v float64) bool {
	if u == Ratio {
		return v >= 0 && v <= 1
	}
	return v >= 0 && v < maxValue
}

// Combine returns one value for n engines of one page whose values add up to total.
func (u Unit) Combine(total float64, n int) float64 {
	switch u {
	case Count:
		return math.Round(total)
	case Total:
		return total
	}
	return total / float64(n)
}

// Format prints a value with at most three digits after the point.
func (u Unit) Format(v float64) string {
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

// MaxSignals is the most signals that may be declared. Every load has space for all of them, so that reading one needs no
// allocation and no look-up.
const MaxSignals = 16

// The signals that metrics pages of engines report. They are constants, so that picks read them by fixed offsets. Plugins may
// declare more in their own files.
const (
	Waiting     Signal = iota // requests that are queued in the engine
	Delayed                   // of these, requests that wait only for their KV cache to arrive
	Running                   // requests that run in the engine
	KVUsage                   // used share of the engine's KV cache
	ReadTokens                // tokens whose KV cache the engine has read from others since it was started
	ReadSeconds               // how long these transfers took, one after the other
)

// declared holds the declarations by signal. Declare adds to it while packages are initialized; it is only read after that.
var declared = []Declaration{
	Waiting: {Name: "waiting", Title: "waiting", Parameter: "queuedRequestsSpec", Pages: map[string]string{
		"vllm":                "vllm:num_requests_waiting",
		"sglang":              "sglang:num_queue_reqs",
		"trtllm-serve":        "trtllm_num_requests_waiting",
		"triton-tensorrt-llm": "nv_trt_llm_request_metrics{request_type=waiting}",
		"triton":              "nv_inference_pending_request_count",
	}},
	Delayed: {Name: "delayed", Parameter: "delayedRequestsSpec", Pages: map[string]string{
		"vllm": "vllm:num_requests_waiting_by_reason{reason=deferred}",
	}},
	Running: {Name: "running", Title: "running", Parameter: "runningRequestsSpec", Pages: map[string]string{
		"vllm":                "vllm:num_requests_running",
		"sglang":              "sglang:num_running_reqs",
		"trtllm-serve":        "trtllm_num_requests_running",
		"triton-tensorrt-llm": "nv_trt_llm_request_metrics{request_type=scheduled}",
		"triton":              "nv_inference_exec_count",
	}},
	KVUsage: {Name: "kv_usage", Title: "KV use", Unit: Ratio, Parameter: "kvUsageSpec", Pages: map[string]string{
		"vllm":                "vllm:kv_cache_usage_perc",
		"sglang":              "sglang:token_usage",
		"trtllm-serve":        "trtllm_kv_cache_utilization",
		"triton-tensorrt-llm": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
	}},
	ReadTokens:  {Name: "kv_read_tokens", Unit: Total, Pages: map[string]string{"vllm": "vllm:external_prefix_cache_hits_total"}},
	ReadSeconds: {Name: "kv_read_seconds", Unit: Total, Pages: map[string]string{"vllm": "vllm:nixl_xfer_time_seconds_sum"}},
}

// kinds and defaults hold parts of declared again, where picks read them fast. The signals above have the zero values.
var (
	kinds    [MaxSignals]SignalKind
	defaults [MaxSignals]float64
)

// Declare adds a signal. Call it in the declaration of a package variable. It panics if the name is in use, or if there are
// already MaxSignals.
func Declare(d Declaration) Signal {
	if _, taken := SignalNamed(d.Name); taken || d.Name == "" {
		panic(fmt.Sprintf("epp: the signal %q is declared twice, or has no name", d.Name))
	}
	if len(declared) == MaxSignals {
		panic(fmt.Sprintf("epp: no room for the signal %q: raise MaxSignals", d.Name))
	}
	kinds[len(declared)], defaults[len(declared)] = d.Kind, d.Default
	declared = append(declared, d)
	return Signal(len(declared) - 1)
}

// Signals returns all signals, in the order of their declaration.
func Signals() []Signal {
	all := make([]Signal, len(declared))
	for i := range all {
		all[i] = Signal(i)
	}
	return all
}

// SignalNamed returns the signal with a name.
func SignalNamed(name string) (s Signal, ok bool) {
	for i := range declared {
		if declared[i].Name == name {
			return Signal(i), true
		}
	}
	return 0, false
}

// Unit returns what the signal measures.
func (s Signal) Unit() Unit { return declared[s].Unit }

// Declaration returns the signal's declaration.
func (s Signal) Declaration() Declaration { return declared[s] }

// String returns the signal's name.
func (s Signal) String() string { return declared[s].Name }

// Values are the known values of signals. The zero value knows none.
type Values struct {
	known  uint16 // a bit for each signal
	values [MaxSignals]float64
}

// Known reports whether the signal has a value.
func (v *Values) Known(s Signal) bool { return v.known>>s&1 != 0 }

// Value returns the value of a signal. If it is unknown, ok is false and the value is the Default of its declaration.
func (v *Values) Value(s Signal) (value float64, ok bool) {
	if v.known>>s&1 == 0 {
		return defaults[s%MaxSignals], false
	}
	return v.values[s%MaxSignals], true
}

// Set sets the value of a signal.
func (v *Values) Set(s Signal, value float64) {
	v.known |= 1 << s
	v.values[s] = value
}

// With returns the values with one more.
func (v Values) With(s Signal, value float64) Values {
	v.Set(s, value)
	return v
}

// labelValues reads the signals in labels. If a label's value is not possible, its signal is unknown.
func labelValues(labels map[string]string) (v Values) {
	for i := range declared {
		d := &declared[i]
		if d.Kind != LabelSignal {
			continue
		}
		if n, err := strconv.ParseFloat(labels[d.Label], 64); err == nil && d.Unit.Valid(n) {
			v.Set(Signal(i), n)
		}
	}
	return v
}

// Value returns the value of a signal for this candidate, whatever its kind. If it is unknown, ok is false and the value is
// the Default of its declaration. Values of a PageSignal are as old as the Load: weigh them by Trust. A scorer of a
// PageSignal may read c.Load.Signals directly, which is a little faster.
func (c *Candidate) Value(s Signal) (value float64, ok bool) {
	if kinds[s%MaxSignals] == LabelSignal {
		return c.Endpoint.signals.Value(s)
	}
	return c.Load.Signals.Value(s)
}

// Compute sets the value of a ComputedSignal for the request that is picked for. Only a Producer may call it.
func (c *Candidate) Compute(s Signal, value float64) { c.Load.Signals.Set(s, value) }

// Producer is a plugin that computes signals for a request, such as a predicted time to first token. It sets them
// by Candidate.Compute, before the filters and scorers of the first stage run. It must be safe for concurrent use and must
// not keep its arguments.
type Producer interface {
	Produce(r *Round, c []Candidate)
}

// Predictor is a plugin that learns how long requests take. Of those, a Producer tells it of every candidate.
type Predictor interface {
	PickObserver
	Observer
	Predicts()
}
