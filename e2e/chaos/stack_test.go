package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/stack"
)

// chaosStack is a stack whose programs come back where they were. Its programs are those of the schedule: prefill-0,
// decode-1, sidecar-1, epp-0. The keepers of sidecars come back by themselves.
type chaosStack struct {
	*harness.Fleet
	programs map[string]stack.Program
	running  map[string]harness.Program
	killed   chaosCounts          // what the engines and sidecars that were killed had counted
	strands  map[string]int       // how many hand-offs cannot be released, at most, by cause
	losses   []chaosLoss          // of decode engines, with hand-offs that only a keeper can release
	paused   map[string]int       // keepers that are stopped, by target
	outages  map[string]outage    // of keepers, by decode pod
	active   map[string]bool      // units that something is being done to
	before   map[string]int64     // hand-offs that the sidecars of decode engines that hang had failed to release, by target
	full     map[string]exhausted // programs that can open no descriptor more, by target
	far      map[string]string    // in the wide form, the address of each unit at the end of a long link
	form     chaosForm
}

// chaosForm is what a stack has that not every one does.
type chaosForm struct {
	wide  bool                          // a long link to each program that is in the pool
	share bool                          // the pickers tell each other their loads
	env   func(program string) []string // environment variables; nil: none
}

// chaosCounts are counters of the programs about hand-offs.
type chaosCounts struct {
	expired, stale, foreign int64 // at the engines
	stranded                int64 // hand-offs that sidecars could not release
	direct, unsure          int64 // and those that they released themselves, or may have
	handoffs                int64 // that ended by a notification, for comparison
}

func (c *chaosCounts) add(more chaosCounts) {
	c.expired += more.expired
	c.stale += more.stale
	c.foreign += more.foreign
	c.stranded += more.stranded
	c.direct += more.direct
	c.unsure += more.unsure
	c.handoffs += more.handoffs
}

// newChaosStack starts the programs, and what the form has.
func newChaosStack(t *testing.T, size chaosSize, form chaosForm) *chaosStack {
	t.Helper()
	c := &chaosStack{form: form, Fleet: harness.NewFleet(t, 0, 0), programs: map[string]stack.Program{}, running: map[string]harness.Program{}, strands: map[string]int{},
		paused: map[string]int{}, outages: map[string]outage{}, active: map[string]bool{}, before: map[string]int64{}, full: map[string]exhausted{}, far: map[string]string{}}
	c.Plain = harness.StartSim(t, "plain", "--time-scale=0")
	ports := freePorts(t, 3*size.prefill+6*size.decode+5*size.epp)
	take := func() string {
		port := ports[0]
		ports = ports[1:]
		return port
	}
	engine := func(role string) []string {
		return []string{"--role=" + role, "--port=" + take(), "--admin-port=" + take(), "--side-channel-address=127.0.0.1:" + take(),
			"--kv-lease=" + chaosLease.String(), "--log-level=warn"}
	}
	for i := range size.prefill {
		name := "prefill-" + strconv.Itoa(i)
		p := c.launch(t, name, stack.Sim(harness.BinDir, name, engine("prefill")...))
		c.Prefill = append(c.Prefill, engineOf(p))
	}
	pods := filepath.Join(t.TempDir(), "decode") // where streams go on
	var found strings.Builder
	for i := range size.decode {
		n := strconv.Itoa(i)
		p := c.launch(t, "decode-"+n, stack.Sim(harness.BinDir, "decode-"+n, engine("decode")...))
		flags := append(stack.KeeperFlags(harness.BinDir, stack.TransportTCP, ""), "--port="+take(), "--metrics-port="+take(),
			"--admin-address=127.0.0.1:"+take(), "--lease="+chaosLease.String(), "--first-event-timeout=10s",
			"--continue-times=2", "--continue-burst=1000", "--continue-discovery=file:"+pods)
		program, err := stack.Sidecar(harness.BinDir, p.Addr("http"), flags...)
		if err != nil {
			t.Fatal(err)
		}
		program.Name = "sidecar-" + n
		c.Decode = append(c.Decode, harness.DecodePod{Engine: engineOf(p), Sidecar: c.launch(t, program.Name, program)})
		fmt.Fprintln(&found, c.Decode[i].Addr())
	}
	if err := os.WriteFile(pods, []byte(found.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if form.wide {
		for i, e := range c.Prefill {
			c.far["prefill-"+strconv.Itoa(i)] = newLongLink(t, e.Addr)
		}
		for i, p := range c.Decode {
			c.far["decode-"+strconv.Itoa(i)] = newLongLink(t, p.Addr())
		}
	}
	c.WriteEndpoints(t)
	var shares []string
	for range size.epp {
		shares = append(shares, "127.0.0.1:"+take())
	}
	for i := range size.epp {
		flags := []string{"--secure-serving=false", "--config-file=" + c.Config, "--endpoints-file=" + c.Endpoints,
			"--grpc-port=" + take(), "--grpc-health-port=" + take(), "--metrics-port=" + take(), "--admin-address=127.0.0.1:" + take()}
		if form.share {
			flags = append(flags, "--share-address="+shares[i], "--share-with="+strings.Join(shares, ","))
		}
		program := stack.EPP(harness.BinDir, flags...)
		program.Name = "epp-" + strconv.Itoa(i)
		c.Pickers = append(c.Pickers, c.launch(t, program.Name, program))
	}
	c.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, "--idle-timeout=2s")
	return c
}

func engineOf(p harness.Program) harness.Engine { return harness.Engine{Addr: p.Addr("http")} }

// launch starts a program, for the first time or again.
func (c *chaosStack) launch(t *testing.T, name string, program stack.Program) harness.Program {
	t.Helper()
	c.programs[name] = program
	if c.form.env != nil {
		program.Env = append(slices.Clone(program.Env), c.form.env(name)...)
	}
	p := harness.Start(t, program)
	c.running[name] = p
	return p
}

// names returns all programs, in order.
func (c *chaosStack) names() []string { return slices.Sorted(maps.Keys(c.programs)) }

// freePorts are ports to listen on again and again: below those that the system gives to outgoing connections, so that
// none is taken while its program is down.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	const low, high = 12_000, 32_000
	var ports []string
	for port, tries := low+rand.IntN(high-low), 0; len(ports) < n; port, tries = port+1, tries+1 {
		if tries == high-low {
			t.Fatalf("only %d ports are free between %d and %d", len(ports), low, high)
		}
		if port == high {
			port = low
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			l.Close()
			ports = append(ports, strconv.Itoa(port))
		}
	}
	return ports
}

