package epp

import (
	"errors"
	"hash/maphash"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
)

const (
	// bodyDepth is how deep encoding/json nests; engines give up far earlier.
	bodyDepth = 10000
	// maxModel bounds the name of a model, as it is written in the body (bytes).
	maxModel = 1024

	// Beyond the first fewChunks chunks of a body, those shorter than tinyChunk (bytes) are copied together, gatherSize
	// bytes at most: what is kept about a chunk would outweigh one of a single byte forty times, and clients choose.
	fewChunks  = 64
	tinyChunk  = 512
	gatherSize = 4096
)

// Reader makes a Request of a head and a body that comes in chunks. Each chunk is looked at once, when it comes: what is
// left for the end of the body takes no longer for a long prompt than for a short one. A Reader must be Reset before use,
// may be reused, and then allocates next to nothing. It is not safe for concurrent use.
type Reader struct {
	head    Head
	limit   int64
	layout  *layout // nil: nothing is generated, so the body is none of ours
	kept    body.Body
	tiny    []byte // chunks copied together that are not in kept yet; beyond it is room for more
	scan    body.Scanner
	prompt  promptReader
	sink    body.Sink
	request Request
	err     error // *pd.Refusal
}

// Reset prepares for a new request. limit is the most bytes a body may have, 0 = any; spec says how its prompt is to be cut.
// What the reader gave out before is no longer valid.
func (r *Reader) Reset(h Head, limit int64, spec BlockSpec) {
	if r.sink == nil {
		r.sink = r.take
	}
	api := h.API()
	r.head, r.limit, r.layout, r.err = h, limit, layouts[api], nil
	r.request = Request{ID: h.RequestID, Path: h.path(), API: api, Fit: FitLocal, Subset: h.Subset}
	r.kept.Reset()
	r.tiny = nil
	if r.layout == nil {
		return
	}
	r.prompt.reset(spec)
	r.scan.Reset(r.layout.table, body.Limits{Depth: bodyDepth}, r.sink)
	wish, err := pd.ParseWish(h.Wish)
	if err != nil {
		r.err = pd.Refuse(pd.BadPDHeader, "%v.", err)
	}
	r.request.Wish = wish
}

// Write reads the next chunk, and keeps it: it must not change until Reset. Only of bodies that come in very many tiny
// chunks are copies kept. The error is a *pd.Refusal, and that of every later call too.
func (r *Reader) Write(chunk []byte) error {
	switch {
	case r.err != nil:
	case r.limit > 0 && int64(len(chunk)) > r.limit-r.kept.Len()-int64(len(r.tiny)):
		r.err = pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", r.limit)
	default:
		r.keep(chunk)
		if r.layout != nil {
			if _, err := r.scan.Write(chunk); err != nil {
				r.err = r.unreadable(err)
			}
		}
	}
	return r.err
}

// keep keeps a chunk.
func (r *Reader) keep(chunk []byte) {
	if len(chunk) >= tinyChunk || len(r.kept.Segments()) < fewChunks {
		r.gather()
		r.kept.Append(chunk)
		return
	}
	if len(chunk) > cap(r.tiny)-len(r.tiny) {
		r.gather()
		r.tiny = make([]byte, 0, gatherSize)
	}
	r.tiny = append(r.tiny, chunk...)
}

// gather makes a segment of the tiny chunks there are. The room behind them is for the next ones.
func (r *Reader) gather() {
	r.kept.Append(r.tiny)
	r.tiny = r.tiny[len(r.tiny):]
}

// Body is what was written, in the slices it came in, but for tiny ones: see Write. It is valid until Reset.
func (r *Reader) Body() *body.Body {
	r.gather()
	return &r.kept
}

func (r *Reader) take(want int, piece []byte, last bool) {
	r.prompt.take(&r.layout.members[want], r.scan.Sinking(), piece, last)
}

// Close ends the body and gives the request, which is valid until Reset. The error is a *pd.Refusal.
func (r *Reader) Close() (*Request, error) {
	r.gather()
	if r.err == nil && r.layout != nil {
		r.err = r.finish()
	}
	if r.err != nil {
		return nil, r.err
	}
	return &r.request, nil
}

// finish reads what could be told only from the whole body.
func (r *Reader) finish() error {
	if r.kept.Len() == 0 {
		return pd.Refuse(pd.BadRequest, "The request has no body. Send a JSON object.")
	}
	if err := r.scan.Close(); err != nil {
		return r.unreadable(err)
	}
	if r.scan.Root().Kind != body.Object {
		return pd.Refuse(pd.BadRequest, "The request body is not a JSON object.")
	}
	model, err := r.model()
	if err != nil {
		return err
	}
	asked := dialect.NewRequest(r.request.API, &r.kept, &r.scan)
	r.request.Model, r.request.Stream = model, asked.Stream()
	if r.request.API.Splittable() {
		r.request.Fit = fits[asked.Fit()]
	}
	r.request.Prompt = r.prompt.finish(r.root(model))
	return nil
}

var fits = [...]Fit{dialect.FitSplit: FitSplit, dialect.FitLocal: FitLocal, dialect.FitDoubted: FitDoubted}

// model is the name of the model, or adapter. "" is none, or none that an engine would take.
func (r *Reader) model() (string, error) {
	m, ok := r.scan.Find(r.layout.model)
	if !ok || m.Kind != body.String {
		return "", nil
	}
	if m.Value.Len() > maxModel {
		return "", pd.Refuse(pd.BadRequest, "The name of the model is longer than %d bytes.", maxModel)
	}
	name, err := body.Text(r.kept.Bytes(m.Value))
	if err != nil {
		return "", pd.Refuse(pd.BadRequest, "The name of the model is not a valid JSON string.")
	}
	return name, nil
}

// root is what hashes of blocks stand for besides text. Tenants with different salts share no cache in the engine, and
// chat templates make another prompt of the same text.
func (r *Reader) root(model string) uint64 {
	root := mix(uint64(r.request.API), maphash.String(seed, model))
	if m, ok := r.scan.Find(r.layout.salt); ok && m.Kind != body.Null {
		root = mix(root, maphash.Bytes(seed, r.kept.Bytes(m.Value)))
	}
	return root
}

// unreadable makes a refusal of a scanner's error.
func (r *Reader) unreadable(err error) *pd.Refusal {
	var duplicate *body.DuplicateError
	var syntax *body.SyntaxError
	switch {
	case errors.As(err, &duplicate):
		return pd.Refuse(pd.DuplicateKey, "The request body has the member %q twice.", duplicate.Path)
	case errors.Is(err, body.ErrTooDeep):
		return pd.Refuse(pd.BadRequest, "The request body is nested deeper than %d levels.", bodyDepth)
	case errors.Is(err, body.ErrEncoding):
		return pd.Refuse(pd.BadRequest, "The request body is not UTF-8. JSON must be sent as UTF-8.")
	case errors.Is(err, body.ErrTooMany):
		return pd.Refuse(pd.BadRequest, "The request body repeats controlled members too often.")
	case errors.As(err, &syntax):
		hint := ""
		if t := r.head.ContentType; t != "" && !strings.Contains(strings.ToLower(t), "json") {
			hint = " Send JSON, with Content-Type application/json."
		}
		return pd.Refuse(pd.BadRequest, "The request body is not valid JSON: %s at byte %d.%s", syntax.Reason, syntax.Offset, hint)
	}
	return pd.Refuse(pd.BadRequest, "The request body could not be read: %v.", err)
}
