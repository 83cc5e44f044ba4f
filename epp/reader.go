package epp

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
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
	edit    body.Edit
	out     [][]byte // the body with another model in it; empty if it goes on as it came
	err     error    // *pd.Refusal
}

// Reset prepares for a new request. limit is the most bytes a body may have, 0 = any; spec says how its prompt is to be cut.
// What the reader gave out before is no longer valid.
func (r *Reader) Reset(h Head, limit int64, spec BlockSpec) {
	if r.sink == nil {
		r.sink = r.take
	}
	api := h.API()
	r.head, r.limit, r.layout, r.err = h, limit, layouts[api], nil
	r.request = Request{ID: h.RequestID, Path: h.path(), API: api, Fit: request.FitLocal, Subset: h.Subset, Objective: h.Objective}
	r.kept.Reset()
	clear(r.out)
	r.out = r.out[:0]
	r.tiny = nil
	if r.layout == nil {
		return
	}
	r.prompt.reset(spec)
	r.scan.Reset(r.layout.table.Members(), body.Limits{Depth: bodyDepth}, r.sink)
	mode, err := pd.ParseMode(h.Mode)
	if err != nil {
		r.err = pd.Refuse(pd.BadPDHeader, "%v.", err)
	}
	r.request.Mode = mode
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

// Rewritten tells, after Close, whether the body goes on with another model's name than it came with.
func (r *Reader) Rewritten() bool { return len(r.out) > 0 }

// Segments is the body as it goes on after Close: that of Body, but for the model's name if it was Rewritten. Its slices are
// those of Body, before and behind the name.
func (r *Reader) Segments() [][]byte {
	if r.Rewritten() {
		return r.out
	}
	return r.Body().Segments()
}

// Close ends the body and gives the request, as the policy of the pool has it; nil is none. It is valid until Reset. The
// error is a *pd.Refusal.
func (r *Reader) Close(policy *Policy) (*Request, error) {
	r.gather()
	if r.err == nil && r.layout != nil {
		r.err = r.finish(policy)
	}
	if r.err != nil {
		return nil, r.err
	}
	r.request.Priority, r.request.Known = policy.Priority(r.request.Objective)
	return &r.request, nil
}

// finish reads what could be told only from the whole body.
func (r *Reader) finish(policy *Policy) error {
	if r.kept.Len() == 0 {
		return pd.Refuse(pd.BadRequest, "The request has no body. Send a JSON object.")
	}
	if err := r.scan.Close(); err != nil {
		return r.unreadable(err)
	}
	if r.scan.Root().Kind != body.Object {
		return pd.Refuse(pd.BadRequest, "The request body is not a JSON object.")
	}
	if err := r.choose(policy); err != nil {
		return err
	}
	asked := r.layout.table.Request(r.request.API, &r.kept, &r.scan)
	r.request.Stream = asked.Stream()
	if r.request.API.Splittable() {
		r.request.Fit = asked.Fit()
	}
	r.request.Prompt = r.prompt.finish(r.root(r.request.Model))
	return nil
}

// choose says which model answers, and writes it into the body if it is not the one that was asked for.
func (r *Reader) choose(policy *Policy) error {
	m, ok := r.scan.Find(r.layout.model)
	asked, err := r.name(m)
	if err != nil {
		return err
	}
	r.request.Model = asked
	if ok && m.Kind != body.String && m.Kind != body.Null {
		return nil // no engine takes it
	}
	target, by, err := r.target(policy, asked)
	if err != nil || by == "" {
		return err
	}
	r.request.Rewrite = by
	if target == asked {
		return nil
	}
	r.request.Model, r.request.Asked = target, asked
	return r.rewrite(target, m, ok)
}

// target is the model that answers, and what says so; "" if nothing does.
func (r *Reader) target(policy *Policy, asked string) (model, by string, err error) {
	if model, by, ok := policy.Target(asked, lots); ok {
		return model, by, nil
	}
	switch model := r.head.Target; {
	case model == "":
		return "", "", nil
	case len(model) > maxModel || !utf8.ValidString(model):
		return "", "", pd.Refuse(pd.BadRequest, "%s must be the name of a model: UTF-8, at most %d bytes.", HeaderTarget, maxModel)
	}
	return r.head.Target, HeaderTarget, nil
}

// rewrite puts a model into the body, in place of the member m if it is there.
func (r *Reader) rewrite(model string, m body.Member, there bool) (err error) {
	name := body.AppendQuoted(nil, model)
	r.edit.Reset(&r.kept, r.scan.Root())
	if there {
		r.edit.Replace(m, name)
	} else {
		r.edit.Add(r.scan.Root(), "model", name)
	}
	if r.out, err = r.edit.Segments(r.out[:0]); err != nil {
		return pd.AsRefusal(fmt.Errorf("rewriting the model: %w", err))
	}
	return nil
}

// lots is the process's own generator, which any number of goroutines may use.
var lots = rand.New(lottery{})

type lottery struct{}

// Uint64 implements rand.Source.
func (lottery) Uint64() uint64 { return rand.Uint64() }

// name is the name of the model, or adapter, in a member. "" is none, or none that an engine would take.
func (r *Reader) name(m body.Member) (string, error) {
	if m.Kind != body.String {
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
