package pool

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// servePage, set in the environment, makes the test binary an engine that serves the file of this name.
const servePage = "TANDEM_POOL_TEST_SERVE"

// serveForBenchmark serves a page on loopback, prints its address, and ends with its standard input.
func serveForBenchmark(file string) {
	text, err := os.ReadFile(file)
	if err == nil {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			fmt.Println(l.Addr())
			go func() {
				_, _ = os.Stdin.Read(make([]byte, 1))
				l.Close()
			}()
			_ = http.Serve(l, show(string(text)))
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// engineProcess starts an engine in another process, so that its work is not counted as ours.
func engineProcess(b *testing.B, file string) (addr string) {
	b.Helper()
	engine := exec.Command(os.Args[0])
	engine.Env = append(os.Environ(), servePage+"="+file)
	engine.Stderr = os.Stderr
	in, err := engine.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := engine.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = engine.Wait()
	})
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		b.Fatal(err)
	}
	return addr
}

// cpu is what this process has used, user and system.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScrape reads a page over a real connection. cpu-µs/op times endpoints by readings a second is what scraping
// costs of a core.
func BenchmarkScrape(b *testing.B) {
	for _, file := range []string{"vllm-idle.txt", "vllm-load.txt"} {
		b.Run(file, func(b *testing.B) {
			p := New(Options{})
			if err := p.Configure(nil, DefaultSource(), page.DefaultExtractor()); err != nil {
				b.Fatal(err)
			}
			defer p.closeConnections()
			s := scraperOf(p, engineProcess(b, "page/testdata/"+file))
			b.ReportAllocs()
			begin := cpu(b)
			for b.Loop() {
				if s.turn(b.Context()); s.failures > 0 {
					b.Fatal("the page was not read")
				}
			}
			b.ReportMetric(float64((cpu(b)-begin).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkPublish makes a snapshot, as it happens at most 50 times a second.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{64, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := New(Options{})
			p.set.apply(manySpecs(n), time.Now())
			p.endpoints = make([]*epp.Endpoint, n)
			b.ReportAllocs()
			for b.Loop() {
				p.publish()
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	p := New(Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if p.Snapshot() == nil {
				b.Error("no snapshot")
			}
		}
	})
}
