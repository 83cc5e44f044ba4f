package kvfeed

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

const size = 16 // tokens in a block

// fakeClock is a clock that is set by hand. Like a machine's, it may be set to another time, which is not time that passes.
type fakeClock struct {
	mu   sync.Mutex
	now  time.Time
	step time.Duration
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.Add(c.step)
}
func (c *fakeClock) Since(t time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.Sub(t)
}
func (c *fakeClock) AfterFunc(time.Duration, func()) epp.Timer { panic("no timer is needed") }
func (c *fakeClock) pass(d time.Duration)                      { c.mu.Lock(); c.now = c.now.Add(d); c.mu.Unlock() }

// pool is a feed with endpoints, and what it logs.
type pool struct {
	*Feed
	clock     *fakeClock
	log       *bytes.Buffer
	endpoints []*epp.Endpoint
}

func newPool(t *testing.T, options Options, addresses ...string) *pool {
	t.Helper()
	if options.Limit == 0 {
		options.Limit = 1 << 20
	}
	p := &pool{clock: &fakeClock{now: time.Unix(1000, 0)}, log: new(bytes.Buffer)}
	var writing sync.Mutex
	p.Feed = New(options, p.clock, slog.New(slog.NewTextHandler(locked{&writing, p.log}, nil)))
	t.Cleanup(func() { p.Close() })
	for i, address := range addresses {
		e := epp.NewEndpoint("ns", fmt.Sprintf("pod-%d", i), netip.MustParseAddrPort(address), "", nil)
		e.Slot, e.Pod = i, e.Name
		p.endpoints = append(p.endpoints, e)
		p.EndpointJoined(e)
	}
	return p
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// ids are those of n blocks of a prompt, and one more token.
func ids(prompt, n int) (all []uint32) {
	for i := range n*size + 1 {
		all = append(all, uint32(prompt*100_000+i))
	}
	return all
}

func request(ids []uint32) *epp.Request {
	return &epp.Request{Model: "m", Prompt: epp.Prompt{Tokens: len(ids), IDs: ids}}
}

// cached returns how many blocks of a request each endpoint has.
func (p *pool) cached(r *epp.Request) (blocks []int) {
	c := make([]epp.Candidate, len(p.endpoints))
	for i := range c {
		c[i] = epp.Candidate{Endpoint: p.endpoints[i], Load: new(epp.Load)}
	}
	p.Match(r, &r.Prompt, c)
	for i := range c {
		blocks = append(blocks, c[i].Cached/size)
	}
	return blocks
}

// wants checks what the endpoints have of a prompt of ten blocks.
func (p *pool) wants(t *testing.T, prompt int, want ...int) {
	t.Helper()
	if got := p.cached(request(ids(prompt, 10))); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v blocks of prompt %d, want %v", got, prompt, want)
	}
}

// eventually waits until the endpoints have so much of a prompt.
func (p *pool) eventually(t *testing.T, prompt int, want ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for fmt.Sprint(p.cached(request(ids(prompt, 10)))) != fmt.Sprint(want) {
		select {
		case <-look.C:
		case <-ctx.Done():
			p.wants(t, prompt, want...)
			t.Fatalf("%+v\n%s", p.State(), p.log)
		}
	}
}

// stored is a message that says that blocks first to last-1 of a prompt are stored, in MessagePack.
func stored(rank, prompt, first, last int) []byte { return storedIn("GPU", rank, prompt, first, last) }

// storedIn does it of blocks in a kind of memory.
func storedIn(medium string, rank, prompt, first, last int) []byte {
	names := make([]uint64, last)
	for i := range names {
		names[i] = uint64(prompt*1000 + i + 1)
	}
	return storedAs(names, medium, rank, prompt, first, true)
}

