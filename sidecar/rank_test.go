package sidecar

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
)

// rankRig is a sidecar in front of several ranks, with the URL of each one's data port. Its requests know the ports as firstPort and
// those after it, whatever the listeners of the test have.
type rankRig struct {
	*rig
	urls []string
}

const firstPort = 8000

// startRanks serves a sidecar before the ranks whose addresses follow one another from first on.
func startRanks(t *testing.T, first string, ranks int, options ...option) *rankRig {
	t.Helper()
	r := &rankRig{rig: startRig(t, first, append(options, set(func(c *Config) { c.Engine.Ranks = ranks }))...)}
	for _, h := range r.Handlers(firstPort) {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.busy.Add(1)
			defer r.busy.Done()
			h.ServeHTTP(w, req)
		}))
		t.Cleanup(front.Close)
		r.urls = append(r.urls, front.URL)
	}
	return r
}

// neighbours opens n loopback ports that follow one another.
func neighbours(t *testing.T, n int) []net.Listener {
	t.Helper()
	for range 100 {
		open := []net.Listener{listen(t, "127.0.0.1:0")}
		for len(open) < n {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(open[0].Addr().(*net.TCPAddr).Port+len(open))))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		if len(open) == n {
			return open
		}
		for _, l := range open {
			l.Close()
		}
	}
	t.Fatalf("no %d free ports follow one another", n)
	return nil
}

// startRankEngines starts the engines of two ranks, which answer by one script.
func startRankEngines(t *testing.T, script ...act) []*fakeEngine {
	t.Helper()
	var engines []*fakeEngine
	for _, at := range neighbours(t, 2) {
		engines = append(engines, startEngineAt(t, at, script...))
	}
	return engines
}

