package extproc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
)

const generatePath = "/vllm.grpc.engine.VllmEngine/Generate"

// raw is a codec whose messages are bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

func field(number protowire.Number, value string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value))
}

func flag(number protowire.Number, value uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value))
}

// framed returns messages as the body of a call.
func framed(messages ...string) (body string) {
	for _, m := range messages {
		body += "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(m)))) + m
	}
	return body
}

// asked returns the headers of a call of gRPC.
func asked(path string) []string {
	return []string{":method", "POST", ":path", path, "content-type", "application/grpc", "te", "trailers"}
}

// TestGRPCReports: the counts in answers to calls of gRPC are reported, with the trailers that end every such answer.
func TestGRPCReports(t *testing.T) {
	const vertex = "/google.cloud.aiplatform.v1beta1.PredictionService/"
	const usage = `"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}`
	chunk := func(completion uint64) string {
		return field(1, field(1, "\x07")+flag(2, 9)+flag(3, completion)+flag(4, 4))
	}
	complete := field(2, field(1, "\x07\x08")+field(2, "stop")+flag(3, 9)+flag(4, 3)+flag(5, 4))
	carried := func(data string) string { return field(1, "application/json") + field(2, data) }
	for _, tc := range []struct{ name, path, request, answer, want string }{
		{"a whole answer", generatePath, field(3, "hello"), framed(complete), "9/4/3"},
		{"a stream", generatePath, field(3, "hello"), framed(chunk(1), chunk(2), complete), "9/4/3"},
		{"a stream that breaks off", generatePath, field(3, "hello"), framed(chunk(1), chunk(2)) + "\x00\x00", "9/4/2"},
		{"an embedding", "/vllm.grpc.engine.VllmEngine/Embed", field(2, field(2, "\x01")), framed(field(1, strings.Repeat("\x00", 4096)) + flag(2, 9)), "9/-1/-1"},
		{"a chat", vertex + "ChatCompletions", field(2, field(2, prompt)), framed(carried("{" + usage + "}")), "9/4/3"},
		{"documents", vertex + "StreamRawPredict", field(2, field(2, `{"input":"x"}`)), framed(carried(`{"type":"a"}`), carried(`{"type":"b","response":{"usage":{"input_tokens":9,"output_tokens":3}}}`)), "9/-1/3"},
		{"events", vertex + "StreamRawPredict", field(2, field(2, `{"input":"x"}`)), framed(carried("data: {}\n\nda"), carried("ta: {"+usage+"}\n\n")), "9/4/3"},
		{"no counts", generatePath, field(3, "hello"), framed(""), ""},
		{"compressed", generatePath, field(3, "hello"), "\x01" + framed(complete)[1:], ""},
		{"no messages", generatePath, field(3, "hello"), "hello", ""},
		{"broken JSON", vertex + "RawPredict", field(2, field(2, `{"input":"x"}`)), framed(carried(`{"usage":`)), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPool(a).reportedTo(everything{})
			p.reads = epp.NewAPISet(pd.GRPCAPIs()...)
			s := startRig(t, p).open(t, client.MarkNone)
			s.first = duplexBoth
			s.send(requestHeaders(more, asked(tc.path)...), requestBody(ends, framed(tc.request)))
			s.recv()
			s.recv()
			s.send(responseHeaders(more, "content-type", "application/grpc"))
			for part := range strings.SplitSeq(tc.answer, "") { // byte by byte, or a character
				s.send(responseBody(more, part))
			}
			s.send(responseTrailers("grpc-status", "0"))
			answers, err := s.finish()
			want := ""
			if tc.want != "" {
				want = "response trailers: " + tc.want
			}
			if got := strings.Join(reports(answers), "|"); err != nil || got != want {
				t.Errorf("reported %q, %v; want %q", got, err, want)
			}
			if text, _ := bodyOf(answers); text != tc.answer {
				t.Errorf("the body has %d bytes, want %d", len(text), len(tc.answer))
			}
		})
	}
}

// TestGRPCRefusals: clients of gRPC get a status in the headers of an answer without a body.
func TestGRPCRefusals(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		refusal          error
		code             codes.Code
		message          string
	}{
		{"a message without input", generatePath, framed(""), nil, codes.InvalidArgument, "The message has no input that can be read. Send tokenized, or text to generate from."},
		{"half a message", generatePath, "\x00\x00", nil, codes.InvalidArgument, "The request is not one whole message of gRPC: truncated."},
		{"a full pool", generatePath, framed(field(3, "x")), pd.Refuse(pd.Saturated, "50%% é"), codes.ResourceExhausted, "50%25 %C3%A9"},
		{"an empty pool", generatePath, framed(field(3, "x")), pd.Refuse(pd.NoEndpoint, "None."), codes.Unavailable, "None."},
		{"an empty pool, for a call that is not read", "/other/Call", "x", pd.Refuse(pd.NoEndpoint, "None."), codes.Unavailable, "None."},
		{"nothing cached", generatePath, framed(field(3, "x")), pd.Refuse(pd.NotCached, "No."), codes.FailedPrecondition, "No."},
		{"a failure", generatePath, framed(field(3, "x")), errors.New("broken"), codes.Internal, "Tandem could not handle this request; the reason is in its log."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPool(a)
			p.reads = epp.NewAPISet(pd.GRPCAPIs()...)
			if tc.refusal != nil {
				p.choose = func(*epp.Request) (*epp.Decision, error) { return nil, tc.refusal }
			}
			s := startRig(t, p).open(t, client.MarkNone)
			s.send(requestHeaders(more, asked(tc.path)...), requestBody(ends, tc.body))
			got := s.recv().GetImmediateResponse()
			fields := make(map[string]string)
			for _, h := range got.GetHeaders().GetSetHeaders() {
				fields[h.GetHeader().GetKey()] = valueOf(h.GetHeader())
			}
			if got.GetStatus().GetCode() != 200 || codes.Code(got.GetGrpcStatus().GetStatus()) != tc.code || len(got.GetBody()) > 0 ||
				fields["content-type"] != "application/grpc" || fields["grpc-status"] != fmt.Sprint(int(tc.code)) || fields["grpc-message"] != tc.message {
				t.Errorf("got %v", got)
			}
		})
	}
}

