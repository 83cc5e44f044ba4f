package serving

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// departure is a state in which a client may leave. leave gives the moment from which on no client waits for the hand-off, and
// nothing of it is on its way to a client.
type departure struct {
	name  string
	leave func(t *testing.T, k *kept, stream bool) time.Time
	// decode may have the leg by then. When vLLM 0.32 loses the client of an answer that is whole, it tells prefill that the
	// hand-off was refused, although it may have read it, and told so, long ago: a late notice that no other agent has sent.
	decode bool
}

// mayBeLate returns how many late notices there may be of one client's leaving.
func (d departure) mayBeLate(stream bool) float64 {
	if d.decode && !stream {
		return 1
	}
	return 0
}

var departures = []departure{
	{"during prefill", leaveInPrefill, true},
	{"when prefill's answer is on its way", leaveBeforeAnswer, false},
	{"when the decode leg is on its way", leaveBeforeLeg, true},
	{"when decode has the leg", leaveInDecode, true},
	{"when the answer has begun", leaveInAnswer, true},
}

// sometime waits for a random time.
func sometime(t *testing.T, most time.Duration) {
	t.Helper()
	pass(t, rand.N(most))
}

// The longest prompt takes prefill some 170 ms.
func leaveInPrefill(t *testing.T, k *kept, stream bool) time.Time {
	t.Helper()
	k.abandon(t, k.call(3500, 8, stream), func(<-chan struct{}) { sometime(t, 150*time.Millisecond) })
	return time.Now()
}

func leaveBeforeAnswer(t *testing.T, k *kept, stream bool) time.Time {
	t.Helper()
	k.toPrefill.Shut()
	k.abandon(t, k.call(200, 8, stream), func(<-chan struct{}) { <-k.toPrefill.Held })
	sometime(t, 50*time.Millisecond)
	k.toPrefill.Release()
	return time.Now()
}

func leaveBeforeLeg(t *testing.T, k *kept, stream bool) time.Time {
	t.Helper()
	k.toDecode.Shut()
	k.abandon(t, k.call(200, 8, stream), func(<-chan struct{}) { <-k.toDecode.Held })
	sometime(t, 50*time.Millisecond)
	k.toDecode.Release()
	return time.Now()
}

// Decode begins its answer after some 30 ms.
func leaveInDecode(t *testing.T, k *kept, stream bool) time.Time {
	t.Helper()
	k.toDecode.Shut()
	k.abandon(t, k.call(200, 8, stream), func(<-chan struct{}) {
		<-k.toDecode.Held
		k.toDecode.Release()
		sometime(t, 40*time.Millisecond)
	})
	return time.Now()
}

func leaveInAnswer(t *testing.T, k *kept, stream bool) time.Time {
	t.Helper()
	k.toDecode.Shut()
	k.abandon(t, k.call(200, 1000, stream), func(begun <-chan struct{}) {
		<-k.toDecode.Held
		k.toDecode.Release()
		if stream { // a whole answer begins when it has ended
			<-begun
		}
		sometime(t, 200*time.Millisecond)
	})
	return time.Now()
}

// frail is an address of an engine at which one leg can be refused, or be the last thing that arrives.
type frail struct {
	addr   string
	engine http.Handler
	server *httptest.Server
	refuse atomic.Int32 // status that the next POST gets
	die    atomic.Bool  // with the next POST
}

func newFrail(t *testing.T, engine string) *frail {
	t.Helper()
	f := &frail{addr: "127.0.0.1:0", engine: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine}) },
		Transport:     harness.Client.Transport,
		FlushInterval: -1,
	}}
	f.live(t)
	t.Cleanup(func() { f.server.Close() })
	return f
}

// live takes connections, again if it has died, at the same address.
func (f *frail) live(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	server := &httptest.Server{Listener: l}
	server.Config = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.serve(server, w, r)
	})}
	server.Start()
	f.server = server
}

func (f *frail) serve(server *httptest.Server, w http.ResponseWriter, r *http.Request) {
	// The leg has come whole: what sent it can take the engine to be reading.
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		f.engine.ServeHTTP(w, r)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if status := f.refuse.Swap(0); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	if !f.die.Swap(false) {
		f.engine.ServeHTTP(w, r)
		return
	}
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		server.Listener.Close()
		server.CloseClientConnections()
		conn.Close()
	}
}
