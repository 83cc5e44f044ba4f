package queue

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/e2e/broker"
)

// BenchmarkQueue has messages claimed, sent to an upstream that answers at once and allocates nothing, and finished.
func BenchmarkQueue(b *testing.B) {
	for _, broker := range append(stations, stationStart{"Redis", redisStation}) {
		b.Run(broker.name, func(b *testing.B) {
			s := broker.start(b)
			e := &engine{t: b, to: instantUpstream(b)}
			s.cfg.MaxInFlight = 64
			b.ReportAllocs()
			for i := range b.N {
				s.add(message(fmt.Sprint(i), hour(), ""))
			}
			b.ResetTimer()
			r := e.run(s.cfg, s.open(), nil)
			until(b, "all results", func() bool { return r.value("tandem_batch_queue_messages_total", "answered") >= float64(b.N) })
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// redisStation has what BenchmarkQueue needs.
func redisStation(t testing.TB) station {
	server := broker.StartRedis(t)
	client := server.Client()
	cfg := Config{Broker: server.Address(), Queue: pending}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return station{cfg: cfg,
		open: func() Source {
			s, err := cfg.Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		add: func(text string) {
			if err := client.ZAdd(t.Context(), pending, goredis.Z{Score: float64(hour().Unix()), Member: text}).Err(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// instantUpstream is a client of a server that answers every request with the same bytes.
func instantUpstream(t testing.TB) *upstream.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			serving.Go(func() {
				defer conn.Close()
				answerAll(conn)
			})
		}
	})
	to := upstream.New(upstream.Config{URL: &url.URL{Scheme: "http", Host: listener.Addr().String()}, Timeout: patience, InFlight: 64, FirstPause: time.Millisecond},
		upstream.Telemetry{Metrics: prometheus.NewRegistry(), Tracer: noop.Tracer{}, Propagator: propagation.TraceContext{}})
	t.Cleanup(func() {
		to.Close()
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return to
}

// answerAll answers the requests of a connection, whose bodies have a length, until its client closes it.
func answerAll(conn net.Conn) {
	body := `{"choices":[{"text":"` + strings.Repeat("word ", 40) + `"}]}`
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	r := bufio.NewReader(conn)
	length := []byte("Content-Length: ")
	for size := 0; ; {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		if bytes.HasPrefix(line, length) {
			size, _ = strconv.Atoi(string(bytes.TrimSpace(line[len(length):])))
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
