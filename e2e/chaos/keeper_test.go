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

// chaosLoss is a decode engine that is gone, or refuses, with hand-offs in flight.
type chaosLoss struct {
	unit          string    // its pod
	most          int       // how many
	begin, end    time.Time // of the look at it; end is zero until the second look
	kept          bool      // its keeper was well
	before, after int64     // how many hand-offs the sidecar could not release so far
}

const (
	// telling is how long hand-offs are released after their decode engine was lost, if prefill can be told: mostly
	// some milliseconds.
	telling = 200 * time.Millisecond
	// recovery is how long after a prefill engine was away a test must not rely on its being told.
	recovery = 500 * time.Millisecond
	// toldInVain is how long that takes if prefill is gone.
	toldInVain = 6 * time.Second
	// composure is how long after its keeper was down a test must not rely on a sidecar's having met its prefill engines anew,
	// beyond the time that this took.
	composure = 1500 * time.Millisecond
)

// outage is when a keeper was seen to be down last, for the first and the last time. It is over when it has been seen up.
type outage struct {
	from, to time.Time
	over     bool
}

// settleLosses notes the hand-offs that could not be released: decode was gone, and its keeper, or prefill. None of the
// others may be stranded. It tells how many those were at most, and how many are stranded nevertheless.
func (c *chaosStack) settleLosses(done []chaosDone) (kept int, stranded int64) {
	last := map[string]time.Time{} // of those that are excused, by pod
	for _, l := range c.losses {
		excused := !l.kept || l.end.IsZero() || l.begin.Sub(last[l.unit]) < toldInVain
		for _, d := range done {
			away := strings.HasPrefix(d.action.target, "prefill") && d.action.kind != chaosSlow && d.action.kind != chaosRefuse
			cut := d.action.kind == chaosCut && d.action.target == l.unit
			excused = excused || (away || cut) && d.begin.Before(l.end) && d.end.After(l.begin.Add(-recovery))
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

// loseDecode begins a loss; most is how many hand-offs were in flight at most.
func (c *chaosStack) loseDecode(t *testing.T, target string, most int, before int64) {
	t.Helper()
	c.losses = append(c.losses, chaosLoss{unit: unitOf(target), most: most, begin: time.Now(), kept: c.kept(t, target), before: before})
}

// watch looks at what came of losses, and whether keepers that were down are up.
func (c *chaosStack) watch(t *testing.T) {
	t.Helper()
	for i := range c.losses {
		if l := &c.losses[i]; l.end.IsZero() && time.Since(l.begin) > telling {
			l.after, l.end = c.untoldAt(t, l.unit), time.Now()
		}
	}
	for unit, o := range c.outages {
		if o.over || c.active[unit] { // a sidecar that is stopped would not say
			continue
		}
		up, _, err := harness.ReadSeries(c.sidecarOf(unit).Addr("metrics"), "tandem_keeper_up")
		if err != nil {
			t.Fatal(err)
		}
		c.shake(unit)
		if up == 1 {
			o := c.outages[unit]
			o.over = true
			c.outages[unit] = o
		}
	}
}

// sidecarOf is that of the decode pod that a target is part of.
func (c *chaosStack) sidecarOf(target string) harness.Program {
	return c.running[strings.Replace(unitOf(target), "decode", "sidecar", 1)]
}

// untoldAt returns how many hand-offs the sidecar of the decode pod that a target is part of could not release so far.
func (c *chaosStack) untoldAt(t *testing.T, target string) int64 {
	t.Helper()
	return int64(harness.Sample(t, c.sidecarOf(target).Addr("metrics"), "tandem_kv_stranded_total"))
}

// strikeKeeper kills or stops the keeper of a sidecar, unless it is between two lives.
func (c *chaosStack) strikeKeeper(t *testing.T, a chaosAction) {
	t.Helper()
	c.shake(a.target)
	pid := c.keeperOf(t, a.target)
	if pid == 0 {
		return
	}
	signal := syscall.SIGKILL
	if a.kind == chaosPause {
		signal = syscall.SIGSTOP
		c.paused[a.target] = pid
	}
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// easeKeeper lets a keeper go on that is stopped. One that was killed its sidecar starts again.
func (c *chaosStack) easeKeeper(t *testing.T, a chaosAction) {
	t.Helper()
	defer c.shake(a.target)
	pid := c.paused[a.target]
	if pid == 0 {
		return
	}
	delete(c.paused, a.target)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// shake notes that the keeper of a pod is, or was, down.
func (c *chaosStack) shake(target string) {
	now := time.Now()
	o := c.outages[unitOf(target)]
	if now.Sub(o.to) > composure {
		o.from = now
	}
	o.to, o.over = now, false
	c.outages[unitOf(target)] = o
}

// kept reports whether the keeper of the decode pod that a target is part of has been well for long enough to notify prefill.
func (c *chaosStack) kept(t *testing.T, target string) bool {
	t.Helper()
	o := c.outages[unitOf(target)]
	up := harness.Sample(t, c.sidecarOf(target).Addr("metrics"), "tandem_keeper_up") == 1
	return up && time.Since(o.to) > composure+o.to.Sub(o.from)
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

// mustHaveKeepers waits until there is one keeper for each sidecar, and none beside them: those whose sidecars were killed
// have ended by themselves.
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

// keepers returns the processes of this test's keeper that have not ended.
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

// releasesAt reads how many hand-offs a sidecar has released in a way, and with a result; its metrics are at an address.
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
