package continuation

import (
	"bytes"
	"errors"
	"hash/maphash"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Regeneration has a stream of responses or messages go on at another engine, which generates the whole answer again. It compares what
// that engine says with what the client has, sends none of it twice, and breaks the stream off if it differs. vLLM returns no token ids
// in these streams, so an engine cannot go on from the middle of one.
//
// The engines must say the same: the request is greedy, or has a seed. Then reasoning, tool calls and structured output go on too.
//
// Its methods are for the goroutine that relays the stream. Of the text that was sent it keeps the length and a hash.
type Regeneration struct {
	leg request.Payload
	mem *pd.BufferedBytes
	has int64 // bytes of mem
	why Refusal

	seed    maphash.Seed
	parts   []part
	text    maphash.Hash // of the text of the last part
	ids     [][]byte     // of the answer and its items, with quotes, in the order in which the client has got them
	created []byte       // when the answer began; nil: its API does not say it
	number  int64        // of the next event of responses
	form    deltaForm    // of the last event, if it had text

	moves   int
	follow  bool         // the events are those of another engine than the first
	behind  bool         // the client has more than that engine has said
	at      int          // the part that the engine says next
	into    int64        // bytes of its text that the engine has said
	said    maphash.Hash // of those
	theirs  [][]byte     // the ids of that engine's answer, in the order of ids
	broken  error
	out     []byte // of Event
	scan    body.Scanner
	keyHash maphash.Hash
}

// part is an event without text that the client has, or successive events that have text of the same item.
type part struct {
	key    uint64 // a hash of what the events are and where they belong
	isText bool
	bytes  int64  // of the text, as JSON has it
	sum    uint64 // a hash of it; of the last part it is in Regeneration.text
}

// maxParts is the most parts that are kept of one stream: some tool calls have five each.
const maxParts = 4096

// The members of a request that say whether other engines answer it in the same way, in the order of regenerableTable.
const (
	gStream = iota
	gTemperature
	gSeed
	gBackground
	gTool
	gToolType
)

var regenerableTable = body.NewTable(
	body.Want{Path: "stream", Once: true},
	body.Want{Path: "temperature", Once: true},
	body.Want{Path: "seed", Once: true},
	body.Want{Path: "background", Once: true},
	body.Want{Path: "tools.*"},
	body.Want{Path: "tools.*.type"},
)

// Regenerable returns why another engine may answer a request of responses or messages with another text, or must not answer it again;
// "" = it answers with the same.
func Regenerable(api pd.API, b *body.Body) Refusal {
	if api != pd.APIResponses && api != pd.APIMessages {
		return OtherAPI
	}
	var scan body.Scanner
	scan.Reset(regenerableTable, body.Limits{}, nil)
	for _, segment := range b.Segments() {
		if _, err := scan.Write(segment); err != nil {
			return Unreadable
		}
	}
	if scan.Close() != nil || scan.Root().Kind != body.Object {
		return Unreadable
	}
	r := &reading{body: b, scan: &scan}
	background, ok := r.flag(gBackground)
	switch {
	case string(r.value(gStream)) != "true" || background || !ok:
		return Whole
	case api == pd.APIResponses && !onlyFunctions(r):
		return Tools
	case api == pd.APIResponses && r.value(gSeed) != nil: // messages have none
		return ""
	}
	if t, err := strconv.ParseFloat(string(r.value(gTemperature)), 64); err != nil || t != 0 {
		return Sampled
	}
	return ""
}

// onlyFunctions reports whether the client calls all tools of a request itself: the engine would call others again.
func onlyFunctions(r *reading) bool {
	tools, functions := 0, 0
	for _, m := range r.scan.Members() {
		switch {
		case m.Want == gTool:
			tools++
		case m.Want == gToolType && string(r.body.Bytes(m.Value)) == `"function"`:
			functions++
		}
	}
	return tools == functions
}

// NewRegeneration makes the Regeneration of the stream that answers a request. The request is copied, and counted in mem. Close ends it.
func NewRegeneration(of request.Payload, mem *pd.BufferedBytes) *Regeneration {
	r := &Regeneration{mem: mem, seed: maphash.MakeSeed()}
	if !mem.Take(of.Length) {
		r.why = Memory
		return r
	}
	r.has = of.Length
	r.leg = request.Payload{Segments: [][]byte{bytes.Join(of.Segments, nil)}, Length: of.Length}
	for _, h := range []*maphash.Hash{&r.text, &r.said, &r.keyHash} {
		h.SetSeed(r.seed)
	}
	return r
}

// Close ends the stream.
func (r *Regeneration) Close() {
	r.mem.Release(r.has)
	r.has, r.leg, r.parts = 0, request.Payload{}, nil
	r.giveUp(Unreadable)
}

func (r *Regeneration) giveUp(why Refusal) {
	if r.why == "" {
		r.why = why
	}
}

// Refusal returns why the stream cannot go on at another engine; "" = it can.
func (r *Regeneration) Refusal() Refusal { return r.why }

// Leg returns the request for the engine that goes on.
func (r *Regeneration) Leg() request.Payload { return r.leg }

// Moved says that another engine answers the request: the next events are the beginning of its answer.
func (r *Regeneration) Moved() {
	r.moves++
	r.endText()
	r.follow, r.behind = true, len(r.parts) > 0
	r.at, r.into, r.theirs, r.form = 0, 0, nil, deltaForm{}
	r.said.Reset()
}

// Moves returns how often another engine has gone on.
func (r *Regeneration) Moves() int { return r.moves }

// Broken returns why no more of the answer may be sent; nil if there is no reason.
func (r *Regeneration) Broken() error { return r.broken }

// Held returns nothing: no event is held back.
func (r *Regeneration) Held() []byte { return nil }

// The members of an event of responses or messages, in the order of deltaTable. Those up to dToolName say what an event is, and those from
// dResponseID to dCallID are ids that an engine makes up.
const (
	dIndex = iota
	dOutputIndex
	dContentIndex
	dSummaryIndex
	dDeltaType
	dBlockType
	dItemType
	dPartType
	dItemName
	dToolName
	dResponseID
	dMessageID
	dItemID
	dBlockID
	dCallID
	dDelta
	dText
	dThinking
	dSignature
	dJSON
	dCreated
	dNumber
	dLogprob
)

var deltaTable = body.NewTable(
	body.Want{Path: "index"},
	body.Want{Path: "output_index"},
	body.Want{Path: "content_index"},
	body.Want{Path: "summary_index"},
	body.Want{Path: "delta.type"},
	body.Want{Path: "content_block.type"},
	body.Want{Path: "item.type"},
	body.Want{Path: "part.type"},
	body.Want{Path: "item.name"},
	body.Want{Path: "content_block.name"},
	body.Want{Path: "response.id"},
	body.Want{Path: "message.id"},
	body.Want{Path: "item.id"},
	body.Want{Path: "content_block.id"},
	body.Want{Path: "item.call_id"},
	body.Want{Path: "delta"},
	body.Want{Path: "delta.text"},
	body.Want{Path: "delta.thinking"},
	body.Want{Path: "delta.signature"},
	body.Want{Path: "delta.partial_json"},
	body.Want{Path: "response.created_at"},
	body.Want{Path: "sequence_number"},
	body.Want{Path: "logprobs.*"},
)

var (
	errOtherAnswer = errors.New("the other engine answers with another text")
	errOtherForm   = errors.New("the other engine sends an event that cannot be read")
	errWithinToken = errors.New("the other engine's log probabilities are not those of the tokens that were sent")
)

// Event takes the next event, and returns what the client gets now: nothing, or the event, or its end. It is valid until the next call.
func (r *Regeneration) Event(e body.Event) body.Event {
	if r.why != "" && !r.follow || r.quick(e) {
		return e
	}
	switch {
	case r.broken != nil:
		return body.Event{}
	case len(e.Data) == 0 || string(e.Name) == "ping":
		if r.behind {
			return body.Event{}
		}
		return e
	case r.scan.Scan(deltaTable, body.Limits{}, e.Data) != nil:
		r.giveUp(Unreadable)
		if r.follow {
			r.broken = errOtherForm
			return body.Event{}
		}
		return e
	}
	text := r.textOf()
	key := r.key(e.Data, e.Name, text.Want)
	if !r.follow {
		r.readOwn(e.Data)
		r.note(key, e, text)
		return e
	}
	r.readTheirs(e.Data)
	skip := int64(0)
	if r.behind {
		if skip = r.compare(key, e.Data, text); r.broken != nil || r.behind || skip < 0 {
			return body.Event{}
		}
		text.Value.Start += skip
	}
	r.note(key, e, text)
	return r.rewrite(e, text, skip)
}

// textOf returns the text of the event that was scanned last, without quotes. Its Want is -1 if the event has none.
func (r *Regeneration) textOf() body.Member {
	for _, want := range []int{dDelta, dText, dThinking, dSignature, dJSON} {
		if m, ok := r.scan.Find(want); ok && m.Kind == body.String {
			m.Value.Start++
			m.Value.End--
			return m
		}
	}
	return body.Member{Want: -1}
}

// key returns a hash of what the event that was scanned last is, and where it belongs.
func (r *Regeneration) key(data, name []byte, text int) uint64 {
	h := &r.keyHash
	h.Reset()
	_, _ = h.Write(name)
	_ = h.WriteByte(byte(text + 1))
	for _, m := range r.scan.Members() {
		if m.Want <= dToolName {
			_ = h.WriteByte(byte(m.Want))
			_, _ = h.Write(data[m.Value.Start:m.Value.End])
		}
	}
	return h.Sum64()
}

// readOwn reads what the events of other engines get of the first engine's.
func (r *Regeneration) readOwn(data []byte) {
	for _, m := range r.scan.Members() {
		value := data[m.Value.Start:m.Value.End]
		switch {
		case isID(m) && !has(r.ids, value):
			r.ids = append(r.ids, bytes.Clone(value))
		case m.Want == dCreated && r.created == nil:
			r.created = bytes.Clone(value)
		}
	}
}

// readTheirs reads the ids of the engine that goes on. Each stands for the id that the client has got in its place.
func (r *Regeneration) readTheirs(data []byte) {
	for _, m := range r.scan.Members() {
		value := data[m.Value.Start:m.Value.End]
		if !isID(m) || has(r.theirs, value) {
			continue
		}
		r.theirs = append(r.theirs, bytes.Clone(value))
		if len(r.theirs) > len(r.ids) { // an item that the client has not seen
			r.ids = append(r.ids, r.theirs[len(r.theirs)-1])
		}
	}
}

func isID(m body.Member) bool {
	return m.Want >= dResponseID && m.Want <= dCallID && m.Kind == body.String
}

func has(ids [][]byte, id []byte) bool {
	return slices.ContainsFunc(ids, func(one []byte) bool { return bytes.Equal(one, id) })
}

// compare takes an event of the engine that goes on, while it is behind. It returns how many bytes of the text the client has already, and -1
// if it has the whole event.
func (r *Regeneration) compare(key uint64, data []byte, text body.Member) (skip int64) {
	p := &r.parts[r.at]
	if key != p.key {
		r.broken = errOtherAnswer
		return -1
	}
	last := r.at == len(r.parts)-1
	if !p.isText {
		r.at++
		r.behind = !last
		return -1
	}
	size := text.Value.End - text.Value.Start
	skip = min(size, p.bytes-r.into)
	_, _ = r.said.Write(data[text.Value.Start : text.Value.Start+skip])
	if r.into += skip; r.into < p.bytes {
		return -1
	}
	if r.said.Sum64() != p.sum || skip < size && !last {
		r.broken = errOtherAnswer
		return -1
	}
	r.at++
	r.into, r.behind = 0, !last
	r.said.Reset()
	if skip == size {
		return -1
	}
	if _, scored := r.scan.Find(dLogprob); scored && skip > 0 {
		r.broken = errWithinToken
	}
	return skip
}

// note notes that the client gets the event that was scanned last, or the end of its text.
func (r *Regeneration) note(key uint64, e body.Event, text body.Member) {
	if m, ok := r.scan.Find(dNumber); ok && !r.follow {
		if n, err := strconv.ParseInt(string(e.Data[m.Value.Start:m.Value.End]), 10, 64); err == nil {
			r.number = n + 1
		}
	}
	if text.Want < 0 {
		r.form = deltaForm{}
		r.begin(part{key: key})
		return
	}
	if n := len(r.parts); n == 0 || r.parts[n-1].key != key {
		r.begin(part{key: key, isText: true})
	}
	if r.why == "" {
		r.addText(e.Data[text.Value.Start:text.Value.End])
	}
	if !r.follow {
		r.learn(e, text)
	}
}

func (r *Regeneration) begin(p part) {
	if r.why != "" {
		return
	}
	if len(r.parts) == maxParts {
		r.giveUp(Memory)
		return
	}
	r.endText()
	r.text.Reset()
	r.parts = append(r.parts, p)
}

func (r *Regeneration) endText() {
	if n := len(r.parts); n > 0 {
		r.parts[n-1].sum = r.text.Sum64()
	}
}

func (r *Regeneration) addText(text []byte) {
	_, _ = r.text.Write(text)
	r.parts[len(r.parts)-1].bytes += int64(len(text))
}

// rewrite makes the event of the engine that goes on into one of the first engine, without the first bytes of its text.
func (r *Regeneration) rewrite(e body.Event, text body.Member, skip int64) body.Event {
	var edits []edit
	if skip > 0 {
		edits = append(edits, edit{Span: body.Span{Start: text.Value.Start - skip, End: text.Value.Start}})
	}
	if m, ok := r.scan.Find(dNumber); ok {
		edits = append(edits, edit{m.Value, strconv.AppendInt(nil, r.number, 10)})
		r.number++
	}
	if m, ok := r.scan.Find(dCreated); ok && r.created != nil {
		edits = append(edits, edit{m.Value, r.created})
	}
	data := splice(e.Data, edits)
	for i, id := range r.theirs {
		if !bytes.Equal(id, r.ids[i]) {
			data = bytes.ReplaceAll(data, id, r.ids[i]) // quotes within texts are escaped
		}
	}
	before, after, ok := bytes.Cut(e.Raw, e.Data)
	if !ok {
		r.broken = errOtherForm // data of several lines
		return body.Event{}
	}
	r.out = append(append(append(r.out[:0], before...), data...), after...)
	return body.Event{Raw: r.out, Name: e.Name, Data: r.out[len(before) : len(before)+len(data)]}
}

// deltaForm is what successive events with text of one item have in common: all but the text and the number.
type deltaForm struct {
	name, before []byte // up to the text
	after        []byte // from the quote after the text to the number, or to the end
	end          []byte // after the number
	numbered     bool
}

// learn takes the form of an event with text.
func (r *Regeneration) learn(e body.Event, text body.Member) {
	f := deltaForm{name: bytes.Clone(e.Name), before: bytes.Clone(e.Data[:text.Value.Start]), after: bytes.Clone(e.Data[text.Value.End:])}
	if m, ok := r.scan.Find(dNumber); ok {
		if m.Value.Start < text.Value.End {
			return
		}
		f.numbered = true
		f.after, f.end = f.after[:m.Value.Start-text.Value.End], bytes.Clone(e.Data[m.Value.End:])
	}
	r.form = f
}

// quick is Event for an event of the first engine in the form of the one before. It returns false for any other.
func (r *Regeneration) quick(e body.Event) bool {
	f, data := &r.form, e.Data
	if f.before == nil || !bytes.HasPrefix(data, f.before) || !bytes.Equal(e.Name, f.name) {
		return false
	}
	from := len(f.before)
	to := from
	for to < len(data) && data[to] != '"' {
		if data[to] == '\\' {
			to++
		}
		to++
	}
	if to >= len(data) {
		return false
	}
	rest, ok := bytes.CutPrefix(data[to:], f.after)
	if f.numbered {
		digits := len(rest)
		rest = bytes.TrimLeft(rest, "0123456789")
		ok = ok && len(rest) < digits
	}
	if !ok || !bytes.Equal(rest, f.end) {
		return false
	}
	r.addText(data[from:to])
	if f.numbered {
		r.number++
	}
	return true
}
