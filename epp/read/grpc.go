package read

import (
	"cmp"
	"errors"
	"hash"
	"slices"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/message"
)

// The fields of messages that are read.
const (
	wantText = iota + 1
	wantTokenized
	wantID
	wantStream
	wantTransfer
	wantRank
	wantMedia
	wantPlace
	wantOffset
	wantHash
	wantHTTPBody
	wantData
	wants
)

// The token ids of a prompt, in the messages of vLLM.
var tokenized = message.Field{Number: 2, Kind: message.Nested, Want: wantTokenized, Fields: []message.Field{
	{Number: 2, Kind: message.Number, Want: wantID}, // input_ids
}}

// httpBody is where the calls of Vertex AI have their JSON.
var httpBody = []message.Field{
	{Number: 2, Kind: message.Nested, Want: wantHTTPBody, Fields: []message.Field{ // google.api.HttpBody
		{Number: 2, Kind: message.Bytes, Want: wantData},
	}},
}

// grpcFields are the fields of each API's request. The limits of vLLM's sampling parameters are not among them: such a request is
// not split.
var grpcFields = map[pd.API][]message.Field{
	pd.APIVLLMGenerate: {
		tokenized,
		{Number: 3, Kind: message.Bytes, Want: wantText},
		{Number: 5, Kind: message.Number, Want: wantStream},
		{Number: 6, Kind: message.Nested, Want: wantTransfer}, // kv_transfer_params
		{Number: 7, Kind: message.Nested, Want: wantMedia, Fields: []message.Field{
			{Number: 5, Kind: message.Nested, Want: wantPlace, Fields: []message.Field{
				{Number: 1, Kind: message.Number, Want: wantOffset},
			}},
			{Number: 6, Kind: message.Bytes, Want: wantHash},
		}},
		{Number: 8, Kind: message.Bytes, Want: wantTransfer}, // kv_transfer_params_json
		{Number: 9, Kind: message.Number, Want: wantRank},
	},
	pd.APIVLLMEmbed:    {tokenized},
	pd.APIVertexChat:   httpBody,
	pd.APIVertexRaw:    httpBody,
	pd.APIVertexStream: httpBody,
}

// grpcReader reads the message of a call of gRPC. The messages have no fields for a model, but the JSON that some carry has.
type grpcReader struct {
	message message.Reader
	to      *Reader
	seen    [wants]bool
	json    chunks // what the message carries

	places []uint64 // where media begin among the token ids
	hashes []uint64 // of the media, in the same order
	hash   hash.Hash64
}

func (g *grpcReader) reset(to *Reader, api pd.API) {
	g.json.reset() // lets go of the chunks
	if !api.GRPC() {
		return
	}
	g.to, g.seen = to, [wants]bool{}
	g.places, g.hashes = g.places[:0], g.hashes[:0]
	if g.hash == nil {
		g.hash = to.hash.stream()
	}
	g.hash.Reset()
	g.message.Reset(grpcFields[api], to.limit, g)
	if to.layout != nil {
		to.json = &g.json
	}
}

// write reads the next chunk. The error is a *pd.Refusal.
func (g *grpcReader) write(chunk []byte) error {
	if err := g.message.Write(chunk); err != nil {
		return grpcRefusal(err)
	}
	if g.message.Messages() > 1 {
		return grpcRefusal(errSecond)
	}
	return nil
}

var errSecond = errors.New("several messages")

// finish fills the request at the end of the body. The error is a *pd.Refusal.
func (g *grpcReader) finish(policy *epp.Policy) error {
	r := g.to
	if err := g.message.Close(); err != nil {
		return grpcRefusal(err)
	}
	if r.layout != nil {
		if !g.seen[wantData] {
			return pd.Refuse(pd.BadRequest, "The message carries no JSON. Send it as the data of http_body.")
		}
		g.json.flush()
		return r.finish(policy)
	}
	if !g.seen[wantText] && !g.seen[wantTokenized] {
		return pd.Refuse(pd.BadRequest, "The message has no input that can be read. Send tokenized, or text to generate from.")
	}
	r.request.Prompt = r.prompt.finish(r.hash.mix(uint64(r.request.API), r.hash.key0))
	g.placeMedia(&r.request.Prompt)
	return nil
}

// placeMedia folds the hashes of media into those of the blocks from where each begins. Its token ids are the same whatever it shows.
func (g *grpcReader) placeMedia(p *epp.Prompt) {
	type item struct{ place, hash uint64 }
	items := make([]item, min(len(g.places), len(g.hashes)))
	if len(items) == 0 {
		return
	}
	for i := range items {
		items[i] = item{g.places[i], g.hashes[i]}
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(a.place, b.place) })
	root, next := uint64(0), 0
	for i := range p.Blocks {
		for ; next < len(items) && items[next].place < uint64((i+1)*p.BlockTokens); next++ {
			root = g.to.hash.mix(root, items[next].hash)
		}
		if next > 0 {
			p.Blocks[i] = g.to.hash.mix(p.Blocks[i], root)
		}
	}
	slices.Sort(g.hashes)
	p.Media = slices.Compact(g.hashes)
}

// Begin implements message.Sink.
func (g *grpcReader) Begin(want int) error {
	switch want {
	case wantTransfer:
		return pd.Refuse(pd.BadRequest, "The message has parameters of a transfer, which only Tandem may set. Leave kv_transfer_params out.")
	case wantPlace:
		if len(g.places) < maxMedia {
			g.places = append(g.places, 0)
		}
	case wantText, wantTokenized, wantHTTPBody, wantData:
		if g.seen[want] || want == wantText && g.seen[wantTokenized] || want == wantTokenized && g.seen[wantText] {
			return pd.Refuse(pd.DuplicateKey, "The message has its input twice.")
		}
		g.seen[want] = true
	}
	return nil
}

// Number implements message.Sink.
func (g *grpcReader) Number(want int, v uint64) error {
	switch want {
	case wantID:
		putID(&g.to.prompt.texts[inDialog], uint32(v))
	case wantStream:
		g.to.request.Stream = v != 0
	case wantOffset:
		if n := len(g.places); n > 0 {
			g.places[n-1] = v & (1<<32 - 1)
		}
	case wantRank:
		return pd.Refuse(pd.BadRequest, "The message names a rank, which only Tandem may choose. Leave data_parallel_rank out.")
	}
	return nil
}

// Piece implements message.Sink.
func (g *grpcReader) Piece(want int, piece []byte, last bool) error {
	switch want {
	case wantText:
		d := &g.to.prompt.texts[inDialog]
		if d.write(piece); last {
			d.mark(markText)
		}
	case wantHash:
		g.hash.Write(piece) // never fails
		if last && len(g.hashes) < maxMedia {
			g.hashes = append(g.hashes, g.hash.Sum64())
		}
		if last {
			g.hash.Reset()
		}
	case wantData:
		g.json.add(piece)
		return g.to.scanned(piece)
	}
	return nil
}

// grpcRefusal turns an error of a message into a refusal.
func grpcRefusal(err error) *pd.Refusal {
	var refusal *pd.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, message.ErrCompressed):
		return pd.Refuse(pd.BadRequest, "The message is compressed. Send it without compression.")
	case errors.Is(err, message.ErrTooLarge):
		return pd.Refuse(pd.TooLarge, "The message is larger than the request body may be.")
	}
	return pd.Refuse(pd.BadRequest, "The request is not one whole message of gRPC: %v.", err)
}
