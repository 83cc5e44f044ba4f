package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/replay"
)

// interrupting cancels as soon as a line says that one run is done, as a person might.
type interrupting struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (w *interrupting) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("1/4 ")) {
		w.cancel()
	}
	return w.Buffer.Write(p)
}

// TestInterrupted: what is done is printed, and the error says that it is not all.
func TestInterrupted(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one run after the other
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	err := Run(ctx, boot.IO{Name: "replay", Stdout: &out, Stderr: &interrupting{cancel: cancel}},
		[]string{"--requests", "20", "--pool", "1B,2B,3B,4B", "--json"})
	// boot ends a program that returns context.Canceled after a signal with 0, as if nothing were missing.
	if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted: the results are those of 1 of 4 runs") {
		t.Errorf("error %v, want that one of 4 runs is done", err)
	}
	var printed struct{ Runs []struct{ Requests int } }
	if err := json.Unmarshal(out.Bytes(), &printed); err != nil || len(printed.Runs) != 1 || printed.Runs[0].Requests != 20 {
		t.Errorf("%v: printed %s, want the run that was done", err, out.Bytes())
	}
}

func TestProgressOnTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := []*run{{requests: &replay.Trace{Requests: make([]replay.Request, 30)}}, {requests: &replay.Trace{Requests: make([]replay.Request, 10)}}}
		var to bytes.Buffer
		p := &progress{to: &to, terminal: true, runs: runs, requests: 40, began: time.Now(), stop: make(chan struct{})}
		p.stopped.Go(p.update)
		runs[0].ended.Add(10)
		<-time.After(refresh + time.Millisecond)
		runs[0].ended.Add(20)
		p.done(runs[0])
		<-time.After(9 * refresh)
		p.end()
		lines := strings.Split(to.String(), boot.EraseLine)
		if first := lines[1]; first != "0/2 runs, 25% of the requests, about 1s left" {
			t.Errorf("the first line is %q", first)
		}
		if last := lines[len(lines)-2]; last != "1/2 runs, 75% of the requests, about 1s left" || lines[len(lines)-1] != "" {
			t.Errorf("the last line is %q, and then %q; want that it is erased", last, lines[len(lines)-1])
		}
	})
}

func TestPercentiles(t *testing.T) {
	got := percentiles([]time.Duration{4e6, 1e6, 3e6, 2e6})
	if len(got) != 201 || got[0] != 1 || got[50] != 1 || got[100] != 2 || got[101] != 3 || got[200] != 4 {
		t.Errorf("%v", got)
	}
	if got := percentiles(nil); got != nil {
		t.Errorf("without values: %v", got)
	}
}

// Runs are drawn in one panel as long as their lines can be told apart; then the later dimensions get panels of their own.
func TestPanels(t *testing.T) {
	var runs []*run
	for _, config := range []string{"a", "b", "c"} {
		for _, decode := range []int{1, 2} {
			for _, engine := range []string{"x", "y"} {
				runs = append(runs, &run{config: config, pool: replay.Pool{Decode: decode}, engine: engine})
			}
		}
	}
	all := panels(runs, dimensions(runs))
	if len(all) != 2 || all[0].title != "x" || all[1].title != "y" || len(all[0].lines) != 6 || all[1].lines[1].name != "a, 2D" || all[1].lines[1].kind != 1 {
		t.Errorf("%d panels: %+v", len(all), all[0])
	}
}
