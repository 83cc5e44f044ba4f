package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
)

// pool is a picker's answer with two endpoints; the load of one was never read.
const pool = `{"snapshot":3,"endpoints":[
	{"name":"prefill-0","role":"prefill","signals":{"waiting":null,"running":null,"kv_usage":null},"inflight_requests":1},
	{"name":"decode-0","role":"decode","signals":{"waiting":2,"running":3,"kv_usage":0.25},"inflight_requests":5}]}`

// pickerOf returns a stage whose picker gives the same answer to every request.
func pickerOf(t *testing.T, answer http.HandlerFunc) *stage {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return &stage{http: server.Client(), picker: strings.TrimPrefix(server.URL, "http://")}
}

func TestWatch(t *testing.T) {
	looked := make(chan string, 100)
	s := pickerOf(t, func(w http.ResponseWriter, r *http.Request) {
		looked <- r.URL.Path
		fmt.Fprint(w, pool)
	})
	w := s.watch(t.Context(), time.Now(), &progress{})
	for range 2 {
		if path := <-looked; path != "/debug/endpoints" {
			t.Errorf("asked for %s", path)
		}
	}
	samples, err := w.end(nil)
	if err != nil || len(samples) < 2 {
		t.Fatalf("%d samples, error %v", len(samples), err)
	}
	if samples[0].At < 0 || samples[len(samples)-1].At < samples[0].At {
		t.Errorf("taken at %v … %v", samples[0].At, samples[len(samples)-1].At)
	}
	want := report.LoadSample{At: samples[1].At, Endpoint: "decode-0", Role: "decode", Waiting: 2, Running: 3, KVUsage: 0.25, InFlight: 5}
	if samples[1] != want || samples[0].Endpoint != "prefill-0" || samples[0].Running != 0 {
		t.Errorf("%+v", samples[:2])
	}
}

func TestWatchFails(t *testing.T) {
	s := pickerOf(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusNotFound) })
	w := s.watch(t.Context(), time.Now(), &progress{})
	<-w.done
	if _, err := w.end(nil); err == nil || !strings.Contains(err.Error(), "watching the load") || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v", err)
	}
	known := errors.New("worse")
	if _, err := w.end(known); !errors.Is(err, known) {
		t.Errorf("error %v, want the given one", err)
	}
}

func TestProgress(t *testing.T) {
	var screen strings.Builder
	p := &progress{to: &screen, total: 5}
	answered := func(v pd.Verdict, failure error) {
		p.began()
		p.ended(&exchange{answer: answer{decision: pd.Result{Verdict: v}}, failure: failure})
	}
	p.began()
	answered(pd.Local, nil)
	answered(pd.Remote, nil)
	answered(pd.Remote, nil)
	p.show()
	if want := boot.EraseLine + "3 of 5 answered, 1 running · prefilled locally 1, remotely 2"; screen.String() != want {
		t.Errorf("%q", screen.String())
	}
	answered(0, errors.New("status 500"))
	screen.Reset()
	p.show()
	p.clear()
	if want := "4 of 5 answered, 1 running · prefilled locally 1, remotely 2 · failed 1" + boot.EraseLine; strings.TrimPrefix(screen.String(), boot.EraseLine) != want {
		t.Errorf("%q", screen.String())
	}
	(&progress{}).show() // without a terminal
}

func TestPulledTokens(t *testing.T) {
	page := `# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 7.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 123.0
`
	if n, err := vllmPulledTokens([]byte(page)); n != 123 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := vllmPulledTokens([]byte(strings.ReplaceAll(page, "external_kv", "other"))); err == nil {
		t.Error("a page without the counter is no error")
	}
}

func TestReleasedBySidecar(t *testing.T) {
	page, err := promtext.Read(strings.NewReader(`tandem_kv_release_total{result="ok",way="cancel"} 5
tandem_kv_release_total{result="ok",way="nixl"} 2
tandem_kv_release_total{result="unsure",way="nixl"} 9
tandem_kv_release_total{result="ok",way="abort"} 4
other_total{result="ok",way="nixl"} 7
`))
	if err != nil {
		t.Fatal(err)
	}
	for way, want := range map[string]int64{"nixl": 2, "abort": 4, "none": 0} {
		if n := releasedBySidecar(page, way); n != want {
			t.Errorf("%s: %d", way, n)
		}
	}
}

func TestInParallel(t *testing.T) {
	const things = 20
	var done [things]int
	err := inParallel(t.Context(), 3, things, func(_ context.Context, i int) error {
		done[i]++
		return nil
	})
	for i, n := range done {
		if n != 1 || err != nil {
			t.Errorf("%d was done %d times, error %v", i, n, err)
		}
	}
	broken := errors.New("broken")
	err = inParallel(t.Context(), 2, 1000, func(ctx context.Context, i int) error {
		if i > 0 {
			<-ctx.Done() // no call starts once one has failed
			return ctx.Err()
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
