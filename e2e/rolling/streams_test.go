package rolling

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/stack"
)

// streamsFleet is a stack whose streams go on at other decode pods, which sidecars find in a file, as they find them by a Service in a
// cluster.
type streamsFleet struct {
	*harness.Fleet
	engines []harness.Program // of the decode pods
	pods    string            // the file
}

// startPod starts a decode pod. Its engine takes its time, times a factor.
func (f *streamsFleet) startPod(t *testing.T, name, slower string) (harness.DecodePod, harness.Program) {
	t.Helper()
	engine := harness.Start(t, stack.Sim(harness.BinDir, name, "--role=decode", "--time-scale="+slower))
	at := engine.Addr("http")
	sidecar := harness.StartSidecar(t, at, "--continue-times=3", "--continue-discovery=file:"+f.pods, "--drain-timeout=5s", "--evacuate-timeout=10m")
	return harness.DecodePod{Engine: harness.Engine{Addr: at}, Sidecar: sidecar}, engine
}

// publish tells pickers and sidecars which pods there are.
func (f *streamsFleet) publish(t *testing.T) {
	t.Helper()
	var pods strings.Builder
	for _, p := range f.Decode {
		fmt.Fprintln(&pods, p.Addr())
	}
	harness.Replace(t, f.pods, pods.String())
	f.WriteEndpoints(t)
}

// running returns how many requests the decode engines run.
func (f *streamsFleet) running(t *testing.T) (counts []float64) {
	t.Helper()
	for _, p := range f.Decode {
		counts = append(counts, p.Engine.Metric(t, "vllm:num_requests_running"))
	}
	return counts
}

// TestRollingStreams replaces every decode pod under streams that would go on for a minute, with the chart's hook of a release whose streams
// go on elsewhere. Each engine is free when the hook ends, within seconds, each sidecar ends with its last stream, and every stream has
// the tokens of an undisturbed one: also those that leave for a pod which ends next.
func TestRollingStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	f := &streamsFleet{Fleet: harness.NewFleet(t, 1, 0), pods: filepath.Join(t.TempDir(), "pods")}
	for i := range 2 {
		pod, engine := f.startPod(t, fmt.Sprintf("old-%d", i), "100") // a fifth of a second for each token
		f.Decode, f.engines = append(f.Decode, pod), append(f.engines, engine)
	}
	f.publish(t)
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	var calls []harness.Call
	for i := range 12 {
		q := f.TokensCall(harness.Threshold/2+i%2*2*harness.Threshold, true)
		q.Tokens = 300
		calls = append(calls, q)
	}
	want := f.Wants(t, calls)
	var asked []<-chan harness.Reply
	for _, c := range calls {
		asked = append(asked, harness.Begin(t, c, f.Front.Addr, f.Model))
	}
	f.Eventually(t, "streams at both pods", func() (string, bool) {
		n := f.running(t)
		return fmt.Sprint(n), n[0]+n[1] == float64(len(calls)) && n[0] > 0 && n[1] > 0
	})
	var ending sync.WaitGroup
	defer ending.Wait()
	for i, old := range f.Decode {
		f.Decode[i], _ = f.startPod(t, fmt.Sprintf("new-%d", i), "1")
		f.publish(t)
		hook(t, preStopOf(t, "pool", "decode", map[string]string{"--engine": old.Engine.Addr, "--sidecar": old.Sidecar.Addr("metrics"),
			"--evacuate": old.Sidecar.Addr("admin")}))
		if n := old.Engine.Metric(t, "vllm:num_requests_running"); n != 0 {
			t.Errorf("the engine of pod %d ends with %v streams", i, n)
		}
		f.engines[i].MustStop(t)
		ending.Go(func() { old.Sidecar.MustStop(t) })
	}
	for i, got := range asked {
		harness.MustMatch(t, <-got, true, want[i])
	}
	ending.Wait()
	f.MustRest(t)
}