// storedAs does it of blocks with these names, up to the last of them. If the blocks are not described, they have no token ids and the first one no
// predecessor.
func storedAs(names []uint64, medium string, rank, prompt, first int, described bool) []byte {
	last := len(names)
	text := func(b []byte, s string) []byte { return append(append(b, 0xd9, byte(len(s))), s...) }
	array := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n)) }
	name := func(b []byte, i int) []byte {
		return binary.BigEndian.AppendUint64(append(b, 0xcf), names[i])
	}
	b := array(nil, 3)
	b = binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(999.5))
	b = append(array(b, 1), 0x86)
	b = text(text(b, "type"), "BlockStored")
	b = text(text(b, "medium"), medium)
	b = array(text(b, "block_hashes"), last-first)
	for i := first; i < last; i++ {
		b = name(b, i)
	}
	b = text(b, "parent_block_hash")
	if first > 0 && described {
		b = name(b, first-1)
	} else {
		b = append(b, 0xc0)
	}
	if !described {
		return append(array(text(b, "token_ids"), 0), append(text(nil, "block_size"), 0, byte(rank))...)
	}
	b = array(text(b, "token_ids"), (last-first)*size)
	for _, id := range ids(prompt, last)[first*size : last*size] {
		b = binary.BigEndian.AppendUint32(append(b, 0xce), id)
	}
	b = append(text(b, "block_size"), size)
	return append(b, byte(rank))
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// delivers has an engine tell without a network.
func (p *pool) delivers(t *testing.T, endpoint, rank int, n uint64, payload []byte) {
	t.Helper()
	if err := p.Deliver(p.endpoints[endpoint], rank, number(n), payload); err != nil {
		t.Fatal(err)
	}
}

func TestMatch(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000", "10.0.0.2:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 4))
	p.delivers(t, 1, 0, 0, stored(0, 1, 0, 2))
	p.delivers(t, 1, 1, 0, stored(1, 1, 0, 7)) // another rank
	p.wants(t, 1, 4, 7)
	p.wants(t, 2, 0, 0)
	if got := p.How(request(ids(1, 10)), p.endpoints[0]); got != "events" {
		t.Errorf("known by %q", got)
	}

	p.EndpointJoined(p.endpoints[0].With("", map[string]string{"a": "b"})) // a new version of it
	p.wants(t, 1, 4, 7)
	p.EndpointLeft(p.endpoints[1])
	p.wants(t, 1, 4, 0)
	other := epp.NewEndpoint("ns", "pod-9", p.endpoints[1].Addr, "", nil) // with the same address and slot
	other.Slot = 1
	p.EndpointJoined(other)
	p.endpoints[1] = other
	p.wants(t, 1, 4, 0)
	if got := p.How(request(ids(1, 10)), other); got != "" {
		t.Errorf("known by %q, though it has told nothing", got)
	}
}

// TestTiers: what is in slower memory follows what is in faster one, and what a store that is shared has counts where engines have one.
func TestTiers(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 2))
	p.delivers(t, 0, 0, 1, storedIn("CPU", 0, 1, 0, 5))
	p.delivers(t, 0, 0, 2, storedIn("STORAGE", 0, 1, 0, 6))
	p.delivers(t, 1, 0, 0, storedIn("EXTERNAL", 0, 1, 0, 8))
	p.delivers(t, 1, 0, 1, stored(0, 1, 0, 3))
	p.delivers(t, 2, 0, 0, stored(0, 2, 0, 1))
	p.wants(t, 1, 6, 8, 0)
	c := []epp.Candidate{{Endpoint: p.endpoints[0]}, {Endpoint: p.endpoints[1]}, {Endpoint: p.endpoints[2]}}
	r := request(ids(1, 10))
	p.Match(r, &r.Prompt, c)
	for i, want := range []epp.Loads{{3 * size, size, 0}, {0, 0, 5 * size}, {}} {
		if c[i].Loads != want {
			t.Errorf("endpoint %d loads %v tokens, want %v", i, c[i].Loads, want)
		}
	}
	held := p.Holds("m", r.Prompt)
	if got, want := fmt.Sprint(held), "[{ns/pod-0 10.0.0.1:8000 0 96 map[cpu:48 disk:16 gpu:32] events} "+
		"{ns/pod-1 10.0.0.2:8000 0 48 map[gpu:48] events} {ns/pod-1 10.0.0.2:8000 -1 128 map[shared:128] events} {ns/pod-2 10.0.0.3:8000 0 0 map[] events}]"; got != want {
		t.Errorf("held %s, want %s", got, want)
	}
	if got := fmt.Sprint(p.State().Endpoints[0].Sources[0].Tiers, p.State().Shared); got != "map[cpu:5 disk:6 gpu:2] 8" {
		t.Errorf("blocks of the first engine, and shared ones: %s", got)
	}
	for _, e := range p.endpoints {
		p.EndpointLeft(e)
	}
	if n := p.State().Shared; n != 0 {
		t.Errorf("%d blocks are in a store of which no engine tells", n)
	}
}

