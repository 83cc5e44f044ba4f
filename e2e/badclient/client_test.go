package badclient

import (
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

var badClients = flag.Int("bad.clients", 100, "how many clients at once TestBadCrowds has of each kind")

const (
	door1 = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	// closed stands for a status where there is none: Envoy closes connections on what is no HTTP without a word, since its
	// filters for the picker hold its own answer back until the connection is gone.
	closed = 0
)

// badCase is one client that does one thing wrong.
type badCase struct {
	name           string
	say            func(c *badClient)
	envoy, sidecar int  // status
	ours           bool // the answer is Tandem's, so its body must be in the API's shape
}

// says returns a client that sends a text.
func says(text string) func(c *badClient) { return func(c *badClient) { c.say("%s", text) } }

// chunks returns a client that sends the same chunk again and again.
func chunks(chunk string, n int) func(c *badClient) {
	return func(c *badClient) { c.say(door1+"Transfer-Encoding: chunked\r\n\r\n").sayMuch(chunk, n) }
}

// badCases are clients that break a rule each; good is a body that an engine takes.
func badCases(model string) []badCase {
	good := `{"model":"` + model + `","prompt":"hello","max_tokens":2}`
	long := strings.Replace(good, `"max_tokens":2`, `"max_tokens":1000`, 1) // it is not answered before the sidecar sees that its client has gone
	with := func(members string) string { return strings.TrimSuffix(good, "}") + "," + members + "}" }
	post := func(body string, header ...string) func(c *badClient) {
		return says(h1("POST", "/v1/completions", body, header...))
	}
	raw := func(rest string) func(c *badClient) { return says(door1 + rest) }
	v10 := func(s string) func(c *badClient) { return says(strings.Replace(s, "HTTP/1.1", "HTTP/1.0", 1)) }
	return []badCase{
		{"nothing wrong", post(good), 200, 200, false},
		{"one header of 100 kB", post(good, "x-a: "+strings.Repeat("a", 100<<10)), closed, 431, false},
		{"300 headers", post(good, strings.Split(strings.Repeat("x-a: b,", 299)+"x-a: b", ",")...), closed, 431, true},
		{"target of 100 kB", says(h1("POST", "/v1/completions?"+strings.Repeat("a", 100<<10), good)), closed, 431, false},
		{"100 MB announced", raw("Content-Length: 100000000\r\n\r\n"), 413, 413, true},
		{"100 MB announced, and asked first", raw("Expect: 100-continue\r\nContent-Length: 100000000\r\n\r\n"), 413, 413, true},
		{"100 MB sent", func(c *badClient) { c.say(door1+"Content-Length: 100000000\r\n\r\n").sayMuch(" ", 100_000_000) }, 413, 413, true},
		{"100 MB in chunks", chunks("1000\r\n"+strings.Repeat(" ", 0x1000)+"\r\n", 100_000_000), 413, 413, true},
		{"less than announced, and closed", func(c *badClient) { c.say(door1 + "Content-Length: 1000\r\n\r\n{").CloseWrite() }, closed, closed, false},
		{"more than announced", raw("Content-Length: 10\r\n\r\n" + good), 400, 400, false},
		{"half-closed", func(c *badClient) { c.say("%s", h1("POST", "/v1/completions", long)).CloseWrite() }, closed, closed, false},
		{"stops in its body", raw("Content-Length: 100\r\n\r\n{"), 408, 408, true},
		{"length and chunks", raw(fmt.Sprintf("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(good), good)), closed, 200, false},
		{"two lengths", raw("Content-Length: 4\r\nContent-Length: 5\r\n\r\n12345"), closed, 400, false},
		{"length with a sign", raw("Content-Length: +5\r\n\r\n12345"), closed, 400, false},
		{"negative length", raw("Content-Length: -5\r\n\r\n12345"), closed, 400, false},
		{"space before a colon", raw("Content-Length : 5\r\n\r\n12345"), closed, 400, false},
		{"unknown coding", raw("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), closed, 501, false},
		{"two codings", raw("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"), closed, 501, false},
		{"bare line feeds", says(strings.ReplaceAll(h1("POST", "/v1/completions", good), "\r\n", "\n")), 200, 200, false},
		{"no chunk size", raw("Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400, 400, true},
		{"overflowing chunk size", raw("Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"), 400, 400, true},
		{"endless chunk extension", func(c *badClient) { c.say(door1+"Transfer-Encoding: chunked\r\n\r\n1;").sayMuch("a", 10<<20) }, 408, 400, true},
		{"extensions of every chunk", chunks("1;"+strings.Repeat("a", 1000)+"\r\n \r\n", 10<<20), 408, 400, true},
		{"endless trailers", func(c *badClient) {
			c.say(door1+"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n", len(good), good).sayMuch("a: b\r\n", 10<<20)
		}, 431, 400, true},
		{"chunks of one byte", func(c *badClient) {
			c.say(door1+"Transfer-Encoding: chunked\r\n\r\n").sayMuch("1\r\n \r\n", 6*100_000).say("%x\r\n%s\r\n0\r\n\r\n", len(good), good)
		}, 200, 200, false},
		{"no UTF-8", post(strings.Replace(good, "hello", "\xff\xfe\xc0\x80", 1)), 400, 400, false},
		{"UTF-16", post("\xff\xfe{\x00}\x00"), 400, 400, true},
		{"compressed", post("\x1f\x8b\x08\x00", "Content-Encoding: gzip"), 400, 400, true},
		{"a million brackets", post(with(`"a":` + strings.Repeat("[", 1_000_000))), 400, 400, true},
		{"a number of a million digits", post(strings.Replace(good, `:2`, ":"+strings.Repeat("9", 1_000_000), 1)), 400, 400, false},
		{"a name of a million letters", post(with(`"` + strings.Repeat("k", 1_000_000) + `":1`)), 200, 200, false},
		{"half a million members", post(with(strings.Repeat(`"k":1,`, 500_000) + `"k":1`)), 200, 200, false},
		{"the model twice", post(with(`"model":"other"`)), 400, 400, true},
		{"HTTP/1.0", v10(h1("POST", "/v1/completions", good)), 200, 200, false},
		{"HTTP/1.0, kept alive", v10(h1("POST", "/v1/completions", good, "Connection: keep-alive")), 200, 200, false},
		{"HTTP/1.0, streamed", v10(h1("POST", "/v1/completions", with(`"stream":true`))), 200, 200, false},
		{"no host", says("POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), 400, 400, false},
		{"no such method", says("GE,T / HTTP/1.1\r\nHost: x\r\n\r\n"), closed, 400, false},
		{"NUL in a header", post(good, "x-a: a\x00b"), closed, 400, false},
		{"garbage", says("\x00\x01\x02garbage\r\n\r\n"), closed, 400, false},
		{"TLS", func(c *badClient) { c.say("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03").CloseWrite() }, closed, 400, false},
		{"absolute target", says(h1("POST", "http://other.invalid/v1/completions", good)), 200, 200, false},
		{"target with dots", says(h1("POST", "/v1/x/../completions", good)), 200, 404, false},
		{"target with slashes", says(h1("POST", "//v1//completions", good)), 200, 404, false},
		{"TRACE", says("TRACE / HTTP/1.1\r\nHost: x\r\n\r\n"), 404, 404, false},
		{"an unknown expectation", post(good, "Expect: tea"), 417, 417, false},
		{"no expectation is made to wait", post(good, "Expect: 100-continue"), 200, 200, false},
	}
}

// TestBadClients has clients that break one rule each, all at once, beside well-behaved ones, at each of the doors.
func TestBadClients(t *testing.T) {
	s := newBadStack(t)
	for _, d := range s.doors() {
		door, addr := d.name, d.addr
		t.Run(door, func(t *testing.T) {
			s.beside(t, addr, func(t *testing.T) {
				var all sync.WaitGroup
				for _, c := range badCases(s.Model) { // not parallel tests: of those, as many run as there are cores
					all.Go(func() { t.Run(c.name, func(t *testing.T) { s.try(t, addr, door, c) }) })
				}
				all.Wait()
			})
		})
	}
	t.Run("pipelined", s.testPipelined)
	s.mustBeUnharmed(t)
}

// badDoor is where clients come in.
type badDoor struct{ name, addr string }

// doors returns the whole path, and the sidecar alone.
func (s *badStack) doors() []badDoor {
	return []badDoor{{"envoy", s.Front.Addr}, {"sidecar", s.sidecar.Addr("http")}}
}

func (s *badStack) try(t *testing.T, addr, door string, c badCase) {
	t.Helper()
	client := newBadClient(t, addr)
	c.say(client)
	got, want := client.hear(t), map[string]int{"envoy": c.envoy, "sidecar": c.sidecar}[door]
	if got.status != want {
		t.Errorf("%d %.200s (%v), want %d", got.status, got.body, got.dropped, want)
	}
	if c.ours && want != closed && !got.inShape() {
		t.Errorf("the body is %.200q", got.body)
	}
}

// testPipelined sends requests without waiting for answers: they come in order, and what stands behind a bad one is not run.
func (s *badStack) testPipelined(t *testing.T) {
	good := `{"model":"` + s.Model + `","prompt":"hello","max_tokens":2}`
	for _, d := range s.doors() {
		door, addr := d.name, d.addr
		c := newBadClient(t, addr)
		for range 3 {
			c.say("%s", h1("POST", "/v1/completions", good)).say("%s", h1("GET", "/v1/models", ""))
		}
		c.say("%s", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"+h1("GET", "/v1/models", ""))
		for i := range 3 {
			first, second := c.hear(t), c.hear(t)
			if first.status != 200 || !strings.Contains(first.body, "text_completion") || second.status != 200 || !strings.Contains(second.body, `"list"`) {
				t.Errorf("%s: pair %d: %d %.80s, %d %.80s", door, i, first.status, first.body, second.status, second.body)
			}
		}
		if bad := c.hear(t); bad.status == 200 {
			t.Errorf("%s: a length that is none: %d", door, bad.status)
		}
		if after := c.hear(t); after.status != closed {
			t.Errorf("%s: behind it: %d %.80s", door, after.status, after.body)
		}
	}
}

// beside runs something beside well-behaved clients of a door. None of them must fail, and their times must be of the order
// that they are without it: the bound is wide because two cores serve all of it, and who is above it may try again, because
// others may have had the machine meanwhile.
func (s *badStack) beside(t *testing.T, door string, run func(t *testing.T)) {
	t.Helper()
	const tries = 3
	for try := 1; ; try++ {
		unharmed, times := s.measureBeside(t, door, run)
		t.Log(times)
		if unharmed {
			return
		}
		if try == tries {
			t.Errorf("%d times: %s", tries, times)
			return
		}
	}
}

// measureBeside is one try of beside.
func (s *badStack) measureBeside(t *testing.T, door string, run func(t *testing.T)) (unharmed bool, times string) {
	t.Helper()
	harness.WaitIdle(t, s.Decode[0].Engine)
	alone := s.startNeighbours(t, door)
	idle := time.NewTimer(time.Second)
	defer idle.Stop()
	<-idle.C
	quiet, failed := alone.end()
	n := s.startNeighbours(t, door)
	t.Run("", run)
	took, moreFailed := n.end()
	if failed = append(failed, moreFailed...); len(failed) > 0 {
		t.Errorf("%d of %d requests beside failed: %s", len(failed), len(took), failed[0])
	}
	p50, p99, was50, was99 := harness.Quantile(took, 0.5), harness.Quantile(took, 0.99), harness.Quantile(quiet, 0.5), harness.Quantile(quiet, 0.99)
	const most, mostAtWorst = 10, 100 // of few hundred requests the 99th percentile is the third worst
	return p50 <= most*was50 && p99 <= mostAtWorst*was99,
		fmt.Sprintf("beside: %d requests, p50 %v, p99 %v; alone %d, %v, %v", len(took), p50, p99, len(quiet), was50, was99)
}

// crowds are kinds of clients that come in numbers. Each is given a way to ask whether to go on. Of those that make an engine
// or a core work, as honest ones would, there are few: what they cost is no more than their due.
var crowds = []struct {
	name string
	few  bool
	run  func(c *badClient, model string, on func() bool)
}{
	{"say nothing", false, func(_ *badClient, _ string, on func() bool) { drip(on, func() {}) }},
	{"a byte of the head now and then", false, func(c *badClient, _ string, on func() bool) {
		c.say(door1 + "x-slow: ")
		drip(on, func() { c.say("a") })
	}},
	{"a byte of the body now and then", false, func(c *badClient, _ string, on func() bool) {
		c.say(door1 + "Content-Length: 100000\r\n\r\n{")
		drip(on, func() { c.say(" ") })
	}},
	{"a byte of a long answer now and then", true, func(c *badClient, model string, on func() bool) {
		_ = c.SetReadBuffer(4096)
		c.say("%s", h1("POST", "/v1/completions", `{"model":"`+model+`","prompt":"a","max_tokens":500,"ignore_eos":true,"stream":true}`))
		drip(on, func() { _, _ = c.reader.ReadByte() })
	}},
	{"HTTP/2, reset at once", true, func(c *badClient, _ string, on func() bool) {
		c.h2Open()
		for stream := 1; stream < 400 && on(); stream += 2 {
			b := h2Frame(nil, h2Headers, h2EndHeaders, stream, h2Head())
			c.say("%s", string(h2Frame(b, h2Reset, 0, stream, []byte{0, 0, 0, 8})))
		}
		drip(on, func() {})
	}},
	{"HTTP/2, headers without end", true, func(c *badClient, _ string, on func() bool) {
		c.h2Open().say("%s", string(h2Frame(nil, h2Headers, 0, 1, h2Head())))
		more := strings.Repeat(string(h2Frame(nil, h2Continuation, 0, 1, h2Field(nil, "x-a", strings.Repeat("a", 100)))), 100)
		for range 100 {
			c.say("%s", more)
		}
		drip(on, func() {})
	}},
	{"HTTP/2, many calls whose answers have no window", true, func(c *badClient, model string, on func() bool) {
		c.h2Open(0, 4, 0, 0, 0, 0) // SETTINGS_INITIAL_WINDOW_SIZE = 0
		body := []byte(`{"model":"` + model + `","prompt":"a","max_tokens":2}`)
		for stream := 1; stream < 40; stream += 2 {
			b := h2Frame(nil, h2Headers, h2EndHeaders, stream, h2Head())
			c.say("%s", string(h2Frame(b, h2Data, h2EndStream, stream, body)))
		}
		drip(on, func() {})
	}},
}

// TestHeadersWithoutEnd has an HTTP/2 client that never ends its headers: the connection must be ended for it. Beside it one
// that ends its body with trailers, as gRPC's clients may, is served.
func TestHeadersWithoutEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	s := newBadStack(t)
	more := string(h2Frame(nil, h2Continuation, 0, 1, h2Field(nil, "x-a", strings.Repeat("a", 100))))
	for _, d := range s.doors() {
		c := newBadClient(t, d.addr)
		c.h2Open().say("%s", string(h2Frame(nil, h2Headers, 0, 1, h2Head()))).sayMuch(more, 10<<20)
		if kinds := c.drain(); kinds[h2Headers] > 0 || kinds[h2Data] > 0 {
			t.Errorf("%s: frames %v for half a head", d.name, kinds)
		}
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		body := `{"model":"` + s.Model + `","prompt":"hello","max_tokens":2}`
		req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+d.addr+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength, req.Trailer = -1, http.Header{"X-Sum": {"1"}}
		req.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("%s: with trailers: %s %s", d.name, resp.Proto, resp.Status)
		}
	}
	s.mustBeUnharmed(t)
}

// drip does something ten times a second for as long as it should.
func drip(on func() bool, do func()) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for on() {
		do()
		<-tick.C
	}
}

// TestBadCrowds has many clients of each kind at once, for three times as long as a body may pause.
func TestBadCrowds(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	s := newBadStack(t)
	for _, d := range s.doors() {
		door, addr := d.name, d.addr
		t.Run(door, func(t *testing.T) {
			s.beside(t, addr, func(t *testing.T) {
				over := time.Now().Add(3 * badPause)
				var all sync.WaitGroup
				for _, kind := range crowds {
					number := *badClients
					if kind.few {
						number = max(1, number/10)
					}
					for range number {
						c, err := dialBad(addr)
						if err != nil {
							t.Fatalf("%s: %v", kind.name, err)
						}
						all.Go(func() {
							defer c.Close()
							kind.run(c, s.Model, func() bool { return time.Now().Before(over) })
						})
					}
				}
				all.Wait()
			})
		})
	}
	s.mustBeUnharmed(t)
}

// TestHeldBodies has clients send more than may be held, and not end it: what goes beyond is refused at once, and may come
// again when the others have been given up.
func TestHeldBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	s := newBadStack(t)
	for _, d := range s.doors() {
		door, addr := d.name, d.addr
		t.Run(door, func(t *testing.T) {
			const size = badBody / 2
			head := door1
			if door == "sidecar" {
				head += "x-prefiller-host-port: " + s.prefills + "\r\n"
			}
			var mu sync.Mutex // guards status
			status := map[int]int{}
			var all sync.WaitGroup
			for range badSent / size {
				c := newBadClient(t, addr)
				all.Go(func() {
					c.say("%sContent-Length: %d\r\n\r\n", head, size+1).sayMuch(" ", size)
					r := c.hear(t)
					mu.Lock()
					defer mu.Unlock()
					status[r.status]++
					if r.status == http.StatusServiceUnavailable && (r.header.Get("Retry-After") == "" || !r.inShape()) {
						t.Errorf("refused with %v %s", r.header, r.body)
					}
				})
			}
			all.Wait()
			t.Logf("statuses %v", status)
			if status[http.StatusServiceUnavailable] == 0 || status[http.StatusRequestTimeout] == 0 ||
				status[http.StatusServiceUnavailable]+status[http.StatusRequestTimeout] != badSent/size {
				t.Errorf("statuses %v, want some 503, and 408 for those that were held", status)
			}
			s.mustServe(t, addr)
		})
	}
	s.mustBeUnharmed(t)
}
