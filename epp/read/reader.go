package read

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

const (
	// bodyDepth is how deep encoding/json nests; engines give up far earlier.
	bodyDepth = 10000
	// maxModel bounds the name of a model, as it is written in the body (bytes).
	maxModel = 1024
)

// sglang says what SGLang's hand-offs carry.
var sglang, _ = dialect.New(epp.EngineSGLang, dialect.Options{})

// Reader builds an epp.Request from a head and a body that arrives in chunks. It scans each chunk once, on arrival, so the
// work left for the end of the body does not grow with the prompt. Call Reset before each request; a reused Reader
// allocates almost nothing. It is not safe for concurrent use.
type Reader struct {
	head     Head
	limit    int64
	layout   *layout // nil: the body is not JSON, or the API is pd.APIOther, so that it is not scanned
	buffered chunks
	json     *chunks // what is scanned: buffered, or the part of it that a call of gRPC carries
	grpc     grpcReader
	scan     body.Scanner
	hash     *hasher
	prompt   promptReader
	sink     body.Sink
	request  epp.Request
	edit     body.Edit
	out      [][]byte // the body with another model's name; empty if the body is forwarded unchanged
	err      error    // *pd.Refusal
}

// NewReader makes a reader whose hashes are keyed with a secret; nil, and the zero Reader, use the secret of the process.
func NewReader(s *Secret) *Reader { return &Reader{hash: newHasher(s)} }

// Reset prepares for a new request. limit is the largest body in bytes, 0 = no limit; spec says what is needed of the
// prompt. Everything that the reader returned before becomes invalid.
func (r *Reader) Reset(h Head, limit int64, spec epp.PromptSpec) {
	if r.sink == nil {
		r.sink = r.sinkMember
		if r.hash == nil {
			r.hash = &process
		}
	}
	api := h.API()
	r.head, r.limit, r.layout, r.json, r.err = h, limit, layouts[api], &r.buffered, nil
	r.grpc.reset(r, api)
	r.request = epp.Request{ID: h.RequestID, Path: h.path(), API: api, Fit: request.FitLocal, Subset: h.Subset, Objective: h.Objective,
		Headers: h.Headers, IfAvailable: h.IfAvailable && (r.layout != nil || api.GRPC())}
	r.buffered.reset()
	clear(r.out)
	r.out = r.out[:0]
	if r.layout == nil && !api.GRPC() {
		return
	}
	r.prompt.reset(r.hash, spec)
	if r.layout != nil {
		r.scan.Reset(r.layout.table.Members(), body.Limits{Depth: bodyDepth}, r.sink)
	}
	if !api.Generates() {
		return
	}
	mode, err := pd.ParseMode(h.Mode)
	if err != nil {
		r.err = pd.Refuse(pd.BadPDHeader, "%v.", err)
	}
	r.request.Mode = mode
}

// Write scans the next chunk and buffers it without a copy: the caller must not change it until Reset. Only when a body
// arrives in very many tiny chunks are they copied. The error is a *pd.Refusal, and every later call returns the same one.
func (r *Reader) Write(chunk []byte) error {
	switch {
	case r.err != nil:
	case r.limit > 0 && int64(len(chunk)) > r.limit-r.buffered.size():
		r.err = pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", r.limit)
	default:
		r.buffered.add(chunk)
		switch {
		case r.request.API.GRPC():
			r.err = r.grpc.write(chunk)
		case r.layout != nil:
			r.err = r.scanned(chunk)
		}
	}
	return r.err
}

// scanned scans the next piece of JSON.
func (r *Reader) scanned(piece []byte) error {
	if _, err := r.scan.Write(piece); err != nil {
		return r.refusal(err)
	}
	return nil
}

// Body returns what was written, in the chunks that Write received, apart from tiny ones: see Write. It is valid until
// Reset.
func (r *Reader) Body() *body.Body {
	r.buffered.flush()
	return &r.buffered.Body
}

// sinkMember implements body.Sink.
func (r *Reader) sinkMember(want int, piece []byte, last bool) {
	r.prompt.read(&r.layout.members[want], r.scan.Sinking(), piece, last)
}

// Rewritten reports, after Close, whether the body is forwarded with another model's name than the client sent.
func (r *Reader) Rewritten() bool { return len(r.out) > 0 }

// Segments returns, after Close, the body to forward: that of Body, with another model's name if Rewritten. The bytes
// before and after the name are not copied.
func (r *Reader) Segments() [][]byte {
	if r.Rewritten() {
		return r.out
	}
	return r.Body().Segments()
}

// Close ends the body and returns the request, with the model and priority that the pool's policy gives it; a nil policy
// changes nothing. The request is valid until Reset. The error is a *pd.Refusal.
func (r *Reader) Close(policy *epp.Policy) (*epp.Request, error) {
	r.buffered.flush()
	switch {
	case r.err != nil:
	case r.request.API.GRPC():
		r.err = r.grpc.finish(policy)
	case r.layout != nil:
		r.err = r.finish(policy)
	}
	if r.err != nil {
		return nil, r.err
	}
	r.request.Bytes, r.request.Body = r.buffered.Len(), r.Segments()
	r.request.Priority, r.request.Known = policy.Priority(r.request.Objective)
	return &r.request, nil
}