// grpcEngine is an engine whose calls answer three messages for each they get: the message, and what it was called with.
func grpcEngine(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(16<<20), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var got []byte
		if err := s.RecvMsg(&got); err != nil {
			return err
		}
		if bytes.Contains(got, []byte("fail")) {
			return status.Error(codes.NotFound, "no such thing")
		}
		md, _ := metadata.FromIncomingContext(s.Context())
		plan := []byte(strings.Join(md.Get(pd.HeaderPlan), ","))
		for _, m := range [][]byte{got, plan, []byte("end")} {
			if err := s.SendMsg(&m); err != nil {
				return err
			}
		}
		return nil
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return netip.MustParseAddrPort(listener.Addr().String())
}

// ask makes a call and returns the messages of its answer, and its headers and trailers.
func ask(ctx context.Context, conn *grpc.ClientConn, path, message string) (answer []string, header metadata.MD, err error) {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(16<<20))
	if err != nil {
		return nil, nil, err
	}
	m := []byte(message)
	if err := errors.Join(s.SendMsg(&m), s.CloseSend()); err != nil {
		return nil, nil, err
	}
	for {
		var got []byte
		if err := s.RecvMsg(&got); err != nil {
			header, _ = s.Header()
			header = metadata.Join(header, s.Trailer())
			if err == io.EOF {
				err = nil
			}
			return answer, header, err
		}
		answer = append(answer, string(got))
	}
}

// TestEnvoyGRPC: calls of gRPC pass a real Envoy and the picker, in each layout of the filters: messages arrive as they were sent,
// statuses and refusals as a client of gRPC expects them.
func TestEnvoyGRPC(t *testing.T) {
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersSingle, envoyconf.FiltersPair} {
		t.Run(string(filters), func(t *testing.T) {
			engine := grpcEngine(t)
			p := newPool(engine.String())
			p.reads = epp.NewAPISet(pd.GRPCAPIs()...)
			read := make(chan *epp.Request, 1)
			p.choose = func(r *epp.Request) (*epp.Decision, error) {
				if r.Prompt.Tokens == 0 && r.API.GRPC() {
					return nil, pd.Refuse(pd.Saturated, "Full: 100%%.")
				}
				kept := *r
				read <- &kept
				return p.local(r, p.endpoints...)
			}
			r := startRig(t, p)
			o := envoyconf.Defaults()
			o.Listen, o.Admin, o.Pickers = "127.0.0.1:0", "127.0.0.1:0", []string{r.conn.Target()}
			o.Filters, o.Pool, o.Static, o.PickerTLS.Plaintext, o.PoolHTTP2 = filters, envoyconf.PoolStatic, []netip.AddrPort{engine}, true, true
			var text bytes.Buffer
			if err := envoyconf.Bootstrap(&text, o); err != nil {
				t.Fatal(err)
			}
			_, gateway := launch(t, text.Bytes())
			conn, err := grpc.NewClient("passthrough:///"+gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, tc := range []struct {
				name, path, message string
				code                codes.Code
				says                string
				tokens              int
			}{
				{"a call", generatePath, field(3, "hello") + flag(5, 1), codes.OK, "", 2},
				{"a long call", generatePath, field(3, strings.Repeat("long", 100_000)), codes.OK, "", 100_000},
				{"a call that is not read", "/some.Service/Call", "anything", codes.OK, "", 0},
				{"a call that fails", generatePath, field(3, "fail"), codes.NotFound, "no such thing", 1},
				{"a call that is refused", generatePath, field(3, ""), codes.ResourceExhausted, "Full: 100%.", 0},
				{"a call that cannot be read", generatePath, flag(5, 1), codes.InvalidArgument, "The message has no input that can be read. Send tokenized, or text to generate from.", 0},
			} {
				t.Run(tc.name, func(t *testing.T) {
					answer, header, err := ask(within(t), conn, tc.path, tc.message)
					if got := status.Convert(err); got.Code() != tc.code || got.Message() != tc.says {
						t.Fatalf("the client gets %v", err)
					}
					if tc.code == codes.InvalidArgument || tc.code == codes.ResourceExhausted {
						if d := header.Get(pd.HeaderDecision); len(d) != 1 || !strings.HasPrefix(d[0], "refused;reason=") {
							t.Errorf("decision %v", d)
						}
						return
					}
					if got := wait(t, read, "the pick"); got.Prompt.Tokens != tc.tokens || got.Bytes != int64(len(framed(tc.message))) {
						t.Errorf("read %+v", got)
					}
					if tc.code == codes.OK && (len(answer) != 3 || answer[0] != tc.message || answer[2] != "end") {
						t.Errorf("the answer has %d messages", len(answer))
					}
				})
			}
			p.mustLoad(t, "0/0")
		})
	}
}
