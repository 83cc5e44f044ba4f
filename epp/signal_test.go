package epp_test

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// A signal of each kind, each declared in this one place.
var (
	temperature = epp.Declare(epp.Declaration{Name: "temperature", Title: "°C", Default: 20, Pages: map[string]string{"vllm": "temperature"}})
	gpus        = epp.Declare(epp.Declaration{Name: "gpus", Kind: epp.LabelSignal, Label: "example.com/gpus", Default: 1})
	predicted   = epp.Declare(epp.Declaration{Name: "predicted_ttft", Kind: epp.ComputedSignal, Unit: epp.Seconds, Title: "TTFT"})
)

func candidate(labels map[string]string) *epp.Candidate {
	e := epp.NewEndpoint("ns", "e", netip.MustParseAddrPort("10.0.0.1:8000"), "", labels)
	return &epp.Candidate{Endpoint: e, Load: &epp.Load{}}
}

func TestValueOfEachKind(t *testing.T) {
	for _, c := range []struct {
		name   string
		given  func(c *epp.Candidate)
		labels map[string]string
		signal epp.Signal
		want   float64
		known  bool
	}{
		{"page, unknown", nil, nil, temperature, 20, false},
		{"page", func(c *epp.Candidate) { c.Load.Signals.Set(temperature, 70) }, nil, temperature, 70, true},
		{"page, known to be zero", func(c *epp.Candidate) { c.Load.Signals.Set(temperature, 0) }, nil, temperature, 0, true},
		{"page, another is known", func(c *epp.Candidate) { c.Load.Signals.Set(epp.KVUsage, 1) }, nil, temperature, 20, false},
		{"no label", nil, nil, gpus, 1, false},
		{"label", nil, map[string]string{"example.com/gpus": "8"}, gpus, 8, true},
		{"label that is no number", nil, map[string]string{"example.com/gpus": "many"}, gpus, 1, false},
		{"label that is impossible", nil, map[string]string{"example.com/gpus": "-2"}, gpus, 1, false},
		{"no producer", nil, nil, predicted, 0, false},
		{"producer", func(c *epp.Candidate) { c.Compute(predicted, 0.5) }, nil, predicted, 0.5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := candidate(c.labels)
			if c.given != nil {
				c.given(given)
			}
			if got, known := given.Value(c.signal); got != c.want || known != c.known {
				t.Errorf("got %v, %v, want %v, %v", got, known, c.want, c.known)
			}
		})
	}
}

// A new version of an endpoint has the values of its new labels.
func TestLabelSignalOfANewVersion(t *testing.T) {
	c := candidate(map[string]string{"example.com/gpus": "8"})
	c.Endpoint = c.With("", map[string]string{"example.com/gpus": "4"})
	if got, _ := c.Value(gpus); got != 4 {
		t.Errorf("got %v", got)
	}
}

func TestReadings(t *testing.T) {
	c := candidate(map[string]string{"example.com/gpus": "8"})
	c.Load.Signals.Set(epp.KVUsage, 0.25)
	c.Load.Signals.Set(epp.Waiting, math.NaN())
	c.Load.Signals.Set(temperature, 70)
	text, err := json.Marshal(c.Readings())
	const want = `{"waiting":null,"delayed":null,"running":null,"kv_usage":0.25,"kv_read_tokens":null,"kv_read_seconds":null,"temperature":70,"gpus":8}`
	if err != nil || string(text) != want {
		t.Fatalf("got %s, %v, want %s", text, err, want)
	}
	var back epp.Readings
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, c.Readings()) {
		t.Errorf("read back: %v, %v", back, err)
	}
	c.Compute(predicted, 0.5) // left out above, because nothing had computed it
	var titles []string
	for _, r := range c.Readings().ForTables() {
		titles = append(titles, r.Title()+"="+r.Text("?"))
	}
	if want := []string{"waiting=?", "running=?", "KV use=0.25", "°C=70", "TTFT=0.5"}; !reflect.DeepEqual(titles, want) {
		t.Errorf("for tables %q, want %q", titles, want)
	}
	if r := back.Of("unheard_of"); r.Value != nil {
		t.Errorf("a signal that is not there: %v", r)
	}
}

// A tool may meet a picker of another version, which has other signals.
func TestReadingsOfAnotherVersion(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a signal that is not declared here", `{"newer":1.23456}`, "newer=1.235"},
		{"null", `null`, ""},
		{"none", `{}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r epp.Readings
			if err := json.Unmarshal([]byte(c.text), &r); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range r.ForTables() {
				got += r.Title() + "=" + r.Text("?")
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	var r epp.Readings
	for _, bad := range []string{`[]`, `7`, `{"a":"b"}`} {
		if err := json.Unmarshal([]byte(bad), &r); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		name     string
		unit     epp.Unit
		value    float64
		valid    bool
		combined float64 // of two engines with this total
		printed  string
	}{
		{"count", epp.Count, 7, true, 7, "7"},
		{"count with a fraction", epp.Count, 6.6, true, 7, "6.6"},
		{"negative", epp.Count, -1, false, -1, "-1"},
		{"absurd", epp.Count, 1 << 41, false, 1 << 41, "2199023255552"},
		{"ratio", epp.Ratio, 0.5, true, 0.25, "0.5"},
		{"per cent", epp.Ratio, 37, false, 18.5, "37"},
		{"seconds", epp.Seconds, 1.23456, true, 0.61728, "1.235"},
		{"total", epp.Total, 7.5, true, 7.5, "7.5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.unit.Valid(c.value) != c.valid || c.unit.Combine(c.value, 2) != c.combined || c.unit.Format(c.value) != c.printed {
				t.Errorf("valid %v, combined %v, printed %s", c.unit.Valid(c.value), c.unit.Combine(c.value, 2), c.unit.Format(c.value))
			}
		})
	}
	if epp.Count.Valid(math.NaN()) || epp.Ratio.Valid(math.NaN()) || epp.Seconds.Valid(math.Inf(1)) {
		t.Error("a value that is no number is valid")
	}
}

func TestDeclareRefuses(t *testing.T) {
	for name, d := range map[string]epp.Declaration{"a name that is taken": {Name: "kv_usage"}, "no name": {}} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was declared")
				}
			}()
			epp.Declare(d)
		})
	}
}

func TestValueAllocatesNothing(t *testing.T) {
	c := candidate(nil)
	if n := testing.AllocsPerRun(100, func() {
		for s := range epp.Signals() {
			c.Value(epp.Signal(s))
		}
	}); n > 1 { // the list
		t.Errorf("%v allocations", n)
	}
}
