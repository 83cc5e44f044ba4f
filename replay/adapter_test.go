package replay

import (
	"testing"
	"time"
)

// TestAdaptersOnPages: the production scorer prefers engines whose page names the adapter, once the page is read.
func TestAdaptersOnPages(t *testing.T) {
	const text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: lora-affinity-scorer}]\n"
	for _, test := range []struct {
		name     string
		slots    int
		second   time.Duration // when another request with the same adapter comes
		together bool          // always on the same engine
	}{
		{"pages name it", 2, 3 * time.Second, true},
		{"before the page is read", 2, 1001 * time.Millisecond, false},
		{"pages name no adapters", 0, 3 * time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			same, runs := 0, 12
			for seed := range runs {
				o := configured(t, text)
				if err := o.Pool.UnmarshalText([]byte("3B")); err != nil {
					t.Fatal(err)
				}
				o.Scrape, o.Seed = 200*time.Millisecond, uint64(seed+1)
				o.Engine.Adapters = test.slots
				r := replayed(t, o, &Trace{Classes: []Class{{Name: "legal", Model: "legal-lora"}}, Requests: []Request{
					{Due: time.Second, Input: 1000, Output: 1000}, {Due: test.second, Input: 1000, Output: 10}}})
				if r.Records[0].Decode == r.Records[1].Decode {
					same++
				}
			}
			if (same == runs) != test.together {
				t.Errorf("the same engine had both in %d of %d runs", same, runs)
			}
		})
	}
}