// Each data port serves its own rank, with remote prefill, and nothing stays pinned.
func TestSimRanks(t *testing.T) {
	t.Parallel()
	prefill := startSim(t, sim.Config{})
	var decode []*server.Server
	for _, at := range neighbours(t, 2) {
		e, err := server.Serve(sim.Config{}, at, listen(t, "127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		decode = append(decode, e)
	}
	s := startRanks(t, addrOf(decode[0]), len(decode))
	for rank := range decode {
		for _, stream := range []bool{false, true} {
			before := decode[1-rank].Engine.State()
			read := decode[rank].Engine.State().KVBytesRead
			got := post(t, s.urls[rank]+completionsPath, simAsk(200, 8, stream), pd.HeaderPrefill, addrOf(prefill))
			got.mustBe(t, 200, "remote;reason=external;attempts=1;candidate=0")
			if decode[rank].Engine.State().KVBytesRead == read {
				t.Errorf("rank %d has read no KV", rank)
			}
			if after := decode[1-rank].Engine.State(); after != before {
				t.Errorf("a request for rank %d changed the other one: %+v, then %+v", rank, before, after)
			}
			mustFree(t, prefill, decode[rank])
		}
	}
	s.mustCount(t, 4, "tandem_requests_total", "decision", "remote", "code", "200")
	s.end()
}

// A client may have set the header. It chooses among the ranks of the pod, and nothing else.
func TestRankHeader(t *testing.T) {
	const first, second = 0, 1
	cases := []struct {
		name string
		port int
		sent []string
		want int // rank; -1 = refused
	}{
		{"none", first, nil, 0},
		{"the second one", first, []string{"10.0.0.1:8001"}, 1},
		{"the first one", first, []string{"10.0.0.1:8000"}, 0},
		{"over IPv6", first, []string{"[fd00::1]:8001"}, 1},
		{"another name of the pod", first, []string{"decode-0.serving.svc:8001"}, 1},
		{"below the ports", first, []string{"10.0.0.1:7999"}, -1},
		{"above the ports", first, []string{"10.0.0.1:8002"}, -1},
		{"the engine's port", first, []string{"127.0.0.1:8200"}, -1},
		{"no host", first, []string{"8001"}, -1},
		{"a URL", first, []string{"http://10.0.0.1:8001"}, -1},
		{"nothing in it", first, []string{""}, -1},
		{"two lines", first, []string{"10.0.0.1:8001", "10.0.0.1:8001"}, -1},
		{"a list", first, []string{"10.0.0.1:8000,10.0.0.1:8001"}, -1},
		{"at the port of the second one", second, []string{"10.0.0.1:8000"}, 1},
		{"nonsense there", second, []string{"x"}, 1},
	}
	calls := []struct {
		name string
		send func(t *testing.T, url, prefill string, header ...string) reply
	}{
		{"local", func(t *testing.T, url, _ string, header ...string) reply {
			return post(t, url+completionsPath, ask(false).body, header...)
		}},
		{"remote", func(t *testing.T, url, prefill string, header ...string) reply {
			return post(t, url+completionsPath, ask(false).body, append(header, pd.HeaderPrefill, prefill)...)
		}},
		{"passed through", func(t *testing.T, url, _ string, header ...string) reply {
			return post(t, url+"/tokenize", `{"prompt":"x"}`, header...)
		}},
	}
	for _, c := range cases {
		for _, call := range calls {
			t.Run(c.name+"/"+call.name, func(t *testing.T) {
				prefill, decode := startEngine(t, offering(handoffParams)), startRankEngines(t, says(200, "application/json", wholeAnswer))
				s := startRanks(t, decode[0].addr, len(decode))
				var header []string
				for _, value := range c.sent {
					header = append(header, pd.HeaderRank, value)
				}
				got := call.send(t, s.urls[c.port], prefill.addr, header...)
				if c.want < 0 {
					mustRefuseRank(t, got)
					prefill.mustSee(t)
				} else if got.status != 200 {
					t.Errorf("%d %s", got.status, got.body)
				}
				for rank, e := range decode {
					if seen := len(e.requests()); (seen == 1) != (rank == c.want) {
						t.Errorf("rank %d was asked %d times", rank, seen)
					}
				}
				for _, e := range append(decode, prefill) {
					for _, r := range e.requests() {
						if r.Header.Get(pd.HeaderRank) != "" {
							t.Error("an engine gets the header")
						}
					}
				}
			})
		}
	}
}

// mustRefuseRank checks that an answer blames the header, and says what it should be.
func mustRefuseRank(t *testing.T, got reply) {
	t.Helper()
	if d := got.decision(t); got.status != http.StatusBadRequest || d.Verdict != pd.Refused || d.Reason != pd.BadRequest {
		t.Errorf("%d %v", got.status, d)
	}
	if !strings.Contains(got.body, pd.HeaderRank+" must be HOST:PORT of one rank of this pod, with a port from 8000 to 8001.") {
		t.Errorf("body %s", got.body)
	}
}

// Requests that name no rank are counted like others that are refused.
func TestRefusedRankIsCounted(t *testing.T) {
	decode := startRankEngines(t, returnsSilently)
	s := startRanks(t, decode[0].addr, 2)
	mustRefuseRank(t, post(t, s.urls[0]+completionsPath, ask(false).body, pd.HeaderRank, "10.0.0.1:1"))
	s.mustCount(t, 1, "tandem_requests_total", "decision", "refused", "reason", "bad-request", "code", "400")
	s.mustCount(t, 0, "tandem_open_requests")
}

// A sidecar of one rank has nothing to choose: a picker that names one nevertheless does no harm.
func TestRankHeaderForOneRank(t *testing.T) {
	decode := startEngine(t, says(200, "application/json", wholeAnswer))
	s := startRanks(t, decode.addr, 1)
	post(t, s.urls[0]+completionsPath, ask(false).body, pd.HeaderRank, "10.0.0.1:8007").mustBe(t, 200, "local;reason=unplanned")
	if named := decode.only(t).Header.Get(pd.HeaderRank); named != "" {
		t.Errorf("the engine gets %s", named)
	}
}

// The pod is ready when all its ranks are. The health of a data port is that of its rank.
func TestRanksReady(t *testing.T) {
	decode := startRankEngines(t, returnsSilently)
	s := startRanks(t, decode[0].addr, 2)
	if err := s.Ready(); err != nil {
		t.Errorf("two healthy ranks: %v", err)
	}
	decode[1].failHealth()
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "rank 1") || strings.Contains(err.Error(), "rank 0") {
		t.Errorf("the second rank is sick: %v", err)
	}
	for rank, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		if got := get(t, s.urls[rank]+"/health"); got.status != want {
			t.Errorf("/health of rank %d: %d, want %d", rank, got.status, want)
		}
	}
}

