package client

import (
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
)

// BenchmarkBaseline sends one request to a Baseline: the lower bound of a picker's cost, including the cost of this client.
func BenchmarkBaseline(b *testing.B) {
	for _, size := range []int{1 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			server := grpc.NewServer()
			(&Baseline{Endpoints: "10.0.0.1:8000"}).Register(server)
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			defer func() { server.Stop(); <-served }()
			c, err := Dial(Options{Addresses: []string{l.Addr().String()}, Plaintext: true})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			body := make([]byte, min(size, 64<<10))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := request(b, c, body, size/len(body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// request sends a body of n equal frames and reads all answers.
func request(b *testing.B, c *Conn, body []byte, n int) error {
	s, err := c.Open(b.Context(), Picker())
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.RequestHeaders(head, false); err != nil {
		return err
	}
	for range n {
		if err := s.RequestBody(body, false); err != nil {
			return err
		}
	}
	if err := s.RequestBody(nil, true); err != nil {
		return err
	}
	for {
		if a, err := s.Recv(); err != nil || a.End {
			return err
		}
	}
}
