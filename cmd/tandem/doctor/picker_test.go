package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// A picker that has just started has not read all loads yet.
func TestReadLoadsWaitsForAYoungPicker(t *testing.T) {
	for _, test := range []struct {
		name  string
		reads int32 // the look by which the picker has read the load; 0: never
		alive error
		looks int32 // at least
		read  bool
	}{
		{"read before", 1, nil, 1, true},
		{"read meanwhile", 3, nil, 3, true},
		{"never read", 0, nil, 2, false},
		{"never read, and the endpoint does not answer", 0, errors.New("refused"), 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var looks atomic.Int32
			admin := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				age := -1.0
				if n := looks.Add(1); test.reads > 0 && n >= test.reads {
					age = 0.1
				}
				fmt.Fprintf(w, `{"endpoints":[{"name":"prefill-0","address":"127.0.0.1:8000","load_age_seconds":%v}]}`, age)
			})
			f := &fleet{direct: newDirect(), parts: partFlags{Admin: admin},
				targets: []*target{{name: "prefill-0", addr: netip.MustParseAddrPort("127.0.0.1:8000"), facts: facts{alive: test.alive}}}}
			defer f.direct.http.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), 5*oldLoad)
			if test.reads == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), 350*time.Millisecond)
			}
			defer cancel()
			known, err := f.readLoads(ctx)
			if err != nil || len(known) != 1 || (known[0].LoadAge >= 0) != test.read || looks.Load() < test.looks || test.looks == 1 && looks.Load() > 1 {
				t.Errorf("%d looks: %+v, %v", looks.Load(), known, err)
			}
		})
	}
}
