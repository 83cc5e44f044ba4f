package rolling

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

var rollingRounds = flag.Int("rolling.rounds", 0, "how often TestRolling restarts every component; 2: each at its own address and "+
	"at another; 0: the first of each kind, once")

// rollingPart is a component that a rollout replaces. Its restart leaves a new one in its place: where it was (there), or at
// another address, as a pod of a Deployment. It returns when the old one has ended.
type rollingPart struct {
	name    string
	i       int
	restart func(t *testing.T, f *rollingFleet, i int, there bool)
}

// rollingParts returns all of them, in the order of a rollout.
func rollingParts() (parts []rollingPart) {
	for _, kind := range []rollingPart{
		{name: "picker", restart: restartPicker},
		{name: "decode pod", restart: restartPod},
		{name: "sidecar", restart: restartSidecar},
		{name: "prefill engine", restart: restartPrefill},
		{name: "proxy", restart: restartProxy},
	} {
		for kind.i = range rollingPairs {
			parts = append(parts, kind)
		}
	}
	return parts
}

// rollout replaces parts under a load, and notes what became of it.
type rollout struct {
	f      *rollingFleet
	l      *rollingLoad
	failed int // requests whose failure has been told
	rows   *tabwriter.Writer
}

// replace replaces one part, at its address or at another.
func (r *rollout) replace(t *testing.T, p rollingPart, there bool) {
	t.Helper()
	r.f.awaitPickers(t, rollingPairs)
	r.f.awaitPool(t)
	what, where := fmt.Sprintf("%s %d", p.name, p.i), map[bool]string{false: "another", true: "the same"}[there]
	served, _ := r.l.counts()
	begun := time.Now()
	p.restart(t, r.f, p.i, there)
	took := time.Since(begun)
	r.l.await(t, 12) // by what is there now
	now, _ := r.l.counts()
	failed := r.tell(t, what+" was replaced at "+where+" address")
	fmt.Fprintf(r.rows, "%s\t%s\t%d\t%d\t%.1f\n", what, where, now-served+failed, failed, took.Seconds())
}

// tell reports what has failed since it was last asked.
func (r *rollout) tell(t *testing.T, during string) (failed int) {
	t.Helper()
	told := r.failed
	r.failed = r.l.mustHaveServed(t, during, told)
	return r.failed - told
}

