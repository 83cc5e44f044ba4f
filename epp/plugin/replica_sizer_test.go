package plugin

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/scale"
	"github.com/tandem-serving/tandem/pd"
)

// steps is a clock whose timers a test runs.
type steps struct {
	epp.Clock
	now time.Time
	run func()
}

func (c *steps) Now() time.Time { return c.now }

func (c *steps) AfterFunc(d time.Duration, f func()) epp.Timer {
	c.run = func() { c.now = c.now.Add(d); f() }
	return c
}

func (c *steps) Stop() bool { return true }

// TestReplicaSizerOutlivesAReload: a new configuration goes on with the sizes of the one before it, within its own limits.
func TestReplicaSizerOutlivesAReload(t *testing.T) {
	clock := &steps{now: time.Unix(1000, 0)}
	b := builder()
	b.Keep.Clock = clock
	pods := []epp.Candidate{loaded("a", 0, 1), loaded("b", 0, 1)}
	start := func(parameters string) *scale.Sizer {
		p, err := decode(t, "replica-sizer", parameters)
		if err != nil {
			t.Fatal(err)
		}
		instance, err := p.Build(b)
		if err != nil {
			t.Fatal(err)
		}
		s := instance.(*scale.Sizer)
		for i := range pods {
			s.EndpointJoined(pods[i].Endpoint)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	row := epp.DecodeRow("decode")
	first := start("{prefill: {maxReplicas: 0}, decode: {maxReplicas: 1000}}")
	d := &epp.Decision{Verdict: pd.Local, Tokens: 4000, Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{pods[0].Endpoint}}}}
	for range 6000 {
		first.Picked(nil, nil, d)
	}
	clock.run()
	size := first.Sizes()[0]
	if size.Current != 2 || size.Desired <= 40 {
		t.Fatalf("400 prompts of 4,000 tokens in a second: %+v", size)
	}
	again := start("{prefill: {maxReplicas: 0}, decode: {maxReplicas: 1000, variant: other}}")
	if got := again.Sizes()[0]; got.Desired != size.Desired || got.Variant != "other" {
		t.Errorf("after a reload %+v, before %+v", got, size)
	}
	lower := start("{prefill: {maxReplicas: 0}, decode: {maxReplicas: 30}}")
	clock.run()
	if got := lower.Sizes()[0]; got.Desired != 30 {
		t.Errorf("with 30 replicas at most %+v", got)
	}
}

// TestReplicaSizerSizesVariants: each variant has a size, and a role without variants has one.
func TestReplicaSizerSizesVariants(t *testing.T) {
	const cheap, dear = "{variant: cheap, maxReplicas: 3, variantCost: 1}", "{variant: dear, maxReplicas: 3, variantCost: 4}"
	const short = "{variant: short, role: prefill, maxReplicas: 3, variantCost: 2}"
	for _, tc := range []struct{ name, parameters, want string }{
		{"decode alone", "{prefill: {maxReplicas: 0}, variants: [" + dear + ", " + cheap + "]}", "decode/cheap decode/dear"},
		{"decode, with prefill pods", "{variants: [" + dear + ", " + cheap + "]}", "decode/cheap decode/dear prefill/prefill"},
		{"prefill", "{variants: [" + short + "]}", "decode/decode prefill/short"},
		{"both", "{variants: [" + short + ", " + cheap + "]}", "decode/cheap prefill/short"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := build[*scale.Variants](t, "replica-sizer", tc.parameters)
			var got []string
			for _, one := range s.Sizes() {
				got = append(got, one.Role+"/"+one.Variant)
			}
			if names := strings.Join(got, " "); names != tc.want {
				t.Errorf("sizes of %s, want %s", names, tc.want)
			}
		})
	}
}

// TestReplicaSizerLearnsAPattern: forecasts by the time of day are told for the pool, or for each variant, if the configuration asks for them.
func TestReplicaSizerLearnsAPattern(t *testing.T) {
	const variants = "prefill: {maxReplicas: 0}, variants: [{variant: a, maxReplicas: 1, variantCost: 1}, {variant: b, maxReplicas: 1, variantCost: 2}]"
	for _, test := range []struct {
		parameters string
		want       int
	}{
		{"{}", 0},
		{"pattern: {days: week, timeZone: Asia/Tokyo, share: 0.5}", 1},
		{"{" + variants + "}", 0},
		{"{" + variants + ", pattern: {days: alike}}", 2},
	} {
		p, err := decode(t, "replica-sizer", test.parameters)
		if err != nil {
			t.Fatal(err)
		}
		instance, err := p.Build(builder())
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(instance.(prometheus.Collector))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, f := range families {
			if f.GetName() == "tandem_pattern_in_use" {
				got = len(f.GetMetric())
			}
		}
		if got != test.want {
			t.Errorf("%s: %d series, want %d", test.parameters, got, test.want)
		}
		if err := instance.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
	}
}