// begin has an action begin, and notes how many hand-offs it may strand.
func (c *chaosStack) begin(t *testing.T, a chaosAction) {
	t.Helper()
	c.active[unitOf(a.target)] = true
	p := c.running[a.target]
	cause, most := a.strands()
	before := c.openAt(t, a.target)
	stranded := int64(0)
	switch cause {
	case decodeHung:
		c.before[a.target] = c.strandedAt(t, a.target)
	case decodeGone:
		stranded = c.strandedAt(t, a.target)
	case prefillHung:
		most = harness.StateOf(t, p).Blocks.Used // a hand-off has one at least
	}
	switch {
	case strings.HasPrefix(a.target, "keeper"):
		c.disturbKeeper(t, a)
		return
	case a.kind == chaosKill:
		c.killed.add(c.count(t, a.target))
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	case a.kind == chaosPause || a.kind == chaosHang:
		c.signal(t, a.target, syscall.SIGSTOP)
	case a.kind == chaosFull:
		c.full[a.target] = exhaust(t, c.pid(a.target))
	case a.kind == chaosFar:
		c.move(t, unitOf(a.target), c.far[unitOf(a.target)])
	default:
		c.admin(t, http.MethodPost, p, a.fault)
	}
	switch cause {
	case sidecarKilled, sidecarHung:
		most = before.open + 1 // that came while the page was read
	case decodeGone:
		after := c.openAt(t, a.target) // some may have come since, and ended
		most = max(before.open, after.open+after.ended-before.ended)
		c.noteDecodeLost(t, a.target, most, stranded)
		return
	}
	if most > 0 {
		c.strands[cause] += most
	}
}

// The causes of hand-offs that cannot be released. Those of a decode engine that is gone are released by the keeper, if
// that is well, and has a prefill engine to tell.
const (
	sidecarKilled = "sidecar killed"
	decodeGone    = "decode gone after prefill, and its keeper or prefill as well"
	decodeCut     = "decode cut off"
	prefillCut    = "prefill broke off its answer"
	sidecarHung   = "sidecar stopped for longer than the lease"
	prefillHung   = "prefill stopped for longer than the lease"
	decodeHung    = "decode stopped for longer than the lease"
)

