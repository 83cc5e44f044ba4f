package pd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestInternal(t *testing.T) {
	cases := []struct {
		name     string
		internal bool
	}{
		{pd.HeaderMode, true},
		{pd.HeaderPrefill, true},
		{pd.HeaderPlan, true},
		{pd.HeaderAuth, true},
		{pd.HeaderDecision, true},
		{pd.HeaderOutcome, true},
		{pd.HeaderRetry, true},
		{"x-tandem-filter", true},
		{"x-tandem-", true},
		{"x-encoder-hosts-ports", true},
		{"x-kv-cache-hit", true},
		{pd.HeaderPrefillNew, true},
		{"x-llm-d-encoder-hosts-ports", true},
		{"x-llm-d-kv-cache-source-host-port", true},
		{"x-data-parallel-host-port", true},
		{"x-gateway-destination-endpoint", true},
		{"x-gateway-destination-endpoint-served", true},

		{pd.HeaderTiming, false}, // every hop may add its own; the sidecar drops the engine's
		{pd.HeaderRequestID, false},
		{pd.HeaderDropped, false}, // llm-d's, for clients
		{"x-llm-d-inference-objective", false},
		{"", false},
		{"x", false},
		{"x-", false},
		{"x-tandem", false},
		{"x-tandemx", false},
		{"x-tandemx-plan", false},
		{"x_tandem_plan", false},
		{"tandem-plan", false},
		{"ax-tandem-plan", false},
		{"y-tandem-plan", false},
		{"x-prefiller", false},
		{"x-prefill-host-port", false},
		{"x-encoders-host", false},
		{"x-kv-cached-tokens", false},
		{"x-data-parallelism", false},
		{"x-gateway-model-name", false},
		{"x-gateway-destinations", false},
		{"x-\u212av-cache-hit", false}, // KELVIN SIGN folds to k
	}
	for _, c := range cases {
		for _, name := range []string{c.name, strings.ToUpper(c.name), http.CanonicalHeaderKey(c.name)} {
			if got := pd.Internal(name); got != c.internal {
				t.Errorf("%q: got %v", name, got)
			}
		}
	}
}

// Both the sidecar and the picker ask for each header of each request.
func TestInternalAllocatesNothing(t *testing.T) {
	names := []string{"Content-Type", "X-Tandem-Plan", "X-Gateway-Destination-Endpoint", "X-Forwarded-For"}
	n := testing.AllocsPerRun(100, func() {
		for _, name := range names {
			pd.Internal(name)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Envoy and HTTP/2 compare names as bytes, so ours are lower case.
func TestHeaderNamesAreLowerCase(t *testing.T) {
	for _, name := range []string{
		pd.HeaderMode, pd.HeaderPrefill, pd.HeaderPlan, pd.HeaderAuth, pd.HeaderDecision, pd.HeaderTiming,
		pd.HeaderOutcome, pd.HeaderRetry, pd.HeaderRequestID, pd.HeaderDropped,
	} {
		if name != strings.ToLower(name) {
			t.Errorf("%q is not lower case", name)
		}
	}
}