// The drain waits for the requests of every rank, which are counted together, and no rank admits others.
func TestRanksDrain(t *testing.T) {
	g := newGate()
	decode := startRankEngines(t, then(streams(firstEvent), g.act, streams(secondEvent, doneEvent)))
	s := startRanks(t, decode[0].addr, 2)
	var running []*http.Response
	for _, url := range s.urls {
		resp := mustOpen(t, url+completionsPath, ask(true).body)
		readEvent(t, resp.Body)
		running = append(running, resp)
	}
	if open := s.open(); open != 2 {
		t.Errorf("%v requests are open, want 2", open)
	}
	drained := startDrain(t, s.rig, within(t))
	for _, url := range s.urls {
		post(t, url+completionsPath, ask(false).body).mustRefuse(t, http.StatusServiceUnavailable, pd.Draining)
	}
	select {
	case <-drained:
		t.Fatal("drained while streams run")
	default:
	}
	close(g.opened)
	for rank, resp := range running {
		if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != secondEvent+doneEvent {
			t.Errorf("rank %d: rest %q, %v", rank, rest, err)
		}
	}
	wait(t, drained, "the drain")
}

// The fallback budget is one for all ranks.
func TestRanksShareTheBudget(t *testing.T) {
	decode, prefill := startRankEngines(t, says(200, "application/json", wholeAnswer)), startEngine(t, says(500, "text/plain", ""))
	s := startRanks(t, decode[0].addr, 2, set(func(c *Config) { c.Fallback.Burst, c.Fallback.Ratio = 1, 0 }))
	post(t, s.urls[0]+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr).
		mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
	if d := post(t, s.urls[1]+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr).decision(t); d.Verdict != pd.Refused || d.Reason != pd.Budget {
		t.Errorf("with the budget spent: %v", d)
	}
}

// The records of requests are together, and name the rank's engine.
func TestRanksRecord(t *testing.T) {
	decode := startRankEngines(t, says(200, "application/json", wholeAnswer))
	s := startRanks(t, decode[0].addr, 2)
	for rank, e := range decode {
		id := fmt.Sprintf("r-%d", rank)
		post(t, s.urls[rank]+completionsPath, ask(false).body, pd.HeaderRequestID, id)
		s.busy.Wait()
		if record, page := s.record(t, id); len(record.Legs) != 1 || record.Legs[0].Engine != e.addr || "http://"+record.Decode != s.urls[rank] {
			t.Errorf("rank %d: %s", rank, page)
		}
	}
}

// Each rank is an engine with handshakes of its own.
func TestRanksWarmUp(t *testing.T) {
	prefill := startEngine(t, offering(handoffParams))
	models := func(w http.ResponseWriter, r *asked) {
		if r.URL.Path == "/v1/models" {
			says(200, "application/json", `{"data":[{"id":"m"}]}`)(w, r)
			return
		}
		says(200, "application/json", wholeAnswer)(w, r)
	}
	decode := startRankEngines(t, models)
	log := &logBuffer{wrote: make(chan struct{}, 64)}
	s := startRanks(t, decode[0].addr, 2, warmsUp(t, prefill.addr), log.collect)
	for log.lines("prefill engine is warm") < 2 {
		wait(t, log.wrote, "both ranks to be warm")
	}
	s.mustCount(t, 2, "tandem_warmup_total", "result", "ok")
	for rank, e := range decode {
		if last := e.requests()[len(e.requests())-1]; last.URL.Path != completionsPath {
			t.Errorf("rank %d was asked for %s last", rank, last.URL.Path)
		}
	}
}