// names are those that vLLM gives by default to n blocks of a prompt.
func names(t *testing.T, prompt, n int) (kvhash.Algorithm, []uint64) {
	t.Helper()
	a, err := kvhash.Parse("sha256", "")
	if err != nil {
		t.Fatal(err)
	}
	return a, kvhash.New(a).Append(nil, &kvhash.Prompt{Tokens: ids(prompt, n), BlockTokens: size})
}

// TestNames: blocks that are looked up by their engines' names are also found if an engine has not described them, or if the picker has missed
// those before them.
func TestNames(t *testing.T) {
	vllm, all := names(t, 1, 10)
	for name, test := range map[string]struct {
		told           [][]byte // nil = the message is lost
		want, byTokens int      // blocks
	}{
		"described": {[][]byte{storedAs(all[:4], "GPU", 0, 1, 0, true)}, 4, 4},
		"lost, then told again": {[][]byte{storedAs(all[:3], "GPU", 0, 1, 0, true), nil, storedAs(all[:10], "GPU", 0, 1, 3, true),
			storedAs(all[:3], "GPU", 0, 1, 0, true)}, 10, 3},
		"offloaded before the picker began": {[][]byte{storedAs(all[:6], "CPU", 0, 1, 0, false)}, 6, 0},
		"in a store":                        {[][]byte{storedAs(all[:6], "STORAGE", 0, 1, 2, false), storedAs(all[:2], "OBJ", 0, 1, 0, false)}, 2, 0},
	} {
		for options, want := range map[Options]int{{Names: vllm}: test.want, {}: test.byTokens} {
			t.Run(name+", by "+options.Names.String(), func(t *testing.T) {
				p := newPool(t, options, "10.0.0.1:8000")
				for i, message := range test.told {
					if message != nil {
						p.delivers(t, 0, 0, uint64(i), message)
					}
				}
				p.wants(t, 1, want)
				p.wants(t, 2, 0)
				if salted := request(ids(1, 10)); want > 0 {
					salted.Prompt.Salt = "mine"
					if got := p.cached(salted); got[0] != 0 {
						t.Errorf("%d blocks of another salt", got[0])
					}
				}
				if got := p.log.String(); got != "" {
					t.Errorf("logged %q", got)
				}
			})
		}
	}
}

// TestPresumeByNames: a prompt is presumed where it was sent, also after another request has used the memory of its keys.
func TestPresumeByNames(t *testing.T) {
	vllm, _ := names(t, 1, 10)
	p := newPool(t, Options{Names: vllm, Presume: time.Second}, "10.0.0.1:8000", "10.0.0.2:8000")
	r := request(ids(1, 10))
	p.Presume(r, &r.Prompt, p.endpoints[1])
	p.wants(t, 1, 0, 10)
	p.clock.pass(3 * time.Second)
	p.wants(t, 1, 0, 0)
}

// TestTheLastTokenIsComputed: an engine that has all of a prompt computes its last block again.
func TestTheLastTokenIsComputed(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 4))
	all := ids(1, 4)
	for _, c := range []struct{ tokens, blocks int }{{4*size + 1, 4}, {4 * size, 3}, {4*size - 1, 3}, {size, 0}, {1, 0}} {
		if got := p.cached(request(all[:c.tokens])); got[0] != c.blocks {
			t.Errorf("%d blocks of a prompt of %d tokens, want %d", got[0], c.tokens, c.blocks)
		}
	}
}

func TestSaltedPromptsAreApart(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 4))
	r := request(ids(1, 4))
	r.Prompt.Salt = "mine"
	if got := p.cached(r); got[0] != 0 {
		t.Errorf("%d blocks of another salt", got[0])
	}
}

// TestLostMessages: what an engine has is forgotten if messages are lost and not replayed, and if it restarts.
func TestLostMessages(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 4))
	p.delivers(t, 0, 0, 2, stored(0, 2, 0, 3))
	p.wants(t, 1, 0)
	p.wants(t, 2, 3)
	p.delivers(t, 0, 0, 0, stored(0, 3, 0, 5))
	p.wants(t, 2, 0)
	p.wants(t, 3, 5)
	if s := p.State().Endpoints[0].Sources[0]; s.Lost != 1 || s.Restarts != 1 || s.Blocks != 5 {
		t.Errorf("%+v", s)
	}
}

