package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// chaosLoss is a decode engine that was killed, or refuses connections, with hand-offs in flight.
type chaosLoss struct {
	unit          string    // its pod
	most          int       // hand-offs in flight, at most
	begin, end    time.Time // of the loss, and of the reading of after; end is zero until then
	kept          bool      // the pod's keeper was up
	before, after int64     // hand-offs that the sidecar had failed to release
}

const (
	// releaseTime bounds the release of hand-offs after their decode engine was lost, if prefill can be notified: mostly some
	// milliseconds.
	releaseTime = 200 * time.Millisecond
	// reconnectTime is how long after a prefill engine is back a keeper may still fail to notify it.
	reconnectTime = 500 * time.Millisecond
	// failedReleaseTime bounds a release that fails because prefill has ended.
	failedReleaseTime = 6 * time.Second
	// keeperSettle is how much longer than its keeper was down a sidecar may take to connect to its prefill engines again.
	keeperSettle = 1500 * time.Millisecond
)

// outage is the newest time in which a keeper was seen to be down. It is over when the keeper has been seen up.
type outage struct {
	from, to time.Time
	over     bool
}

// assessLosses notes the hand-offs that no component could release: decode was lost, and its keeper or prefill too. The others
// must be released: it returns how many those were at most, and how many of them are stranded nevertheless.
func (c *chaosStack) assessLosses(done []chaosDone) (kept int, stranded int64) {
	last := map[string]time.Time{} // end of the newest excused loss, by pod
	for _, l := range c.losses {
		excused := !l.kept || l.end.IsZero() || l.begin.Sub(last[l.unit]) < failedReleaseTime
		for _, d := range done {
			away := prefillAway(d.action)
			cut := d.action.kind == chaosCut && d.action.target == l.unit
			excused = excused || (away || cut) && d.begin.Before(l.end) && d.end.After(l.begin.Add(-reconnectTime))
		}
		if excused {
			last[l.unit] = l.end
			if l.most > 0 {
				c.strands[decodeGone] += l.most
			}
			continue
		}
		kept += l.most
		stranded += l.after - l.before
	}
	return kept, stranded
}

// noteDecodeLost notes the loss of a decode engine, with at most so many hand-offs in flight.
func (c *chaosStack) noteDecodeLost(t *testing.T, target string, most int, before int64) {
	t.Helper()
	c.losses = append(c.losses, chaosLoss{unit: unitOf(target), most: most, begin: time.Now(), kept: c.kept(t, target), before: before})
}

// watch reads how many hand-offs each loss has stranded, and whether keepers that were down are up.
func (c *chaosStack) watch(t *testing.T) {
	t.Helper()
	for i := range c.losses {
		if l := &c.losses[i]; l.end.IsZero() && time.Since(l.begin) > releaseTime {
			l.after, l.end = c.strandedAt(t, l.unit), time.Now()
		}
	}
	for unit, o := range c.outages {
		if o.over || c.active[unit] { // a sidecar that is stopped does not answer
			continue
		}
		up, _, err := harness.ReadSeries(c.sidecarOf(unit).Addr("metrics"), "tandem_keeper_up")
		if err != nil {
			t.Fatal(err)
		}
		c.noteKeeperDown(unit)
		if up == 1 {
			o := c.outages[unit]
			o.over = true
			c.outages[unit] = o
		}
	}
}

// sidecarOf returns the sidecar of the decode pod that a target is part of.
func (c *chaosStack) sidecarOf(target string) harness.Program {
	return c.running[strings.Replace(unitOf(target), "decode", "sidecar", 1)]
}

// strandedAt returns how many hand-offs the sidecar of the decode pod that a target is part of could not release so far.
func (c *chaosStack) strandedAt(t *testing.T, target string) int64 {
	t.Helper()
	return int64(harness.Sample(t, c.sidecarOf(target).Addr("metrics"), "tandem_kv_stranded_total"))
}