// strands returns why an action may leave hand-offs that no component can release, and how many a fault can leave at most. For
// other actions than faults, most is 0: begin counts the hand-offs in flight.
func (a chaosAction) strands() (cause string, most int) {
	var f fault.Fault
	if a.fault != "" && json.Unmarshal([]byte(a.fault), &f) != nil {
		return "", 0
	}
	role, _, _ := strings.Cut(a.target, "-")
	switch {
	case role == "sidecar" && a.kind == chaosKill:
		return sidecarKilled, 0
	case role == "sidecar" && a.kind == chaosHang:
		return sidecarHung, 0
	case role == "prefill" && a.kind == chaosHang:
		return prefillHung, 0
	case role == "decode" && a.kind == chaosHang:
		return decodeHung, 0 // end counts those that the sidecar could not release
	case role == "decode" && (a.kind == chaosKill || a.kind == chaosRefuse):
		return decodeGone, 0
	case role == "decode" && a.kind == chaosCut:
		return decodeCut, f.Count
	case role == "prefill" && a.kind == chaosCut && f.Fault != "reset-before":
		return prefillCut, f.Count
	}
	return "", 0
}

// podLoad is how many requests a sidecar has, hand-offs that it releases included, and how many it has had.
type podLoad struct{ open, ended int }

// openAt returns the load of the decode pod that a target is part of; of other targets it is nothing.
func (c *chaosStack) openAt(t *testing.T, target string) (l podLoad) {
	t.Helper()
	if unit := unitOf(target); strings.HasPrefix(unit, "decode") {
		page := c.running[strings.Replace(unit, "decode", "sidecar", 1)].Addr("metrics")
		l.ended = int(harness.SumOf(t, page, "tandem_requests_total"))
		l.open = int(harness.Sample(t, page, "tandem_open_requests"))
	}
	return l
}

// end has an action end.
func (c *chaosStack) end(t *testing.T, a chaosAction) {
	t.Helper()
	delete(c.active, unitOf(a.target))
	p := c.running[a.target]
	if cause, _ := a.strands(); cause == decodeHung {
		c.strands[cause] += int(c.strandedAt(t, a.target)-c.before[a.target]) + c.openAt(t, a.target).open
	}
	switch {
	case strings.HasPrefix(a.target, "keeper"):
		c.restoreKeeper(t, a)
	case a.kind == chaosKill:
		c.launch(t, a.target, c.programs[a.target])
		if strings.HasPrefix(a.target, "sidecar") {
			c.noteKeeperDown(a.target)
		}
	case a.kind == chaosPause || a.kind == chaosHang:
		c.signal(t, a.target, syscall.SIGCONT)
	case a.kind == chaosFull:
		c.full[a.target].restore(t)
	case a.kind == chaosFar:
		c.move(t, unitOf(a.target), "")
	default:
		c.admin(t, http.MethodDelete, p, "")
	}
}

// pid returns the process of Envoy, or of a program.
func (c *chaosStack) pid(target string) int {
	if target == "envoy-0" {
		return c.Front.Pid
	}
	return c.running[target].PID()
}

func (c *chaosStack) signal(t *testing.T, target string, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(c.pid(target), s); err != nil {
		t.Fatal(err)
	}
}

// move has the pool name another address for a pod; "" is its own.
func (c *chaosStack) move(t *testing.T, pod, addr string) {
	t.Helper()
	if addr == "" {
		delete(c.Moved, pod)
	} else {
		c.Moved[pod] = addr
	}
	c.WriteEndpoints(t)
}

func (c *chaosStack) admin(t *testing.T, method string, p harness.Program, fault string) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), method, "http://"+p.Addr("admin")+"/sim/faults", strings.NewReader(fault))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("fault %s at %s: %s %s", fault, p.Name(), resp.Status, text)
	}
}

// count reads what a program has counted since it started.
func (c *chaosStack) count(t *testing.T, name string) chaosCounts {
	t.Helper()
	switch p := c.running[name]; {
	case strings.HasPrefix(name, "sidecar"):
		at := p.Addr("metrics")
		return chaosCounts{stranded: int64(harness.Sample(t, at, "tandem_kv_stranded_total")),
			direct: releasesAt(t, at, "nixl", "ok"), unsure: releasesAt(t, at, "nixl", "unsure")}
	case strings.HasPrefix(name, "epp"):
		return chaosCounts{}
	default:
		s := harness.StateOf(t, p)
		return chaosCounts{expired: s.Expired, stale: s.StaleReads, foreign: s.ForeignReads, handoffs: s.Released}
	}
}

// counts is what all programs have counted, those that were killed as well.
func (c *chaosStack) counts(t *testing.T) chaosCounts {
	t.Helper()
	sum := c.killed
	for _, name := range c.names() {
		sum.add(c.count(t, name))
	}
	return sum
}