// TestPresume: a prompt is taken to be where it was sent, for the time that is configured and not longer than twice that.
func TestPresume(t *testing.T) {
	p := newPool(t, Options{Presume: 2 * time.Second}, "10.0.0.1:8000", "10.0.0.2:8000")
	first, second := request(ids(1, 10)), request(ids(2, 10))
	p.wants(t, 1, 0, 0)
	p.Presume(first, &first.Prompt, p.endpoints[1])
	p.wants(t, 1, 0, 10)
	if got := p.How(first, p.endpoints[1]); got != "presumed" {
		t.Errorf("known by %q", got)
	}
	p.clock.pass(1900 * time.Millisecond)
	p.Presume(second, &second.Prompt, p.endpoints[0])
	p.clock.pass(1900 * time.Millisecond)
	p.wants(t, 1, 0, 10)
	p.wants(t, 2, 10, 0)
	p.clock.pass(300 * time.Millisecond)
	p.wants(t, 1, 0, 0)
	p.Presume(second, &second.Prompt, p.endpoints[1])
	p.clock.pass(1900 * time.Millisecond)
	p.wants(t, 2, 0, 10)
	p.clock.pass(time.Hour)
	p.wants(t, 2, 0, 0)

	p.delivers(t, 0, 0, 1, stored(0, 3, 0, 1))
	p.Presume(second, &second.Prompt, p.endpoints[0])
	p.wants(t, 2, 10, 0)
	p.delivers(t, 0, 0, 0, stored(0, 3, 0, 1)) // it has restarted
	p.wants(t, 2, 0, 0)

	p.delivers(t, 0, 0, 1, stored(0, 1, 0, 4)) // what an engine tells stays
	p.clock.pass(time.Hour)
	p.wants(t, 1, 4, 0)
	if all := p.Holds("m", first.Prompt); len(all) != 1 || all[0].Tokens != 4*size || all[0].How != "events" {
		t.Errorf("%+v", all)
	}
}

// TestPresumeWhileTheClockIsSet: the time that a prompt is presumed is time that passes.
func TestPresumeWhileTheClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
		p := newPool(t, Options{Presume: 2 * time.Second}, "10.0.0.1:8000")
		r := request(ids(1, 10))
		p.wants(t, 1, 0)
		p.Presume(r, &r.Prompt, p.endpoints[0])
		p.clock.mu.Lock()
		p.clock.step = step
		p.clock.mu.Unlock()
		p.wants(t, 1, 10)
		p.clock.pass(5 * time.Second)
		p.wants(t, 1, 0)
	}
}

// engine publishes on loopback, and tells where, as vLLM does.
type engine struct {
	publisher zmtp.Publisher
	mu        sync.Mutex
	sent      [][]byte
	http      *httptest.Server
	address   string // of its API
}

