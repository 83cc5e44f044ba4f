package sidecar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/pd"
)

// raw is a codec whose messages are bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

// startGRPCEngine starts an engine that sends back each message it gets and then, if one was "fail", a status. It returns its address,
// and the metadata of each call.
func startGRPCEngine(t *testing.T) (address string, calls chan metadata.MD) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	calls = make(chan metadata.MD, 16)
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(16<<20), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		calls <- md
		s.SetTrailer(metadata.Pairs("x-engine", "1", pd.HeaderOutcome, "done"))
		for {
			var got []byte
			if err := s.RecvMsg(&got); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if string(got) == "fail" {
				return status.Error(codes.NotFound, "no such thing")
			}
			if err := s.SendMsg(&got); err != nil {
				return err
			}
		}
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String(), calls
}

// dialGRPC serves a sidecar on a listener that takes HTTP/2, and dials it.
func dialGRPC(t *testing.T, s *rig) *grpc.ClientConn {
	t.Helper()
	front := httptest.NewUnstartedServer(s)
	front.Config.Protocols, front.Config.HTTP2 = new(http.Protocols), HTTP2()
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	t.Cleanup(front.Close)
	conn, err := grpc.NewClient("passthrough:///"+front.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call makes a call whose messages are sent one by one, each when the answer to the one before has come.
func call(ctx context.Context, conn *grpc.ClientConn, path string, messages ...string) (answers []string, trailers metadata.MD, err error) {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(16<<20))
	if err != nil {
		return nil, nil, err
	}
	var got []byte
	for _, text := range messages {
		m := []byte(text)
		if err := s.SendMsg(&m); err != nil && err != io.EOF {
			return nil, nil, err
		}
		if err := s.RecvMsg(&got); err != nil {
			return answers, s.Trailer(), err
		}
		answers = append(answers, string(got))
	}
	if err := errors.Join(s.CloseSend()); err != nil {
		return nil, nil, err
	}
	if err = s.RecvMsg(&got); err == io.EOF {
		err = nil
	}
	return answers, s.Trailer(), err
}

// TestGRPC: calls of gRPC reach the local engine over HTTP/2, message by message, with their status and trailers, apart from messages
// that direct vLLM's engine.
func TestGRPC(t *testing.T) {
	const generate = "/vllm.grpc.engine.VllmEngine/Generate"
	text := func(number protowire.Number, value string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value))
	}
	rank := string(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1))
	long := text(3, strings.Repeat("long", 1<<20))
	address, calls := startGRPCEngine(t)
	conn := dialGRPC(t, startRig(t, address))
	for _, c := range []struct {
		name, path string
		messages   []string
		code       codes.Code
		says       string
	}{
		{"a call", generate, []string{text(3, "hello")}, codes.OK, ""},
		{"a long call", generate, []string{long}, codes.OK, ""},
		{"another call", "/some.Service/Call", []string{"one", "two", ""}, codes.OK, ""},
		{"a call that fails", "/some.Service/Call", []string{"one", "fail"}, codes.NotFound, "no such thing"},
		{"a call that fails at once", "/some.Service/Call", []string{"fail"}, codes.NotFound, "no such thing"},
		{"parameters of a transfer", generate, []string{text(3, "hello") + text(8, "{}")}, codes.InvalidArgument, "kv_transfer_params"},
		{"older parameters of a transfer", generate, []string{text(6, "")}, codes.InvalidArgument, "kv_transfer_params"},
		{"a rank", generate, []string{rank}, codes.InvalidArgument, "data_parallel_rank"},
		{"no message", generate, []string{"hello"}, codes.InvalidArgument, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers, trailers, err := call(metadata.AppendToOutgoingContext(within(t), pd.HeaderPrefill, "6.6.6.6:6", "x-mine", "1"), conn, c.path, c.messages...)
			if got := status.Convert(err); got.Code() != c.code || !strings.Contains(got.Message(), c.says) {
				t.Fatalf("the client gets %v", err)
			}
			if c.code == codes.InvalidArgument {
				if d := trailers.Get(pd.HeaderDecision); len(d) != 1 || d[0] != "refused;reason=bad-request" {
					t.Errorf("decision %q", d)
				}
				return
			}
			if c.code == codes.OK && strings.Join(answers, "|") != strings.Join(c.messages, "|") {
				t.Errorf("the client gets %d messages", len(answers))
			}
			if trailers.Get("x-engine") == nil || trailers.Get(pd.HeaderOutcome) != nil {
				t.Errorf("trailers %v", trailers)
			}
			if md := wait(t, calls, "the engine"); md.Get(pd.HeaderPrefill) != nil || md.Get("x-mine") == nil {
				t.Errorf("the engine gets %v", md)
			}
		})
	}
}

// TestGRPCUnreachable: without an engine, the client gets a status of gRPC, and a gateway may try another pod.
func TestGRPCUnreachable(t *testing.T) {
	conn := dialGRPC(t, startRig(t, "127.0.0.1:1"))
	_, trailers, err := call(within(t), conn, "/some.Service/Call", "one")
	if status.Code(err) != codes.Unavailable || strings.Join(trailers.Get(pd.HeaderRetry), "") != "1" {
		t.Errorf("the client gets %v with %v", err, trailers)
	}
}