// holdings returns what all programs hold. The simulator does not report its goroutines, and Envoy has none.
func (c *chaosStack) holdings(t *testing.T) map[string]harness.Holdings {
	t.Helper()
	uses := map[string]harness.Holdings{"envoy": harness.HoldingsOf(t, c.Front.Pid, "")}
	for _, name := range c.names() {
		p, metrics := c.running[name], ""
		if !strings.HasPrefix(name, "prefill") && !strings.HasPrefix(name, "decode") {
			metrics = p.Addr("metrics")
		}
		uses[name] = harness.HoldingsOf(t, p.PID(), metrics)
	}
	return uses
}

// awaitIdle waits until nothing is left of all requests: no load at the pickers, no leg and no release at the sidecars, no block
// held at the engines, no stream and no request at Envoy.
func (c *chaosStack) awaitIdle(t *testing.T) {
	t.Helper()
	for _, p := range c.running {
		switch name := p.Name(); {
		case strings.HasPrefix(name, "epp"):
			c.Eventually(t, "load in flight at "+name, func() (string, bool) {
				state, err := harness.EndpointsOf(p)
				if err != nil {
					t.Fatal(err)
				}
				sum := 0
				for _, e := range state.Endpoints {
					sum += e.Requests + e.Tokens
				}
				inflight := harness.SumOf(t, p.Addr("metrics"), "tandem_inflight")
				return fmt.Sprint(sum, " ", inflight), sum == 0 && inflight == 0
			})
		case strings.HasPrefix(name, "sidecar"):
			c.Eventually(t, "requests at "+name, func() (string, bool) {
				open, legs := harness.Sample(t, p.Addr("metrics"), "tandem_open_requests"), harness.SumOf(t, p.Addr("metrics"), "tandem_inflight")
				return fmt.Sprint(open, " ", legs), open == 0 && legs == 0
			})
		default:
			c.Eventually(t, "blocks held by "+name, func() (string, bool) {
				blocks := harness.StateOf(t, p).Blocks
				return fmt.Sprintf("%+v", blocks), blocks.Used == 0
			})
		}
	}
	c.Eventually(t, "streams open at Envoy", func() (string, bool) {
		picks, requests := c.Front.Stat(t, "cluster.epp.upstream_rq_active"), c.Front.Stat(t, "cluster.pool.upstream_rq_active")
		return fmt.Sprint(picks, requests), picks <= 1 && requests == 0 // EDS has a stream
	})
}

// mustSettle waits until no program has noticeably more goroutines and descriptors than before, nor half as much memory
// again: idle connections go after some seconds, and memory is returned when it is looked for.
func (c *chaosStack) mustSettle(t *testing.T, idle, warm map[string]harness.Holdings) {
	t.Helper()
	const few = 12 // connections of metrics pages, health checks and the like, which come and go
	c.Eventually(t, "in use", func() (string, bool) {
		var over []string
		for name, u := range c.holdings(t) {
			base := idle[name]
			if strings.HasPrefix(name, "epp") { // it keeps connections to engines, which come with the first scrapes
				base = warm[name]
			}
			if u.Goroutines > base.Goroutines+few || u.Descriptors > base.Descriptors+few || u.RSS > warm[name].RSS*3/2+32 {
				over = append(over, fmt.Sprintf("%s: %v, before %v, after light load %v", name, u, idle[name], warm[name]))
			}
		}
		return strings.Join(over, "; "), len(over) == 0
	})
}

// awaitPickers waits until Envoy takes all pickers for healthy: an action on one of them must leave Envoy another.
func (c *chaosStack) awaitPickers(t *testing.T) {
	t.Helper()
	c.Eventually(t, "pickers that Envoy takes for healthy", func() (string, bool) {
		n := c.Front.Stat(t, "cluster.epp.membership_healthy")
		return strconv.Itoa(n), n == len(c.Pickers)
	})
}

// follow carries out a plan for a time, as carryOut says, and returns the actions that were carried out.
func (c *chaosStack) follow(t *testing.T, plan []chaosAction, lasts time.Duration) (done []chaosDone) {
	t.Helper()
	carryOut(t.Context(), plan, lasts, func(s chaosStep) {
		c.watch(t)
		if s.begins {
			if strings.HasPrefix(s.target, "epp") {
				c.awaitPickers(t)
			}
			done = append(done, chaosDone{action: s.chaosAction, begin: time.Now()})
			c.begin(t, s.chaosAction)
		} else {
			c.end(t, s.chaosAction)
			i := slices.IndexFunc(done, func(d chaosDone) bool { return d.action == s.chaosAction })
			done[i].end = time.Now()
		}
	})
	return done
}

// chaosDone is an action that was carried out.
type chaosDone struct {
	action     chaosAction
	begin, end time.Time
}
