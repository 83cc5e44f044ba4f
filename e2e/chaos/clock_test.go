package chaos

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

var chaosClock = flag.Bool("chaos.clock", false, "TestClockSteps runs: it builds the programs anew, with all of Go's library, which takes minutes")

// clockSteps is the environment variable from which programs of buildStepped read the steps of their clock: 20s:+1h,40s:-2h has the
// wall clock go an hour ahead when the process is 20 s old, and two back when it is 40 s old.
const clockSteps = "CLOCKSTEPS"

// steppedTime are the changes of Go's package time for that. Programs read the clock without a system call, so nothing outside of them
// can change what they read, and the clock of the machine is not the tests'. The monotonic reading stays, as it does when a
// machine's clock is set.
var steppedTime = []struct{ old, new string }{
	{"\t\"math/bits\"\n", "\t\"math/bits\"\n\t\"syscall\"\n"},
	{"func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", `func Now() Time {
	sec, nsec, mono := runtimeNow()
	for _, s := range clockSteps {
		if mono-startNano >= s.at {
			sec += s.by
		}
	}
`},
	{"// x/tools uses a linkname of time.Now in its tests. No harm done.\n", `var clockSteps = readClockSteps()

type clockStep struct{ at, by int64 } // age of the process (ns), and how far the clock goes (s)

func readClockSteps() (steps []clockStep) {
	rest, _ := syscall.Getenv("` + clockSteps + `")
	for len(rest) > 0 {
		one, colon := rest, 0
		rest = ""
		for i := range one {
			if one[i] == ',' {
				one, rest = one[:i], one[i+1:]
				break
			}
			if one[i] == ':' {
				colon = i
			}
		}
		at, errAt := ParseDuration(one[:colon])
		by, errBy := ParseDuration(one[colon+1:])
		if errAt != nil || errBy != nil {
			panic("` + clockSteps + ` has the step " + one)
		}
		steps = append(steps, clockStep{int64(at), int64(by / Second)})
	}
	return steps
}

// x/tools uses a linkname of time.Now in its tests. No harm done.
`},
}

// buildStepped builds the programs of a stack with clocks that step, and returns their folder.
func buildStepped(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	for _, change := range steppedTime {
		if strings.Count(text, change.old) != 1 {
			t.Fatalf("%s does not have, once, what is changed in it:\n%s", original, change.old)
		}
		text = strings.Replace(text, change.old, change.new, 1)
	}
	dir := t.TempDir()
	changed, overlay, bin := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "bin")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{changed: text, overlay: string(replaced)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay="+overlay, "-trimpath", "-ldflags=-s -w", "-o", bin+"/",
		"./cmd/epp", "./cmd/keeper", "./cmd/sidecar", "./cmd/sim")
	build.Dir, build.Env = harness.Root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building programs with clocks that step: %v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(harness.BinDir, "tandem"), filepath.Join(bin, "tandem")); err != nil {
		t.Fatal(err)
	}
	return bin
}

// stepsOfClock are the steps of a program's clock: an hour ahead and two back, in one order or the other, so that all clocks end an hour
// behind, and no two step together.
func stepsOfClock(program string) []string {
	h := uint64(0)
	for _, b := range []byte(program) {
		h = h*31 + uint64(b)
	}
	random := rand.New(rand.NewPCG(*chaosSeed, h))
	first, second := between(random, 30*time.Second, 40*time.Second), between(random, 45*time.Second, 60*time.Second)
	by := []string{"1h", "-2h"}
	if random.IntN(2) == 0 {
		slices.Reverse(by)
	}
	return []string{fmt.Sprintf("%s=%v:%s,%v:%s", clockSteps, first, by[0], second, by[1])}
}

