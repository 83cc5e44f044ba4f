package kvfeed

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// replaying is an engine that publishes nothing new, and sends its last messages again.
func replaying(b *testing.B, host string, ports [2]int, messages [][]byte) {
	b.Helper()
	ctx := b.Context()
	var sockets [2]net.Listener
	for i, port := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			b.Fatal(err)
		}
		sockets[i] = l
	}
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	go func() { ended <- new(zmtp.Publisher).Serve(ctx, sockets[0]) }()
	go func() {
		ended <- zmtp.Reply(ctx, sockets[1], func(request [][]byte, send func(...[]byte) error) error {
			for i := binary.BigEndian.Uint64(request[len(request)-1]); i < uint64(len(messages)); i++ {
				if err := send(nil, nil, number(i), messages[i]); err != nil {
					return err
				}
			}
			return send(nil, nil, number(^uint64(0)), nil)
		})
	}()
	b.Cleanup(func() {
		cancel()
		for range sockets {
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkWarmStart is a picker that starts while engines hold a million blocks of 16 tokens: 16 pods, each of which sends its last 6,250
// messages again; vLLM keeps 10,000 by default. An operation ends when all blocks are known. It shares the processors with what sends them.
func BenchmarkWarmStart(b *testing.B) {
	const pods, perPod, blocks = 16, 6250, 10
	free, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	endpoints := make([]*epp.Endpoint, pods)
	for i := range endpoints {
		host := fmt.Sprintf("127.0.1.%d", i+1)
		messages := make([][]byte, perPod)
		for j := range messages {
			messages[j] = stored(0, i*perPod+j, 0, blocks)
		}
		replaying(b, host, [2]int{port, port + 1}, messages)
		e := epp.NewEndpoint("ns", fmt.Sprintf("pod-%d", i), netip.MustParseAddrPort(host+":8000"), "", nil)
		e.Slot, e.Pod = i, e.Name
		endpoints[i] = e
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for b.Loop() {
		f := New(Options{Dial: true, Port: port, ReplayPort: port + 1, Limit: 1 << 21}, epp.SystemClock, slog.New(slog.DiscardHandler))
		for _, e := range endpoints {
			f.EndpointJoined(e)
		}
		for f.index.Blocks() < pods*perPod*blocks {
			<-look.C
		}
		b.StopTimer()
		f.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(pods*perPod*blocks)*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