// TestRolling replaces every component under load, one after the other, as Kubernetes does: it leaves the endpoints at the
// moment at which the chart's preStop hook begins, gets SIGTERM after that, and has its successor before or after. No
// request fails, none is answered with other tokens, and nothing is stranded.
func TestRolling(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	f := newRollingFleet(t)
	f.awaitPickers(t, rollingPairs)
	l := f.press(t, 8, 0)
	l.await(t, 24)
	var table bytes.Buffer
	r := &rollout{f: f, l: l, rows: tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(r.rows, "component\taddress\trequests\tfailed\tseconds")
	for _, p := range rollingParts() {
		if *rollingRounds == 0 && p.i == 0 {
			r.replace(t, p, p.name == "picker" || p.name == "sidecar") // the shorter way, and the only one
		}
	}
	for round := range *rollingRounds {
		for _, p := range rollingParts() {
			r.replace(t, p, p.name == "sidecar" || (round+p.i)%2 == 0)
		}
	}
	l.end()
	r.tell(t, "the last answers ended")
	if err := r.rows.Flush(); err != nil {
		t.Fatal(err)
	}
	served, failed := l.counts()
	t.Logf("%d requests, %d failed\n%s", served+failed, failed, &table)
	f.mustBeWhole(t)
}

// mustBeWhole fails unless nothing is left of all requests, and nothing was stranded.
func (f *rollingFleet) mustBeWhole(t *testing.T) {
	t.Helper()
	f.MustRest(t)
	for _, p := range f.Decode {
		if n := stranded(t, p.Sidecar); n > 0 {
			t.Errorf("%v hand-offs could not be released", n)
		}
	}
}

func restartPrefill(t *testing.T, f *rollingFleet, i int, there bool) {
	old := f.engines[fmt.Sprintf("prefill-%d", i)]
	if there {
		f.withoutPrefill(t, i)
	} else {
		f.Prefill[i] = f.startPrefill(t, i, f.newHost())
		f.WriteEndpoints(t)
	}
	hook(t, preStop(t, "prefill", map[string]string{"--engine": old.Addr("http")}))
	mustHoldNothing(t, harness.Engine{Addr: old.Addr("http")})
	old.MustStop(t)
	if there {
		f.Prefill[i] = f.startPrefill(t, i, old.Addr("http"), "--side-channel-address="+old.Addr("sidechannel"))
		f.WriteEndpoints(t)
	}
}

// withoutPrefill writes the pool without prefill engine i.
func (f *rollingFleet) withoutPrefill(t *testing.T, i int) {
	t.Helper()
	all := f.Prefill
	defer func() { f.Prefill = all }()
	f.Prefill = append(append([]harness.Engine(nil), all[:i]...), all[i+1:]...)
	f.WriteEndpoints(t)
}

// mustHoldNothing fails unless a prefill engine that is about to end holds no hand-off, and lost none.
func mustHoldNothing(t *testing.T, e harness.Engine) {
	t.Helper()
	for _, name := range []string{harness.UsageGauge, harness.Expiries} {
		if n := e.Metric(t, name); n != 0 {
			t.Errorf("a prefill engine that was drained has %s %v", name, n)
		}
	}
}

func restartPod(t *testing.T, f *rollingFleet, i int, there bool) {
	old, oldEngine := f.Decode[i], f.engines[fmt.Sprintf("decode-%d", i)]
	if there {
		f.withoutPod(t, i)
	} else {
		f.Decode[i] = f.startPod(t, i, f.newHost())
		f.WriteEndpoints(t)
	}
	hook(t, preStop(t, "decode", map[string]string{"--engine": old.Engine.Addr, "--sidecar": old.Sidecar.Addr("metrics")}))
	if n := stranded(t, old.Sidecar); n > 0 {
		t.Errorf("%v hand-offs could not be released", n)
	}
	oldEngine.MustStop(t) // the hook is the engine's, and a native sidecar ends after it
	old.Sidecar.MustStop(t)
	if there {
		f.Decode[i] = f.startPod(t, i, old.Addr())
		f.WriteEndpoints(t)
	}
}

// withoutPod writes the pool without decode pod i.
func (f *rollingFleet) withoutPod(t *testing.T, i int) {
	t.Helper()
	all := f.Decode
	defer func() { f.Decode = all }()
	f.Decode = append(append([]harness.DecodePod(nil), all[:i]...), all[i+1:]...)
	f.WriteEndpoints(t)
}

// restartSidecar restarts the container alone: its pod stays in the pool, and no hook runs. It always comes back
// where it was.
func restartSidecar(t *testing.T, f *rollingFleet, i int, _ bool) {
	old := f.Decode[i]
	if n := stranded(t, old.Sidecar); n > 0 {
		t.Errorf("%v hand-offs could not be released", n)
	}
	old.Sidecar.MustStop(t)
	f.Decode[i].Sidecar = harness.StartSidecar(t, old.Engine.Addr, listenAt(old.Addr())...)
}

// restartPicker has no hook: pickers drain by themselves.
func restartPicker(t *testing.T, f *rollingFleet, i int, there bool) {
	old := f.Pickers[i]
	if there {
		old.MustStop(t)
		f.Pickers[i] = f.startReplica(t, i, old.Addr("extproc"))
		return
	}
	next := f.startReplica(t, i, f.newHost())
	f.names.set(append(f.pickerAddrs(), next.Addr("extproc"))...)
	f.awaitPickers(t, rollingPairs+1) // the Deployment waits for it, too: minReadySeconds
	f.Pickers[i] = next
	f.names.set(f.pickerAddrs()...)
	old.MustStop(t)
}

func restartProxy(t *testing.T, f *rollingFleet, i int, there bool) {
	old := f.proxies[i]
	if there {
		f.publish(t, f.proxies[1-i])
	} else {
		f.proxies[i] = f.startProxy(t, f.newHost())
		f.publish(t)
	}
	addr := harness.Listener(t, old)
	hook(t, preStop(t, "proxy", map[string]string{"--envoy": old.Admin()}))
	if err := old.Stop(); err != nil {
		t.Error(err)
	}
	if there {
		f.proxies[i] = f.startProxy(t, addr)
		f.publish(t)
	}
}

// TestRollingHandoff drains a prefill engine that holds a hand-off which decode has not read yet: the hook waits until it
// has, and the request does not notice.
func TestRollingHandoff(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	harness.BothForms(t, func(t *testing.T, stream bool) {
		f := &rollingFleet{Fleet: &harness.Fleet{Model: "tiny"}, engines: map[string]harness.Program{}}
		c := harness.Call{API: pd.APICompletions, Prompt: f.Fresh(3 * harness.Threshold), Tokens: 8, Stream: stream}
		t.Parallel()
		f.Plain = harness.StartSim(t, "plain", "--time-scale=0")
		prefill := f.startPrefill(t, 0, "127.0.0.1:0")
		decode := harness.StartSim(t, "decode-0", "--role=decode")
		g := harness.NewGate(t, decode.Addr, harness.Requests)
		s := harness.StartSidecar(t, g.Addr, "--hang-after=0") // a shut gate is an engine that hangs
		want := f.Want(t, c)
		g.Shut()
		got := harness.Begin(t, c.Remote(prefill.Addr), s.Addr("http"), f.Model)
		<-g.Held
		args := preStop(t, "prefill", map[string]string{"--engine": prefill.Addr})
		drain := exec.CommandContext(harness.Within(t), filepath.Join(harness.BinDir, "tandem"), args...)
		said, err := drain.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := drain.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(said)
		waits := false
		for !waits && lines.Scan() {
			waits = strings.Contains(lines.Text(), "no decode engine has pulled")
		}
		if !waits {
			t.Errorf("the hook does not wait for a hand-off that was not read: %v", drain.Wait())
		}
		select {
		case r := <-got:
			t.Fatalf("it was answered without being read: %+v", r)
		default:
		}
		g.Release()
		for lines.Scan() {
		}
		if err := drain.Wait(); err != nil {
			t.Fatalf("the hook: %v", err)
		}
		mustHoldNothing(t, prefill)
		f.engines["prefill-0"].MustStop(t)
		r := <-got
		harness.MustMatch(t, r, stream, want)
		if r.Status != http.StatusOK || r.Decision.Verdict != pd.Remote {
			t.Errorf("status %d, decision %v", r.Status, r.Decision)
		}
	})
}
