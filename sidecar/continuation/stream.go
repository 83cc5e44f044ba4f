package continuation

import (
	"bytes"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Stream keeps what is needed to go on with one stream: the token ids of the prompt, and of the text that was sent. Its methods are for
// the goroutine that relays the stream.
//
// An event without text is held back until one with text follows. Its ids end within a character: an engine that gets them as the end
// of its prompt would answer with the text of all of it.
type Stream struct {
	of  *Request
	mem *pd.BufferedBytes
	has int64 // bytes of mem

	why     Refusal // why the stream cannot go on; "" = it can
	prompt  []byte  // ids, separated by commas
	tokens  int64   // in prompt
	sent    []byte  // ids that the client has the text of, each after a comma
	count   int64   // in sent
	chunks  []chunk // of those in sent and held, which came at once
	last    int     // where the last one begins
	several bool    // the last event had several ids, of which the last one may end within a character

	held    []byte // events that wait for their text
	heldIDs []byte
	heldN   int64

	form form // of an event with a token

	id, created []byte     // of the first engine's answer
	recent      recentText // if stop strings are looked for
	mute        []byte     // then: the last ids that had no text, each once and after a comma
	scored      []byte     // the data of the last event that was sent, if the client asked for log probabilities
	plain       bool       // an event of chat had content, so what follows is content too
	sparse      bool       // events of chat without text have no delta
	parsed      bool       // the engine parses the text of chat
	calls       [][]byte   // then: the ids of the calls of tools, with quotes
	finished    bool       // the finish reason was sent
	counted     bool       // the event with the usage was sent
	out         []byte     // of Event

	moves    int
	follow   bool  // the events are those of another engine than the first
	offset   int64 // what its offsets of log probabilities lack, in characters
	swallows bool  // only the usage of the leg is needed, and the fingerprint of its engine
	search   stopSearch
	stopped  *stopped // a stop string was found, and its event is not sent
	broken   error    // why no more of the answer may be sent
	asked    inquiry
	cached   int64 // tokens of the prompt that were cached, as the first engine says; -1 = not known
	scan     body.Scanner
}

// NewStream makes the Stream of the answer to a request. The ids that it keeps are counted in mem. Close ends it.
func NewStream(of *Request, mem *pd.BufferedBytes) *Stream {
	s := &Stream{of: of, mem: mem, cached: -1, parsed: of.tools}
	if n := int64(len(of.whole)); mem.Take(n) {
		s.has = n
	} else {
		of.whole = nil
	}
	return s
}

// Close ends the stream.
func (s *Stream) Close() {
	s.mem.Release(s.has)
	s.has, s.prompt, s.sent, s.of.whole = 0, nil, nil, nil
	s.giveUp(Unreadable)
}

// SetCached says how many tokens of the prompt were cached.
func (s *Stream) SetCached(tokens int64) { s.cached = tokens }

// Member is what a leg needs in its body so that its answer can go on elsewhere, with a comma; nil if the client has asked for it.
func (r *Request) Member() []byte {
	if r.wants {
		return nil
	}
	return idsMember
}

var idsMember = []byte(`"return_token_ids":true,`)

// Opens reports whether an event of chat begins a stream without a token.
func Opens(e body.Event) bool { return bytes.Contains(e.Data, roleMark) }

// The marks of vLLM's events. Quotes in texts are escaped, so no text contains them.
var (
	idsMark     = []byte(`"token_ids":`)
	promptMark  = []byte(`"prompt_token_ids":[`)
	textMark    = []byte(`"text":"`)
	emptyText   = []byte(`"text":""`)
	noDelta     = []byte(`"delta":{}`)
	emptyDelta  = []byte(`"delta":{"content":""}`)
	contentMark = []byte(`"delta":{"content":"`)
	callsMark   = []byte(`"tool_calls":[`)
	idMark      = []byte(`"id":"`)
	reasonMark  = []byte(`"reasoning":"`)
	reasonDelta = []byte(`"delta":{"reasoning":"`)
	roleMark    = []byte(`"delta":{"role":`)
	finishMark  = []byte(`"finish_reason":"`)
	noChoices   = []byte(`"choices":[]`)
	null        = []byte("null")
	comma       = []byte{','}
)

const (
	dataStart = "data: "
	dataEnd   = "\n\n"
)

// giveUp notes that the stream cannot go on elsewhere. Its events are stripped all the same.
func (s *Stream) giveUp(why Refusal) {
	if s.why == "" {
		s.why = why
	}
}

// Event takes the next event, and returns what the client gets now: nothing, the event, or held events before it. It is valid until the
// next call.
func (s *Stream) Event(e body.Event) body.Event {
	if out, ok := s.quick(e); ok {
		return out
	}
	switch {
	case s.broken != nil || s.stopped != nil && !s.swallows: // the leg is not yet ended
		return body.Event{}
	case e.Done():
		return s.release(e)
	case len(e.Raw) != len(dataStart)+len(e.Data)+len(dataEnd) || !bytes.HasPrefix(e.Raw, []byte(dataStart)):
		if len(e.Data) > 0 {
			s.giveUp(Unreadable)
		}
		return s.release(e)
	}
	data := e.Data
	if s.follow {
		var ok bool
		if data, ok = s.rewrite(data); !ok {
			return body.Event{}
		}
	} else if s.id == nil {
		s.readFirst(data)
	}
	return s.keep(data)
}

// keep keeps the ids of an event, and strips them if the client has not asked for them.
func (s *Stream) keep(data []byte) body.Event {
	cuts := cutList{}
	if s.prompt == nil {
		if at := bytes.Index(data, promptMark); at >= 0 {
			cuts = s.takePrompt(data, at)
		}
	}
	ids, at := idsOf(data)
	if ids != nil && !s.of.wants {
		if cuts.n == 0 && len(ids) > 0 && (s.form.before == nil || s.parsed) && !s.of.scores && !bytes.Contains(data, finishMark) {
			s.learn(data, at+1, len(ids))
		}
		cuts.add(at, at+len(ids)+len("[]"))
	}
	if s.of.wants {
		cuts = cutList{}
	}
	s.finished = s.finished || bytes.Contains(data, finishMark)
	switch {
	case len(ids) == 0:
		s.withoutIDs(data)
	case s.why == Parsed && s.isEmpty(data):
		return body.Event{}
	case s.why != "":
	case s.isParsed(data) && s.of.scores && !s.finished && s.scoresPart(data):
		s.hold(ids, data, cuts)
		return body.Event{}
	case s.parsed:
		s.commit(ids, data)
		if s.isEmpty(data) {
			return body.Event{}
		}
	case s.text(data):
		if s.of.stops != nil {
			s.recent.add(s.of.stops, s.textOf(data))
		}
		s.commit(ids, data)
	default:
		s.hold(ids, data, cuts)
		return body.Event{}
	}
	return s.release(s.event(data, cuts))
}

// isEmpty reports whether an engine that parses its text has sent an event of chat only because of the ids.
func (s *Stream) isEmpty(data []byte) bool {
	return !s.finished && !s.of.wants && !s.of.scores && bytes.Contains(data, noDelta)
}

// isParsed reports whether the engine parses the text: then it has sent all that is known of the event's ids, also within a character.
func (s *Stream) isParsed(data []byte) bool {
	if s.of.api != pd.APIChat {
		return false
	}
	calls := bytes.Index(data, callsMark)
	s.parsed = s.parsed || calls >= 0 || bytes.Contains(data, reasonMark)
	if calls >= 0 && bytes.Contains(data[calls:], idMark) {
		s.noteCalls(data)
	}
	return s.parsed
}

// tokenTable finds the texts of the tokens that have log probabilities in an event of chat.
var tokenTable = body.NewTable(body.Want{Path: "choices.*.logprobs.content.*.token"})

// scoresPart reports whether the log probabilities of an event end within a character: the next ones, of another engine, would not have the
// character then.
func (s *Stream) scoresPart(data []byte) bool {
	if s.scan.Scan(tokenTable, body.Limits{}, data) != nil {
		return false
	}
	m, ok := s.scan.Find(0)
	return ok && m.Value.End-m.Value.Start == int64(len(`""`))
}

// hold keeps an event back whose text is not complete. An engine that parses the text of chat sends one without a delta only because it
// was asked for ids: the client does not get it, unless it has asked for them too, or for log probabilities.
func (s *Stream) hold(ids, data []byte, cuts cutList) {
	n := int64(bytes.Count(ids, comma)) + 1
	s.noteChunk(n)
	s.heldIDs = append(append(s.heldIDs, ','), ids...)
	s.heldN += n
	if s.of.wants || s.of.scores || !bytes.Contains(data, noDelta) {
		s.held = s.appendEvent(s.held, data, cuts)
	}
}

// withoutIDs takes an event without ids: it opens the stream, or has the usage, or ends it. Any other may have text whose ids are not
// known.
func (s *Stream) withoutIDs(data []byte) {
	switch {
	case bytes.Contains(data, noChoices):
		s.counted = true
	case !s.finished && !bytes.Contains(data, roleMark):
		s.giveUp(Unreadable)
	}
}

// text reports whether all text of an event's ids is out with it: there is some, or it is the last event with text.
func (s *Stream) text(data []byte) bool {
	if s.of.api == pd.APICompletions {
		return s.finished || !bytes.Contains(data, emptyText)
	}
	switch {
	case bytes.Contains(data, contentMark):
		if !s.plain {
			s.plain = true
			s.forget()
		}
	case bytes.Contains(data, noDelta): // an engine that may parse has parsed no text
		s.sparse = true
		return s.finished
	case !s.finished:
		s.giveUp(Parsed)
		return true
	}
	return s.finished || !bytes.Contains(data, emptyDelta)
}

// textOf returns the text of an event as JSON has it, without quotes.
func (s *Stream) textOf(data []byte) []byte {
	from, to := s.textAt(data)
	return data[from:to]
}

// textAt returns where the text of an event is, without quotes.
func (s *Stream) textAt(data []byte) (from, to int) {
	mark := textMark
	if s.of.api == pd.APIChat {
		mark = contentMark
	}
	at := bytes.Index(data, mark)
	if at < 0 && s.parsed {
		mark = reasonDelta
		at = bytes.Index(data, mark)
	}
	if at < 0 {
		return 0, 0
	}
	from = at + len(mark)
	for to = from; to < len(data) && data[to] != '"'; to++ {
		if data[to] == '\\' {
			to++
		}
	}
	return from, min(to, len(data))
}

// commit notes that the client gets the text of the held ids, and of some more.
func (s *Stream) commit(ids, data []byte) {
	if s.why != "" || !s.grow(len(s.heldIDs)+len(ids)+1) {
		return
	}
	s.noteMute()
	n := int64(bytes.Count(ids, comma)) + 1
	if s.noteChunk(n); s.why != "" {
		return
	}
	s.sent = append(append(append(s.sent, s.heldIDs...), ','), ids...)
	s.count += s.heldN + n
	s.last = bytes.LastIndexByte(s.sent, ',')
	s.several = bytes.IndexByte(ids, ',') >= 0
	s.asked = inquiry{}
	s.heldIDs, s.heldN = s.heldIDs[:0], 0
	if s.of.scores {
		s.scored = append(s.scored[:0], data...)
	}
}

// forget drops what only a stream needs whose text is parsed.
func (s *Stream) forget() {
	n := int64(len(s.of.whole) + chunkBytes*len(s.chunks))
	s.mem.Release(n)
	s.has -= n
	s.of.whole, s.chunks = nil, nil
}

// firstSent is the first size of the ids that were sent (bytes): enough for some hundred ids.
const firstSent = 1 << 10

// grow makes space for n more bytes of ids that were sent. It returns false if they must not be kept.
func (s *Stream) grow(n int) bool {
	if len(s.sent)+n <= cap(s.sent) {
		return true
	}
	size := max(firstSent, 2*cap(s.sent), len(s.sent)+n)
	if !s.take(int64(size - cap(s.sent))) {
		return false
	}
	s.sent = append(make([]byte, 0, size), s.sent...)
	return true
}

// take counts bytes that are kept.
func (s *Stream) take(n int64) bool {
	if !s.mem.Take(n) {
		s.giveUp(Memory)
		s.dropAll()
		return false
	}
	s.has += n
	return true
}

// dropAll drops what only a stream needs that can go on.
func (s *Stream) dropAll() {
	s.mem.Release(s.has)
	s.has, s.prompt, s.sent, s.of.whole, s.chunks = 0, []byte{}, nil, nil, nil
}

// takePrompt keeps the ids of the prompt, which come with the first event, at an index of its data.
func (s *Stream) takePrompt(data []byte, at int) (cuts cutList) {
	from := at + len(promptMark)
	end := bytes.IndexByte(data[from:], ']')
	if end < 0 {
		s.giveUp(Unreadable)
		return cuts
	}
	ids := data[from : from+end]
	cuts.add(from-1, from+end+1)
	if s.why != "" || !s.take(int64(len(ids))) {
		s.prompt = []byte{}
		return cuts
	}
	s.prompt = append(make([]byte, 0, len(ids)), ids...)
	s.tokens = int64(bytes.Count(ids, comma))
	if len(ids) > 0 {
		s.tokens++
	}
	return cuts
}

// idsOf returns the ids of an event's tokens without brackets, and where the bracket before them is; nil if it has none.
func idsOf(data []byte) (ids []byte, at int) {
	at = bytes.LastIndex(data, idsMark) + len(idsMark)
	if at < len(idsMark)+1 || data[at-len(idsMark)-1] != ',' || at == len(data) || data[at] != '[' {
		return nil, 0
	}
	end := bytes.IndexByte(data[at:], ']')
	if end < 0 {
		return nil, 0
	}
	return data[at+1 : at+end], at
}

// cutList are the one or two values of an event that the client does not get: null takes their place.
type cutList struct {
	n  int
	at [2][2]int
}

func (c *cutList) add(from, to int) {
	c.at[c.n] = [2]int{from, to}
	c.n++
}

func (s *Stream) appendEvent(dst, data []byte, cuts cutList) []byte {
	dst = append(dst, dataStart...)
	from := 0
	if cuts.n == 2 && cuts.at[0][0] > cuts.at[1][0] {
		cuts.at[0], cuts.at[1] = cuts.at[1], cuts.at[0]
	}
	for _, c := range cuts.at[:cuts.n] {
		dst = append(append(dst, data[from:c[0]]...), null...)
		from = c[1]
	}
	return append(append(dst, data[from:]...), dataEnd...)
}

// event makes an event, after those that are held.
func (s *Stream) event(data []byte, cuts cutList) body.Event {
	s.out = s.appendEvent(append(s.out[:0], s.held...), data, cuts)
	begin := len(s.held) + len(dataStart)
	return body.Event{Raw: s.out, Data: s.out[begin : len(s.out)-len(dataEnd)]}
}

// release returns an event with those before it that were held. An event of Stream.event has them already.
func (s *Stream) release(e body.Event) body.Event {
	if len(s.held) == 0 {
		return e
	}
	if len(s.out) == 0 || len(e.Raw) == 0 || &e.Raw[0] != &s.out[0] {
		s.out = append(append(s.out[:0], s.held...), e.Raw...)
		e.Raw = s.out
	}
	s.held = s.held[:0]
	return e
}

// Held returns the events that are held, when no more follow.
func (s *Stream) Held() []byte {
	held := s.held
	s.held = nil
	return held
}
