package envoyconf_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
)

// A picker's list may be out of date: where none of it serves, Envoy must go to an endpoint that it has not tried.
func TestEnvoyLeavesTheListWhenItHasFailed(t *testing.T) {
	endpoint := func(status int) (address string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if status != http.StatusOK {
				w.Header().Set(pd.HeaderRetry, "1")
			}
			w.WriteHeader(status)
			fmt.Fprint(w, "well")
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	first, second, third, well := endpoint(503), endpoint(503), endpoint(503), endpoint(200)
	for name, pool := range map[string][]string{"two fail": {first, second, well}, "three fail": {first, second, third, well}} {
		t.Run(name, func(t *testing.T) {
			f := startFront(t, &client.Baseline{Endpoints: first + "," + second}, func(o *envoyconf.Options) {
				o.Pool, o.Static = envoyconf.PoolStatic, static(pool...)
			})
			for range 30 { // by chance alone, most of the last tries would go wrong
				if a := f.post(t, http.Header{}, "x"); a.status != http.StatusOK || a.body != "well" {
					t.Fatalf("answer %+v", a)
				}
			}
			f.wantClean(t)
		})
	}
}
