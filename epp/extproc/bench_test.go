package extproc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// benchStreams is the number of concurrent streams for each processor.
const benchStreams = 4

// BenchmarkStream sends chat calls over loopback, one stream each, to a server of this package, and to the floor, which is the
// lower bound: a server that sends every request to the same endpoint without reading it. Each server runs in a process of its
// own, so that its user and system time (server-cpu-µs/op) does not contain the driver's. allocs/op count the server and the
// driver together, in this process: compare them with the floor's.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1 << 10, 512 << 10} {
		frames := benchFrames(size)
		for _, name := range []string{"floor", "tandem"} {
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
	"floor": func(t testing.TB) *rig {
		r := &rig{ledger: epp.NewLedger(time.Hour)}
		r.grpc = grpc.NewServer(ServerOptions(Defaults(), nil)...)
		(&client.Floor{Endpoints: "10.0.0.1:8000"}).Register(r.grpc)
		r.serve(t)
		return r
	},
	"tandem": func(t testing.TB) *rig {
		p := newPool("10.0.0.1:8000", "10.0.0.2:8000")
		p.blocks = epp.BlockSpec{Tokens: 16, Max: 4096}
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
