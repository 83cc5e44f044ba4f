package envoyconf_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// The canary gets its share of the requests, small and large ones, whole and without the picker of this installation.
func TestEnvoySharesWithTheCanary(t *testing.T) {
	canary := serveName(t, "canary")
	for name, test := range map[string]struct {
		percent float64
		want    []string // who answers
	}{
		"none": {0, []string{"own"}},
		"half": {50, []string{"canary", "own"}},
		"all":  {100, []string{"canary"}},
	} {
		for _, size := range []int{10, 4 << 20} {
			t.Run(fmt.Sprintf("%s of %d bytes", name, size), func(t *testing.T) {
				own := serveName(t, "own")
				var frames atomic.Int64 // of both filters
				f := startFront(t, &client.Baseline{Endpoints: own, Watch: func(e client.Event) (*client.Reply, error) {
					if e.Kind == client.RequestHeaders {
						frames.Add(1)
					}
					return nil, nil
				}}, func(o *envoyconf.Options) {
					o.Pool, o.Static = envoyconf.PoolStatic, static(own)
					o.Canary = envoyconf.Canary{Address: canary, Percent: test.percent}
				})
				answers := map[string]int{}
				const most = 200 // at 50 %, one answerer alone: once in 2^199
				for sent := 0; sent < most && (sent < 20 || len(answers) < len(test.want)); sent++ {
					a := f.post(t, http.Header{}, strings.Repeat("x", size))
					by, read, _ := strings.Cut(a.body, " ")
					if a.status != 200 || read != fmt.Sprint(size) {
						t.Fatalf("answer %+v", a)
					}
					answers[by]++
				}
				for _, by := range test.want {
					if answers[by] == 0 {
						t.Errorf("%v answered, want %q", answers, test.want)
					}
				}
				if asked := frames.Load(); len(answers) != len(test.want) || (asked > 0) != (answers["own"] > 0) {
					t.Errorf("%v answered, want %q; the picker got the headers of requests %d times", answers, test.want, asked)
				}
				if answers["own"] > 0 {
					f.wantClean(t)
				}
			})
		}
	}
}

// serveName starts a server that answers with its name and how much it has read, and gives its address.
func serveName(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, name, " ", n)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