// Ranks behind one port of vLLM are told by a header which of them serves a request, as the picker's plan says. A client's header has no
// effect.
func TestRanksBehindOnePort(t *testing.T) {
	for _, c := range []struct {
		name, connector, plan  string
		prefill, decode, local string // rank in the header of a leg; "" = none
	}{
		{"no plan", "nixlv2", "", "", "", ""},
		{"no rank", "nixlv2", "plan", "", "", ""},
		{"of prefill", "nixlv2", "plan;prefill-ranks=3", "3", "", ""},
		{"of decode", "nixlv2", "plan;decode-rank=1", "", "1", "1"},
		{"of both", "nixlv2", "plan;prefill-ranks=0;decode-rank=15", "0", "15", "15"},
		{"of both, pushed", "nixl-push", "plan;prefill-ranks=2;decode-rank=1", "2", "1", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, q question) {
				answer := map[string]string{"nixlv2": offer(handoffParams), "nixl-push": pushOffer}[c.connector]
				prefill, decode := startEngine(t, says(http.StatusOK, "application/json", answer)), startEngine(t, q.answer())
				s := startRig(t, decode.addr, set(func(c2 *Config) { c2.Engine.Connector = c.connector }))
				header := []string{"X-Data-Parallel-Rank", "7"}
				remote, local := slices.Concat(header, []string{pd.HeaderPrefill, prefill.addr}), header
				if c.plan != "" {
					remote = append(remote, pd.HeaderPlan, strings.Replace(c.plan, "plan", "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1", 1))
					rank := ""
					if c.local != "" {
						rank = ";decode-rank=" + c.local
					}
					local = slices.Concat(header, []string{pd.HeaderPlan, "local;id=0123456789abcdef;reason=short-prompt;strict=0;epp=1" + rank})
				}
				post(t, s.url+completionsPath, q.body, remote...)
				post(t, s.url+completionsPath, q.body, local...)
				legs := append(prefill.requests(), decode.requests()...)
				if len(legs) != 3 {
					t.Fatalf("%d legs", len(legs))
				}
				for i, want := range []string{c.prefill, c.decode, c.local} {
					if got := strings.Join(legs[i].Header.Values("X-Data-Parallel-Rank"), ","); got != want {
						t.Errorf("leg %d is for rank %q, want %q", i, got, want)
					}
				}
			})
		})
	}
}

// A prefill engine that was started anew with fewer ranks refuses the one that the plan names. That is no error of the client: another
// engine computes the prompt.
func TestRankThatIsGone(t *testing.T) {
	const gone = `{"error":{"message":"data_parallel_rank 3 is out of range [0, 2).","type":"BadRequestError","param":null,"code":400}}`
	both(t, func(t *testing.T, q question) {
		restarted := startEngine(t, says(http.StatusBadRequest, "application/json", gone))
		other, decode := startEngine(t, says(http.StatusOK, "application/json", offer(handoffParams))), startEngine(t, q.answer())
		s := startRig(t, decode.addr)
		r := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, restarted.addr+","+other.addr,
			pd.HeaderPlan, "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1;prefill-ranks=3,1")
		if r.status != http.StatusOK {
			t.Fatalf("the client got %d %s", r.status, r.body)
		}
		for _, leg := range []struct {
			of   *fakeEngine
			rank string
		}{{restarted, "3"}, {other, "1"}, {decode, ""}} {
			if got := leg.of.only(t).Header.Get("X-Data-Parallel-Rank"); got != leg.rank {
				t.Errorf("a leg is for rank %q, want %q", got, leg.rank)
			}
		}
	})
}
