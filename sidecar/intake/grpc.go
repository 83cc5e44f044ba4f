package intake

import (
	"io"
	"net/http"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/message"
)

// IsGRPC reports whether a request is a call of gRPC. Only HTTP/2 carries those.
func IsGRPC(r *http.Request) bool {
	types := r.Header["Content-Type"]
	return r.ProtoMajor == 2 && len(types) == 1 && pd.IsGRPC(types[0])
}

// generateOrders are the fields of vLLM's GenerateRequest that would direct the engine to memory, or to a rank, of the client's
// choice: kv_transfer_params, kv_transfer_params_json and data_parallel_rank.
var generateOrders = []message.Field{{Number: 6, Kind: message.Nested}, {Number: 8, Kind: message.Bytes}, {Number: 9, Kind: message.Number}}

// GuardGRPC returns the body of a call of gRPC. A message of vLLM's Generate must not have generateOrders: nothing is removed from a
// message, and reading fails with a *pd.Refusal. Other calls pass unread.
func (in *Intake) GuardGRPC(r *http.Request) io.ReadCloser {
	if pd.APIOf(r.URL.Path) != pd.APIVLLMGenerate {
		return r.Body
	}
	g := &grpcGuard{ReadCloser: r.Body}
	g.message.Reset(generateOrders, in.BodyLimit, orders{})
	return g
}

// grpcGuard is a body whose messages are read before they pass.
type grpcGuard struct {
	io.ReadCloser
	message message.Reader
}

// Read implements io.Reader.
func (g *grpcGuard) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	if bad := g.message.Write(p[:n]); bad != nil {
		return 0, grpcRefusal(bad)
	}
	return n, err
}

// grpcRefusal turns an error of a message into a refusal.
func grpcRefusal(err error) *pd.Refusal {
	switch err {
	case errOrder:
		return errOrder
	case message.ErrCompressed:
		return pd.Refuse(pd.BadRequest, "The message is compressed. Send it without compression.")
	}
	return pd.Refuse(pd.BadRequest, "The request is not a message of gRPC: %v.", err)
}

var errOrder = pd.Refuse(pd.BadRequest, "The message has kv_transfer_params or data_parallel_rank, which only Tandem may set. Leave them out.")

// orders is a message.Sink that refuses whatever is read.
type orders struct{}

// Begin implements message.Sink.
func (orders) Begin(int) error { return errOrder }

// Number implements message.Sink.
func (orders) Number(int, uint64) error { return errOrder }

// Piece implements message.Sink.
func (orders) Piece(int, []byte, bool) error { return errOrder }