func startEngine(t *testing.T, page string) *engine {
	t.Helper()
	e := &engine{}
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	live, replay := listen(), listen()
	serving.Go(func() { _ = e.publisher.Serve(ctx, live) })
	serving.Go(func() { _ = zmtp.Reply(ctx, replay, e.replay) })
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	e.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != page:
			http.NotFound(w, r)
		case page == "/kv_event_sources":
			fmt.Fprintf(w, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}}`, port(live), port(replay))
		default:
			fmt.Fprintf(w, `{"kv_events":{"publisher":"zmq","endpoint_port_base":%d,"dp_size":1,"replay_endpoint_port_base":%d}}`, port(live), port(replay))
		}
	}))
	e.address = strings.TrimPrefix(e.http.URL, "http://")
	t.Cleanup(func() { stop(); serving.Wait(); e.http.Close() })
	return e
}

func (e *engine) replay(asked [][]byte, send func(...[]byte) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := binary.BigEndian.Uint64(asked[1]); n < uint64(len(e.sent)); n++ {
		if err := send(nil, nil, number(n), e.sent[n]); err != nil {
			return err
		}
	}
	return send(nil, nil, number(math.MaxUint64), nil)
}

func (e *engine) publishes(payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.publisher.Publish(nil, number(uint64(len(e.sent))), payload)
	e.sent = append(e.sent, payload)
}

// goesOn publishes a message again and again, until stop is called.
func (e *engine) goesOn(payload []byte) (stop func()) {
	ended, publishing := make(chan struct{}), new(sync.WaitGroup)
	publishing.Go(func() {
		each := time.NewTicker(20 * time.Millisecond)
		defer each.Stop()
		for {
			select {
			case <-each.C:
				e.publishes(payload)
			case <-ended:
				return
			}
		}
	})
	return func() { close(ended); publishing.Wait() }
}

// TestEnginesAreAsked: an engine says where it publishes, and what it published before is replayed.
func TestEnginesAreAsked(t *testing.T) {
	for _, page := range []string{"/kv_event_sources", "/server_info"} {
		t.Run(page[1:], func(t *testing.T) {
			e := startEngine(t, page)
			e.publishes(stored(0, 1, 0, 4))
			p := newPool(t, Options{Dial: true}, e.address)
			p.eventually(t, 1, 4)
			e.publishes(stored(0, 1, 4, 6))
			stop := e.goesOn(stored(0, 2, 0, 1)) // the subscription may have come after that message: the next one shows that it is missing
			p.eventually(t, 1, 6)
			stop()
			if s := p.State().Endpoints[0]; s.Problem != "" || len(s.Sources) != 1 || s.Sources[0].How != namedByEngine || !s.Sources[0].Connected {
				t.Errorf("%+v", s)
			}
			p.EndpointLeft(p.endpoints[0])
			p.wants(t, 1, 0)
		})
	}
}

// TestEnginesConnect: engines connect to the picker, and the topic says which endpoint they are.
func TestEnginesConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p := newPool(t, Options{Listen: address, Topic: "kv@"}, "10.0.0.1:8000", "10.0.0.2:8000")
	dial := func(kind string) *zmtp.Conn {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for {
			c, err := zmtp.Dial(ctx, new(net.Dialer), address, kind, 1<<20)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				return c
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	first, second := dial(zmtp.Pub), dial(zmtp.Pub)
	send := func(c *zmtp.Conn, topic string, n uint64, payload []byte) {
		t.Helper()
		if err := c.Send([]byte(topic), number(n), payload); err != nil {
			t.Fatal(err)
		}
	}
	send(first, "kv@10.0.0.1:8000@m", 0, stored(0, 1, 0, 4))
	send(second, "kv@pod-1@m", 0, stored(0, 1, 0, 3))
	p.eventually(t, 1, 4, 3)
	send(second, "kv@10.9.9.9:8000@m", 1, stored(0, 2, 0, 3)) // of no endpoint
	send(second, "kv@10.0.0.2@m", 1, stored(0, 1, 3, 5))
	p.eventually(t, 1, 4, 5)
	first.Close()
	again := dial(zmtp.Pub) // the engine has restarted
	send(again, "kv@10.0.0.1:8000@m", 0, stored(0, 1, 0, 1))
	p.eventually(t, 1, 1, 5)
	if s := p.State(); s.Strangers != 1 || s.Endpoints[0].Sources[0].Restarts != 1 || s.Endpoints[0].Sources[0].How != connects {
		t.Errorf("%+v", s)
	}
	if bad := dial(zmtp.Pub); bad.Send([]byte("kv@")) == nil { // ends that connection only
		if _, err := bad.Receive(); err == nil {
			_, err = bad.Receive() // after the subscription
			if err == nil {
				t.Error("a message of one part is taken")
			}
		}
	}
	p.wants(t, 1, 1, 5)
}

// fullListener accepts nothing at first, as if all descriptors were in use.
type fullListener struct {
	net.Listener
	once sync.Once
}

func (l *fullListener) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { err = &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE} })
	if err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// TestEnginesConnectAfterAFailedAccept: when all descriptors were in use for a while, engines connect afterwards.
func TestEnginesConnectAfterAFailedAccept(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newPool(t, Options{Topic: "kv@"}, "10.0.0.1:8000")
	p.work.Go(func() { p.accept(&fullListener{Listener: l}) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := zmtp.Dial(ctx, new(net.Dialer), l.Addr().String(), zmtp.Pub, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send([]byte("kv@10.0.0.1:8000@m"), number(0), stored(0, 1, 0, 4)); err != nil {
		t.Fatal(err)
	}
	p.eventually(t, 1, 4)
}

func TestPlaces(t *testing.T) {
	m := &member{Endpoint: epp.NewEndpoint("ns", "a", netip.MustParseAddrPort("10.0.0.7:8000"), "", nil)}
	for text, want := range map[string]string{
		"tcp://*:5557":             "10.0.0.7:5557",
		"tcp://0.0.0.0:5557":       "10.0.0.7:5557",
		"tcp://[::]:5557":          "10.0.0.7:5557",
		"tcp://192.0.2.1:22":       "10.0.0.7:22", // never another host
		"tcp://picker.ns.svc:5557": "kvEventsConfig.zmqEndpoint",
		"ipc:///tmp/events":        "not of the form",
		"tcp://*":                  "no port",
		"tcp://*:0":                "no port",
		"":                         "not of the form",
	} {
		got, err := m.dialed(text)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		`{}`: "[]", `{"0":{"enable_kv_cache_events":false}}`: "[]", `[]`: "error", `{"x":{}}`: "error", `{"-1":{}}`: "error",
		`{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"b"},"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"a","replay_endpoint":null}}`: "[{0 a } {1 b }]",
	} {
		all, err := readVLLM([]byte(text))
		if got := fmt.Sprint(all); err != nil != (want == "error") || err == nil && got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`{}`: "[]", `{"kv_events":null}`: "[]", `"x"`: "error", `{"kv_events":{"publisher":"zmq","dp_size":100000}}`: "error",
		`{"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"dp_size":2,"replay_endpoint_port_base":6000}}`: "[{0 tcp://*:5557 tcp://*:6000} {1 tcp://*:5558 tcp://*:6001}]",
	} {
		all, err := readSGLang([]byte(text))
		if got := fmt.Sprint(all); err != nil != (want == "error") || err == nil && got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

// TestConfiguredPorts: the endpoints of one pod are ranks, with a port each.
func TestConfiguredPorts(t *testing.T) {
	p := newPool(t, Options{Port: 5557, ReplayPort: 6557}, "10.0.0.1:8001", "10.0.0.1:8000", "10.0.0.2:8001")
	p.endpoints[0].Pod, p.endpoints[1].Pod = "pod", "pod"
	for i, want := range []string{"10.0.0.1:5558 10.0.0.1:6558", "10.0.0.1:5557 10.0.0.1:6557", "10.0.0.2:5557 10.0.0.2:6557"} {
		if got := p.configured(p.members[i]); got.from.Events+" "+got.from.Replay != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}

// TestMismatches: what does not fit together shows within a hundred blocks.
func TestMismatches(t *testing.T) {
	answers := func(p *pool, predicted, reported int) {
		r, d := request(ids(1, 10)), &epp.Decision{}
		p.Picked(r, d, predicted)
		p.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{Cached: int64(reported)}})
	}
	vllm, unseeded := names(t, 1, 4)
	seeded, err := kvhash.Parse("sha256", "1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		options Options
		when    func(p *pool)
		want    string // in the log
		kind    Mismatch
	}{
		"all fits": {Options{BlockTokens: size}, func(p *pool) {
			p.delivers(t, 0, 0, 0, stored(0, 1, 0, 120))
			for range 20 {
				answers(p, 9*size, 9*size)
			}
		}, "", mismatches},
		"the engine began before": {Options{}, func(p *pool) {
			for i := range 10 {
				p.delivers(t, 0, 0, uint64(i), stored(0, i, 5, 15))
			}
		}, "replay_endpoint", NoParents},
		"the engine began before, and replays too little": {Options{}, func(p *pool) {
			p.delivers(t, 0, 0, 0, stored(0, 0, 5, 15))
			(*p.members[0].sources.Load())[0].from.Replay = "10.0.0.1:5558"
			for i := range 10 {
				p.delivers(t, 0, 0, uint64(i+1), stored(0, i+1, 5, 15))
			}
		}, "buffer_steps", NoParents},
		"blocks of another length": {Options{BlockTokens: 64}, func(p *pool) { p.delivers(t, 0, 0, 0, stored(0, 1, 0, 1)) }, "blockSizeTokens", OtherBlocks},
		"other counts": {Options{}, func(p *pool) {
			for range 10 {
				answers(p, 0, 9*size)
			}
		}, "other numbers of cached tokens", OtherCounts},
		"engines report no counts": {Options{}, func(p *pool) {
			for range 10 {
				answers(p, 9*size, -1)
			}
		}, "", mismatches},
		"other hashes": {Options{Names: vllm}, func(p *pool) { p.delivers(t, 0, 0, 0, stored(0, 1, 0, 1)) }, "leave out tokenProcessorConfig.hashAlgorithm", OtherNames},
		"another seed": {Options{Names: seeded}, func(p *pool) {
			for i := range uint64(3) {
				p.delivers(t, 0, 0, i, storedAs(unseeded, "GPU", 0, 1, 0, true))
			}
		}, "set tokenProcessorConfig.hashAlgorithm to sha256\"", OtherNames},
		"no token ids": {Options{}, func(p *pool) {
			for range 100 {
				p.Picked(&epp.Request{}, new(epp.Decision), 0)
			}
		}, "no request had token ids", mismatches},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, c.options, "10.0.0.1:8000")
			c.when(p)
			if got := p.log.String(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("logged %q, want %q", got, c.want)
			}
			for kind := range mismatches {
				if got := p.checks.found[kind].Load(); (got > 0) != (kind == c.kind) {
					t.Errorf("%d mismatches of kind %v", got, kind)
				}
			}
		})
	}
}