// TestClockSteps has the wall clocks of all programs, but Envoy's, go an hour ahead and two back, each when no other does, while
// requests run. None may fail, and nothing may be left behind, grow, or be forgotten. Then programs fail as in TestChaos, with
// the clocks an hour behind. Programs that are started again step again.
func TestClockSteps(t *testing.T) {
	if !*chaosClock {
		t.Skip("make chaos-clock runs it")
	}
	bin := buildStepped(t)
	defer func(dir string) { harness.BinDir = dir }(harness.BinDir)
	harness.BinDir = bin
	size := chaosSize{prefill: 2, decode: 3, epp: 2}
	c := newChaosStack(t, size, chaosForm{share: true, env: stepsOfClock})
	c.awaitPickers(t)
	idle := c.holdings(t)
	for name, offset := range c.clocks(t) {
		if offset != 0 {
			t.Fatalf("the clock of %s is %v off before the load begins", name, offset)
		}
	}
	const portion, lasts, portions = 150, 5 * time.Second, 40
	load := &chaosLoad{f: c.Fleet, seed: *chaosSeed}
	sent, blocks, behind := 0, map[string]float64{}, 0
	for behind < 3 { // portions with all clocks behind
		if sent == portions*portion {
			t.Fatal("clocks have not stepped")
		}
		load.run(t.Context(), sent, sent+portion, lasts)
		sent += portion
		c.mustCountRight(t)
		c.mustRemember(t, blocks)
		now := c.clocks(t)
		t.Logf("after %d requests the clocks are off by %v", len(load.results), now)
		if !slices.ContainsFunc(slices.Collect(maps.Values(now)), func(d time.Duration) bool { return d != -time.Hour }) {
			behind++
		}
	}
	c.awaitIdle(t)
	for _, r := range load.results {
		if r.how != endRight && r.how != endLeft {
			t.Errorf("%s %s (%s, %v, stream %v): %s", r.call.id, r.how, r.call.behaviour, r.call.API, r.call.Stream, r.detail)
		}
	}
	if n := c.counts(t); n.expired+n.stale+n.foreign+n.stranded > 0 || n.handoffs == 0 {
		t.Errorf("hand-offs: %+v", n)
	}
	for name, p := range c.running {
		if lines := p.Output(); len(lines) > 100 {
			t.Errorf("%s has logged %d lines, among them\n%s", name, len(lines), strings.Join(lines[len(lines)-10:], "\n"))
		}
	}
	warm := c.holdings(t)

	after := &chaosLoad{f: c.Fleet, seed: *chaosSeed + 1}
	var loading sync.WaitGroup
	loading.Go(func() { after.run(t.Context(), 0, *chaosRequests, *chaosFor) })
	plan := planChaos(*chaosSeed, *chaosFor, size)
	done := c.follow(t, plan, *chaosFor)
	loading.Wait()
	c.awaitIdle(t)
	c.mustSettle(t, idle, warm)
	c.mustHaveKeepers(t)
	r := chaosReport{load: after, size: size, wanted: *chaosRequests, planned: len(plan), done: done, counts: c.counts(t), strands: c.strands}
	r.kept, r.dropped = c.assessLosses(done)
	r.check(t)
	t.Logf("%d requests while clocks stepped, %d with %d failures after that", len(load.results), len(after.results), len(done))
}

// clocks returns how far the clocks of programs are ahead, to the minute.
func (c *chaosStack) clocks(t *testing.T) map[string]time.Duration {
	t.Helper()
	ahead := map[string]time.Duration{}
	for name, p := range c.running {
		resp, err := harness.Client.Get("http://" + c.pageOf(p) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		at, err := http.ParseTime(resp.Header.Get("Date"))
		if err != nil {
			t.Fatalf("%s tells no time: %v", name, err)
		}
		ahead[name] = time.Until(at).Round(time.Minute)
	}
	return ahead
}

// pageOf returns where a program serves its metrics.
func (c *chaosStack) pageOf(p harness.Program) string {
	if isEngine(p) {
		return p.Addr("http")
	}
	return p.Addr("metrics")
}

func isEngine(p harness.Program) bool {
	return strings.HasPrefix(p.Name(), "prefill") || strings.HasPrefix(p.Name(), "decode")
}

// mustCountRight fails if pickers or sidecars have negative counters, or took a step for time that passed: no time that they
// measure, nor the sum of all, is near an hour.
func (c *chaosStack) mustCountRight(t *testing.T) {
	t.Helper()
	for name, p := range c.running {
		if isEngine(p) {
			continue
		}
		resp, err := harness.Client.Get("http://" + c.pageOf(p) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(page)) {
			series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			family, _, _ := strings.Cut(series, "{")
			if !strings.HasPrefix(family, "tandem_") {
				continue
			}
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				continue // a label has a space
			}
			base := strings.TrimSuffix(strings.TrimSuffix(family, "_total"), "_sum")
			seconds := strings.HasSuffix(base, "_seconds")
			counts := base != family || strings.HasSuffix(family, "_count") || strings.HasSuffix(family, "_bucket")
			if (seconds || counts) && value < 0 || seconds && value > 3000 {
				t.Errorf("%s has %s", name, strings.TrimSpace(line))
			}
		}
	}
}

// mustRemember fails if a picker has forgotten most of what it knew of prefix caches. blocks is what it knew at most.
func (c *chaosStack) mustRemember(t *testing.T, blocks map[string]float64) {
	t.Helper()
	for name, p := range c.running {
		if !strings.HasPrefix(name, "epp") {
			continue
		}
		now := harness.SumOf(t, p.Addr("metrics"), "tandem_prefix_blocks")
		if now < blocks[name]/2 || now == 0 {
			t.Errorf("%s knows of %v blocks in prefix caches, and knew of %v", name, now, blocks[name])
		}
		blocks[name] = max(blocks[name], now)
	}
}
