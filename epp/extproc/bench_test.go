package extproc

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// benchStreams is the number of concurrent streams for each processor.
const benchStreams = 4

// BenchmarkStream sends chat calls over loopback, one stream each, to a server of this package, and to the baseline, which is the
// lower bound: a server that sends every request to the same endpoint without reading it. Each server runs in a process of its
// own, so that its user and system time (server-cpu-µs/op) does not contain the driver's. allocs/op count the server and the
// driver together, in this process: compare them with the baseline's.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1 << 10, 512 << 10} {
		frames := benchFrames(size)
		for _, name := range []string{"baseline", "tandem"} {
			b.Run(fmt.Sprintf("%dkB/%s", size>>10, name), func(b *testing.B) {
				r, cpu := startProcess(b, name)
				benchStream(b, r, frames) // makes the connection
				before := cpu()
				b.SetParallelism(benchStreams)
				b.RunParallel(func(p *testing.PB) {
					for own := benchFrames(size); p.Next(); {
						benchStream(b, r, own)
					}
				})
				b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "server-cpu-µs/op")
			})
			b.Run(fmt.Sprintf("%dkB/%s/allocations", size>>10, name), func(b *testing.B) {
				r := benchServers[name](b)
				benchStream(b, r, frames)
				b.ReportAllocs()
				for b.Loop() {
					benchStream(b, r, frames)
				}
			})
		}
	}
}

// benchServers start the servers of the benchmarks.
var benchServers = map[string]func(t testing.TB) *rig{
	"replica": serveReplica,
	"baseline": func(t testing.TB) *rig {
		r := &rig{ledger: epp.NewLedger(time.Hour, epp.SystemClock)}
		r.grpc = grpc.NewServer(ServerOptions(Defaults(), nil)...)
		(&client.Baseline{Endpoints: "10.0.0.1:8000"}).Register(r.grpc)
		r.serve(t)
		return r
	},
	"tandem": func(t testing.TB) *rig {
		p := newPool("10.0.0.1:8000", "10.0.0.2:8000")
		p.blocks = epp.PromptSpec{Tokens: 16, Max: 4096}
		return startRig(t, p)
	},
}

// benchServer is the environment variable that turns TestBenchServer into a server. It prints its address, and then, for each
// line that it reads, the processor time that it has used (µs).
const benchServer = "TANDEM_BENCH_SERVER"

func TestBenchServer(t *testing.T) {
	name := os.Getenv(benchServer)
	if name == "" {
		return // the benchmarks run it in a process of its own
	}
	fmt.Println(benchServers[name](t).conn.Target())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		fmt.Println((u.Utime.Nano() + u.Stime.Nano()) / 1000)
	}
}

// startProcess starts a server in a process of its own. cpu returns the processor time that it has used.
func startProcess(b *testing.B, name string) (r *rig, cpu func() time.Duration) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchServer$")
	cmd.Env = append(os.Environ(), benchServer+"="+name)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close() // ends the process
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Scan()
	r = &rig{}
	r.dial(b, lines.Text())
	return r, func() time.Duration {
		fmt.Fprintln(in)
		lines.Scan()
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			b.Fatal(err)
		}
		return time.Duration(n) * time.Microsecond
	}
}

// benchFrames returns the frames of a chat call as Envoy sends them over HTTP/2.
func benchFrames(size int) frames {
	headers := chat(more, ":authority", "gateway.example", ":scheme", "http", "user-agent", "bench/1.0", "accept", "*/*",
		"authorization", "Bearer sk-0123456789abcdef", "x-forwarded-for", "10.1.2.3", "x-forwarded-proto", "http",
		"x-envoy-internal", "true", "content-length", fmt.Sprint(size))
	text := `{"model":"m","messages":[{"role":"user","content":"`
	text += strings.Repeat("All work and no play. ", size/22+1)[:size-len(text)-4] + `"}]}`
	fs := frames{headers}
	for len(text) > 16<<10 {
		fs, text = append(fs, requestBody(more, text[:16<<10])), text[16<<10:]
	}
	return append(fs, requestBody(more, text), requestBody(ends, ""))
}

// benchStream sends one request, waits until all of it has come back, and ends the stream.
func benchStream(b *testing.B, r *rig, frames frames) {
	s := r.open(quietT{b}, client.MarkNone)
	defer s.cancel()
	s.send(frames...)
	for {
		a := s.recv()
		if part := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); part.GetEndOfStream() || a.GetImmediateResponse() != nil {
			break
		}
	}
	s.send(responseHeaders(more))
	s.recv()
	if answers, err := s.finish(); len(answers) > 0 || err != nil {
		b.Fatal(answers, err)
	}
}