// disturbKeeper kills or stops the keeper of a sidecar, or fills its descriptors, unless the keeper has ended and the sidecar has not
// restarted it yet.
func (c *chaosStack) disturbKeeper(t *testing.T, a chaosAction) {
	t.Helper()
	c.noteKeeperDown(a.target)
	pid := c.keeperOf(t, a.target)
	if pid == 0 {
		return
	}
	if a.kind == chaosFull {
		c.full[a.target] = exhaust(t, pid)
		return
	}
	signal := syscall.SIGKILL
	if a.kind == chaosPause || a.kind == chaosHang {
		signal = syscall.SIGSTOP
		c.paused[a.target] = pid
	}
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// restoreKeeper lets a stopped keeper go on, or open descriptors again. The sidecar itself restarts a keeper that was killed.
func (c *chaosStack) restoreKeeper(t *testing.T, a chaosAction) {
	t.Helper()
	defer c.noteKeeperDown(a.target)
	if f, ok := c.full[a.target]; ok {
		delete(c.full, a.target)
		f.restore(t)
		return
	}
	pid := c.paused[a.target]
	if pid == 0 {
		return
	}
	delete(c.paused, a.target)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// noteKeeperDown notes that the keeper of a pod is, or may just have been, down.
func (c *chaosStack) noteKeeperDown(target string) {
	now := time.Now()
	o := c.outages[unitOf(target)]
	if now.Sub(o.to) > keeperSettle {
		o.from = now
	}
	o.to, o.over = now, false
	c.outages[unitOf(target)] = o
}

// kept reports whether the keeper of the decode pod that a target is part of has been up for long enough to notify prefill.
func (c *chaosStack) kept(t *testing.T, target string) bool {
	t.Helper()
	o := c.outages[unitOf(target)]
	up := harness.Sample(t, c.sidecarOf(target).Addr("metrics"), "tandem_keeper_up") == 1
	return up && time.Since(o.to) > keeperSettle+o.to.Sub(o.from)
}

// keeperOf returns the process of a keeper; 0: there is none now.
func (c *chaosStack) keeperOf(t *testing.T, target string) (pid int) {
	t.Helper()
	parent := c.sidecarOf(target).PID()
	for _, p := range keepers(t) {
		if p.parent == parent {
			return p.pid
		}
	}
	return 0
}

// mustHaveKeepers waits until there is one keeper for each sidecar, and no other: keepers whose sidecars were killed have ended
// by themselves.
func (c *chaosStack) mustHaveKeepers(t *testing.T) {
	t.Helper()
	c.Eventually(t, "keepers", func() (string, bool) {
		of := map[int]int{}
		all := keepers(t)
		for _, p := range all {
			of[p.parent]++
		}
		whole := len(all) == len(c.Decode)
		for i := range c.Decode {
			whole = whole && of[c.sidecarOf("decode-"+strconv.Itoa(i)).PID()] == 1
		}
		return fmt.Sprint(all), whole
	})
}

type keeperProcess struct{ pid, parent int }

// keepers returns the running processes of this test's keeper program.
func keepers(t *testing.T) (list []keeperProcess) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if exe, err := os.Readlink(link); err != nil || exe != filepath.Join(harness.BinDir, "keeper") {
			continue // it has ended, or belongs to another user
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(link), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state parent …
		var p keeperProcess
		var state string
		number, rest, _ := strings.Cut(string(stat), " ")
		_, rest, _ = strings.Cut(rest, ") ")
		if p.pid, err = strconv.Atoi(number); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(rest, &state, &p.parent); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// releasesAt reads from the metrics page of a sidecar how many releases went a way, with a result.
func releasesAt(t *testing.T, metrics, way, result string) int64 {
	t.Helper()
	_, text := harness.FetchPage(t, "http://"+metrics+"/metrics")
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series != fmt.Sprintf("tandem_kv_release_total{result=%q,way=%q}", result, way) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		return int64(n)
	}
	return 0
}