// TestPredictionsAreBounded: requests whose answers are never told take no memory without end.
func TestPredictionsAreBounded(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000")
	r := request(ids(1, 1))
	d := &epp.Decision{}
	for range predictions + 10 {
		d = &epp.Decision{}
		p.Picked(r, d, 16)
	}
	if n := len(p.checks.waiting); n > predictions {
		t.Errorf("%d predictions are kept", n)
	}
	p.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{Cached: 16}}) // the latest ones count
	if predicted, _ := p.Predicted(); predicted != 16 {
		t.Errorf("%d tokens were predicted", predicted)
	}
}

func TestMetrics(t *testing.T) {
	p := newPool(t, Options{}, "10.0.0.1:8000")
	p.delivers(t, 0, 0, 0, stored(0, 1, 0, 4))
	p.EndpointLeft(p.endpoints[0])                   // counters stay
	for _, predicted := range []int{16, 16, 32, 0} { // the engine reports 16
		d := &epp.Decision{}
		p.Picked(request(ids(1, 4)), d, predicted)
		p.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{Cached: 16}})
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{p.Feed})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			values[f.GetName()] += value
			for _, l := range m.Label {
				values[f.GetName()+" "+l.GetValue()] += value
			}
		}
	}
	for name, want := range map[string]float64{"tandem_prefix_blocks": 0, "tandem_prefix_event_blocks_total": 4, "tandem_prefix_event_lag_seconds": 1,
		"tandem_prefix_checked_total exact": 2, "tandem_prefix_checked_total more": 1, "tandem_prefix_checked_total fewer": 1, "tandem_prefix_error": 4} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