// killedSizes are the request bodies (bytes) of the benchmarks below. Envoy sends the larger one in two frames.
var killedSizes = []int{1 << 10, 24 << 10}

// BenchmarkExposedAnswer measures for how long a SIGKILL of the picker would fail a request: exposed-µs/op is the mean time
// between the first and the last write of an answer, split-% the part of the answers that take more than one write.
// Picks per second × exposed-µs/op × 10⁻⁶ is the number of requests to expect to fail with one kill.
func BenchmarkExposedAnswer(b *testing.B) {
	for _, size := range killedSizes {
		b.Run(fmt.Sprintf("%dkB", size>>10), func(b *testing.B) {
			r := makeRig(b, newPool("10.0.0.1:8000"), nil)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			var all exposure
			r.serveOn(b, exposedListener{l, &all})
			// Envoy's flow control windows: an answer never waits for the gateway to read.
			r.dial(b, l.Addr().String(), grpc.WithInitialWindowSize(16<<20), grpc.WithInitialConnWindowSize(24<<20))
			b.SetParallelism(benchStreams)
			b.RunParallel(func(p *testing.PB) {
				for frames := benchFrames(size); p.Next(); {
					s := r.open(quietT{b}, client.MarkPicker)
					s.send(frames...)
					if _, err := s.rest(); err != nil {
						b.Error(err)
					}
					s.cancel()
				}
			})
			all.mu.Lock()
			defer all.mu.Unlock()
			if all.answers != b.N {
				b.Errorf("saw %d answers, want %d", all.answers, b.N)
			}
			b.ReportMetric(100*float64(all.split)/float64(all.answers), "split-%")
			b.ReportMetric(float64(all.exposed.Nanoseconds())/1e3/float64(all.answers), "exposed-µs/op")
		})
	}
}

// exposure sums up answers over all connections.
type exposure struct {
	mu             sync.Mutex
	answers, split int
	exposed        time.Duration
}

// exposedListener accepts connections that follow the HTTP/2 frames which the server writes.
type exposedListener struct {
	net.Listener
	sum *exposure
}

// Accept implements net.Listener.
func (l exposedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &exposedConn{Conn: conn, sum: l.sum, streams: make(map[uint32]*written)}, nil
}

// exposedConn follows frames in pieces of any size. gRPC calls Write from one goroutine.
type exposedConn struct {
	net.Conn
	sum     *exposure
	head    [9]byte // of the current frame
	have    int     // bytes of head that came
	left    int     // bytes of the frame's payload that are still to come
	streams map[uint32]*written
}

// written reports when the first and the last write of an answer began.
type written struct{ first, last time.Time }

// Write implements net.Conn.
func (c *exposedConn) Write(p []byte) (int, error) {
	started := time.Now()
	var touched, ended []uint32
	for rest := p; len(rest) > 0 || c.have == len(c.head) && c.left == 0; {
		if c.have < len(c.head) {
			n := copy(c.head[c.have:], rest)
			c.have, rest = c.have+n, rest[n:]
			if c.have == len(c.head) {
				c.left = int(c.head[0])<<16 | int(c.head[1])<<8 | int(c.head[2])
			}
			continue
		}
		n := min(c.left, len(rest))
		c.left, rest = c.left-n, rest[n:]
		const data, headers, endStream = 0, 1, 1
		stream := binary.BigEndian.Uint32(c.head[5:])
		switch kind, ends := c.head[3], c.head[4]&endStream != 0; {
		case kind == headers && ends && c.left == 0: // trailers
			ended = append(ended, stream)
		case kind == headers && !ends, kind == data:
			touched = append(touched, stream)
		}
		if c.left == 0 {
			c.have = 0
		}
	}
	for _, stream := range touched {
		if w := c.streams[stream]; w == nil {
			c.streams[stream] = &written{first: started, last: started}
		} else {
			w.last = started
		}
	}
	c.sum.mu.Lock()
	for _, stream := range ended {
		w := c.streams[stream]
		delete(c.streams, stream)
		c.sum.answers++
		if w != nil && w.last != w.first {
			c.sum.split++
			c.sum.exposed += w.last.Sub(w.first)
		}
	}
	c.sum.mu.Unlock()
	return c.Conn.Write(p)
}

