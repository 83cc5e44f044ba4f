package envoyconf_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// markAndLimit is a filter that marks each request that passes it, and a rate limit of two requests for as long as a test takes.
const markAndLimit = `
- name: envoy.filters.http.header_mutation
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
    mutations: { request_mutations: [ { append: { header: { key: x-passed, value: filter } } } ] }
- name: envoy.filters.http.local_ratelimit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
    stat_prefix: clients
    filter_enabled: { default_value: { numerator: 100 } }
    filter_enforced: { default_value: { numerator: 100 } }
    token_bucket: { max_tokens: 2, tokens_per_fill: 1, fill_interval: 86400s }
`

// The operator's filters see each request once, also one that goes through the second listener, and before the picker does.
func TestEnvoyAsksTheOperatorsFiltersFirst(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Values("x-passed"))
	}))
	t.Cleanup(endpoint.Close)
	for name, size := range map[string]int{"small": 10, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			address := endpoint.Listener.Addr().String()
			f := startFront(t, &client.Baseline{Endpoints: address, Watch: func(e client.Event) (*client.Reply, error) {
				if !e.End && e.Kind == client.RequestHeaders {
					asked.Add(1)
				}
				return nil, nil
			}}, func(o *envoyconf.Options) {
				o.Pool, o.Static, o.HTTPFilters = envoyconf.PoolStatic, static(address), markAndLimit
			})
			const filters = 2 // of the picker's, each with a stream for each request
			for i, want := range []int{200, 200, 429, 429} {
				a := f.post(t, http.Header{}, strings.Repeat("x", size))
				if a.status != want || want == 200 && a.body != "[filter]" {
					t.Errorf("request %d: answer %+v, want status %d after one pass of the filter", i, a, want)
				}
			}
			if n := asked.Load(); n != 2*filters {
				t.Errorf("the picker got the headers of requests %d times, want %d", n, 2*filters)
			}
			f.wantClean(t)
		})
	}
}