type collector struct{ *Feed }

func (collector) Describe(chan<- *prometheus.Desc)      {}
func (c collector) Collect(ch chan<- prometheus.Metric) { c.CollectAs("mine", ch) }

// BenchmarkMatch matches a prompt of 8,192 tokens, of a chat of 32 kB, at 16 endpoints, and notes where it is sent.
func BenchmarkMatch(b *testing.B) {
	clock := &fakeClock{now: time.Unix(1000, 0)}
	f := New(Options{Limit: 1 << 20, Presume: time.Second}, clock, slog.New(slog.DiscardHandler))
	defer f.Close()
	c := make([]epp.Candidate, 16)
	for i := range c {
		e := epp.NewEndpoint("ns", fmt.Sprint(i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "", nil)
		e.Slot = i
		f.EndpointJoined(e)
		c[i] = epp.Candidate{Endpoint: e, Load: new(epp.Load)}
		_ = f.Deliver(e, 0, number(0), stored(0, 1, 0, 32*(i+1)))
	}
	r := request(ids(1, 512))
	b.Run("match", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.Match(r, &r.Prompt, c)
		}
	})
	b.Run("match-and-presume", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.Match(r, &r.Prompt, c)
			f.Presume(r, &r.Prompt, c[3].Endpoint)
		}
	})
}