// BenchmarkPickerKilled kills one of two pickers behind a real Envoy, once for each iteration, by SIGKILL and under load.
// failed/op is the number of requests that did not get the endpoint's answer.
func BenchmarkPickerKilled(b *testing.B) {
	for _, size := range killedSizes {
		b.Run(fmt.Sprintf("%dkB", size>>10), func(b *testing.B) {
			endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					io.WriteString(w, served200)
				}
			}))
			defer endpoint.Close()
			at := endpoint.Listener.Addr().String()
			replicas := []*replica{startReplica(b, "127.0.0.1:0", at), startReplica(b, "127.0.0.1:0", at)}
			e, address := startGateway(b, envoyconf.FiltersPair, []string{replicas[0].address, replicas[1].address}, netip.MustParseAddrPort(at))
			awaitHealthy := func() {
				const gauge = "cluster." + envoyconf.PickerCluster + ".membership_healthy"
				for healthy := int64(0); healthy < 2; {
					stats, err := e.Stats(b.Context(), gauge)
					if err != nil {
						b.Fatal(err)
					}
					healthy = stats[gauge]
				}
			}
			awaitHealthy()
			load := startLoad("http://"+address+"/v1/chat/completions", size)
			b.ResetTimer()
			for i := range b.N {
				<-load.hundred
				<-load.hundred
				r := replicas[i%2]
				r.kill()
				replicas[i%2] = startReplica(b, r.address, at)
				awaitHealthy()
			}
			b.StopTimer()
			load.stop()
			b.ReportMetric(float64(load.failed.Load())/float64(b.N), "failed/op")
			b.ReportMetric(float64(load.done.Load())/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

const served200 = "served"

// load is a number of clients that send one request after another.
type load struct {
	clients      sync.WaitGroup
	stopped      atomic.Bool
	done, failed atomic.Int64
	hundred      chan struct{} // delivers after every hundred requests
}

func startLoad(url string, size int) *load {
	l := &load{hundred: make(chan struct{}, 1)}
	const head, tail = `{"model":"m","messages":[{"role":"user","content":"`, `"}]}`
	text := head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	for range 16 {
		l.clients.Go(func() {
			defer transport.CloseIdleConnections()
			for !l.stopped.Load() {
				if !postOnce(transport, url, text) {
					l.failed.Add(1)
				}
				if l.done.Add(1)%100 == 0 {
					select {
					case l.hundred <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	return l
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.clients.Wait()
}

// postOnce sends a request and reports whether the endpoint answered it.
func postOnce(transport *http.Transport, url, text string) bool {
	resp, err := (&http.Client{Transport: transport}).Post(url, "application/json", strings.NewReader(text))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK && string(body) == served200
}

// The environment of a picker that is killed: where it listens, and the endpoint that it picks.
const (
	replicaListen   = "TANDEM_BENCH_LISTEN"
	replicaEndpoint = "TANDEM_BENCH_ENDPOINT"
)

func serveReplica(t testing.TB) *rig {
	r := makeRig(t, newPool(os.Getenv(replicaEndpoint)), nil)
	healthy := health.NewServer()
	healthy.SetServingStatus("envoy.service.ext_proc.v3.ExternalProcessor", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(r.grpc, healthy)
	l, err := net.Listen("tcp", os.Getenv(replicaListen))
	if err != nil {
		t.Fatal(err)
	}
	r.serveOn(t, l)
	return r
}

// replica is a picker in a process of its own.
type replica struct {
	address string
	process *exec.Cmd
	killed  bool
}

func startReplica(b *testing.B, listen, endpoint string) *replica {
	r := &replica{process: exec.Command(os.Args[0], "-test.run=^TestBenchServer$")}
	r.process.Env = append(os.Environ(), benchServer+"=replica", replicaListen+"="+listen, replicaEndpoint+"="+endpoint)
	if _, err := r.process.StdinPipe(); err != nil { // it serves until its end
		b.Fatal(err)
	}
	out, err := r.process.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := r.process.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.kill)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		b.Fatal("the picker did not start")
	}
	r.address = lines.Text()
	return r
}

func (r *replica) kill() {
	if !r.killed {
		r.killed = true
		_ = r.process.Process.Kill()
		_ = r.process.Wait() // it was killed
	}
}