// finish fills the parts of the request that need the whole body.
func (r *Reader) finish(policy *epp.Policy) error {
	if r.json.Len() == 0 {
		return pd.Refuse(pd.BadRequest, "The request has no body. Send a JSON object.")
	}
	if err := r.scan.Close(); err != nil {
		return r.refusal(err)
	}
	if r.scan.Root().Kind != body.Object {
		return pd.Refuse(pd.BadRequest, "The request body is not a JSON object.")
	}
	if err := r.resolveModel(policy); err != nil {
		return err
	}
	asked := r.layout.table.Request(r.request.API, &r.json.Body, &r.scan)
	r.request.Stream = asked.Stream()
	if r.request.API.Splittable() {
		r.request.Fit = asked.Fit()
		if r.request.Fit != request.FitSplit {
			// Another one is on the heap, where that of most requests need not be.
			fit, _ := dialect.Fit(sglang, r.layout.table.Request(r.request.API, &r.json.Body, &r.scan))
			r.request.SGLangSplits = fit == request.FitSplit
		}
		if r.request.SGLangSplits && r.request.API == pd.APISGLang { // this call is read only for engines that are SGLang's
			r.request.Fit, r.request.SGLangSplits = request.FitSplit, false
		}
	}
	salt, _ := r.scan.Find(r.layout.salt)
	r.request.Prompt = r.prompt.finish(r.hashRoot(r.request.Model, salt))
	if salt.Kind == body.String && r.prompt.spec.IDs > 0 {
		r.request.Prompt.Salt, _ = body.Text(r.json.Bytes(salt.Value)) // "" if it is no text, which engines refuse
	}
	return nil
}

// resolveModel sets the model that answers, and writes it into the body if the client asked for another one.
func (r *Reader) resolveModel(policy *epp.Policy) error {
	m, ok := r.scan.Find(r.layout.model)
	asked, err := r.modelName(m)
	if err != nil {
		return err
	}
	r.request.Model = asked
	if ok && m.Kind != body.String && m.Kind != body.Null {
		return nil // every engine refuses it
	}
	if r.request.API == pd.APISGLang || r.request.API.GRPC() {
		return nil // SGLang's own call has no model to rewrite, and messages of gRPC are passed on as they came
	}
	target, by, err := r.targetModel(policy, asked)
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

// targetModel returns the model that answers, and the name of the rewrite or header that chose it. Both are "" if the
// client's choice stands.
func (r *Reader) targetModel(policy *epp.Policy, asked string) (model, by string, err error) {
	if model, by, ok := policy.Target(asked, globalRand); ok {
		return model, by, nil
	}
	switch model := r.head.Target; {
	case model == "":
		return "", "", nil
	case len(model) > maxModel || !utf8.ValidString(model):
		return "", "", pd.Refuse(pd.BadRequest, "%s must be the name of a model: UTF-8, at most %d bytes.", epp.HeaderTarget, maxModel)
	}
	return r.head.Target, epp.HeaderTarget, nil
}

// rewrite writes a model's name into the body: in place of the member m if present, else as a new member.
func (r *Reader) rewrite(model string, m body.Member, present bool) (err error) {
	name := body.AppendQuoted(nil, model)
	r.edit.Reset(&r.buffered.Body, r.scan.Root())
	if present {
		r.edit.Replace(m, name)
	} else {
		r.edit.Add(r.scan.Root(), "model", name)
	}
	if r.out, err = r.edit.Segments(r.out[:0]); err != nil {
		return pd.AsRefusal(fmt.Errorf("rewriting the model: %w", err))
	}
	return nil
}

// globalRand draws from the process's random source, which is safe for concurrent use.
var globalRand = rand.New(globalSource{})

type globalSource struct{}

// Uint64 implements rand.Source.
func (globalSource) Uint64() uint64 { return rand.Uint64() }

// modelName returns the name of the model, or adapter, in a member; "" if the member is missing or is no string.
func (r *Reader) modelName(m body.Member) (string, error) {
	if m.Kind != body.String {
		return "", nil
	}
	if m.Value.Len() > maxModel {
		return "", pd.Refuse(pd.BadRequest, "The name of the model is longer than %d bytes.", maxModel)
	}
	name, err := body.Text(r.json.Bytes(m.Value))
	if err != nil {
		return "", pd.Refuse(pd.BadRequest, "The name of the model is not a valid JSON string.")
	}
	return name, nil
}

// hashRoot is folded into the hashes of all blocks, so that equal text hashes differently by API, model and cache salt: chat
// templates render one text differently for each API, and engines share no cache between models or salts.
func (r *Reader) hashRoot(model string, salt body.Member) uint64 {
	root := r.hash.mix(uint64(r.request.API), r.hash.text(model))
	if salt.Kind != body.Invalid && salt.Kind != body.Null {
		root = r.hash.mix(root, r.hash.bytes(r.json.Bytes(salt.Value)))
	}
	return root
}

// refusal turns a scanner's error into a refusal.
func (r *Reader) refusal(err error) *pd.Refusal {
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
		if t := r.head.ContentType; t != "" && !r.head.GRPC() && !strings.Contains(strings.ToLower(t), "json") {
			hint = " Send JSON, with Content-Type application/json."
		}
		return pd.Refuse(pd.BadRequest, "The request body is not valid JSON: %s at byte %d.%s", syntax.Reason, syntax.Offset, hint)
	}
	return pd.Refuse(pd.BadRequest, "The request body could not be read: %v.", err)
}
