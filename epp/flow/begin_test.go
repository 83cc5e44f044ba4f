package flow_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
)

// TestBegin: a caller without a goroutine is told, in the order of the queue, what Admit would return.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &slots{first: 1}
		c := flow.New(flow.Settings{TTL: time.Minute, Other: flow.Band{Limits: flow.Limits{Requests: 3}}}, gate, flow.Options{Clock: epp.SystemClock})
		var mu sync.Mutex // guards told: that of the controller is not always held
		var told []string
		begin := func(name string, priority int) *epp.Request {
			r := local(name, priority, "a")
			c.Begin(r, func(p epp.Pass, err error) {
				if err != nil {
					name += " " + string(pd.AsRefusal(err).Reason)
				}
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(name, " ", p.Waited))
			})
			return r
		}
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(told) // timers that end together run in any order
			if !slices.Equal(told, want) {
				t.Errorf("%s: %q, want %q", when, told, want)
			}
			told = nil
		}
		first := begin("first", 0)
		check("there is capacity", "first 0s")
		gate.add(-1, 0)
		c.Settled(first, epp.Pass{Note: 1})
		for i := range 4 {
			begin(fmt.Sprint("usual", i), 0)
		}
		begin("urgent", 1)
		check("there is none", "usual3 queue-full 0s")
		time.Sleep(time.Second)
		gate.add(1, 0)
		c.SnapshotChanged()
		check("there is capacity for one", "urgent 1s")
		time.Sleep(time.Minute)
		check("their time to live ends", "usual0 queue-timeout 0s", "usual1 queue-timeout 0s", "usual2 queue-timeout 0s")
		begin("late", 0)
		c.Close()
		begin("later", 0)
		check("it closes", "late draining 0s", "later draining 0s")
	})
}
