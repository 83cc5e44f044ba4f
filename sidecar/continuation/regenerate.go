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

// Regeneration has a stream go on at another engine, which generates the whole answer again. It compares what that engine says with what the
// client has, sends none of it twice, and breaks the stream off if it differs. It is for streams that no engine can go on with from the middle:
// those of responses and messages, in which vLLM returns no token ids, and those of chat and completions that Read refuses.
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
	tokens  int64        // of chat and completions, of which the client has ids or log probabilities
	blank   int          // events of chat and completions since the last part that say nothing

	finished bool // the finish reason of chat or completions was sent
	counted  bool // the event with their usage was sent

	moves   int
	follow  bool         // the events are those of another engine than the first
	behind  bool         // the client has more than that engine has said
	at      int          // the part that the engine says next
	into    int64        // bytes of its text that the engine has said
	said    maphash.Hash // of those
	theirs  [][]byte     // the ids of that engine's answer, in the order of ids
	given   int64        // tokens of which that engine has sent ids or log probabilities
	blanks  int          // events of that engine that say nothing, which the client has had from the one before
	broken  error
	out     []byte // of Event
	scan    body.Scanner
	keyHash maphash.Hash

	// Of the event that was scanned last:
	pieces []piece
	calls  []toolCall
	scored int64 // tokens with ids or log probabilities
}

// piece is what an event says of one thing: text of one item, or something else. Events of responses and messages are one piece each.
type piece struct {
	key    uint64      // as part.key
	of     body.Member // which says it; the value of a text is without its quotes
	isText bool
	call   int // index of its tool call among those of the event; -1: it is of none
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
	gN
	gBestOf
	gBeam
	gPrompt
	gUsage
)

var regenerableTable = body.NewTable(
	body.Want{Path: "stream", Once: true},
	body.Want{Path: "temperature", Once: true},
	body.Want{Path: "seed", Once: true},
	body.Want{Path: "background", Once: true},
	body.Want{Path: "tools.*"},
	body.Want{Path: "tools.*.type"},
	body.Want{Path: "n", Once: true},
	body.Want{Path: "best_of", Once: true},
	body.Want{Path: "use_beam_search", Once: true},
	body.Want{Path: "prompt", Once: true},
	body.Want{Path: "stream_options.include_usage", Once: true},
)

// Regenerable returns why another engine may answer a request with another text, or must not answer it again; "" = it answers with the same.
// seeds says that two engines answer alike if the request has a seed.
func Regenerable(api pd.API, b *body.Body, seeds bool) Refusal {
	switch api {
	case pd.APIResponses, pd.APIMessages, pd.APIChat, pd.APICompletions:
	default:
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
	case (api == pd.APIChat || api == pd.APICompletions) && !oneChoice(api, r):
		return Choices
	case seeds && api != pd.APIMessages && seeded(r.value(gSeed)): // messages have none
		return ""
	}
	if t, err := strconv.ParseFloat(string(r.value(gTemperature)), 64); err != nil || t != 0 {
		return Sampled
	}
	return ""
}

// seeded reports whether the seed of a request is one. vLLM takes -1 for none.
func seeded(seed []byte) bool { return seed != nil && string(seed) != "-1" }

// oneChoice reports whether a request of chat or completions is for one choice of one prompt: events of several come in any order.
func oneChoice(api pd.API, r *reading) bool {
	beam, ok := r.flag(gBeam)
	if !ok || beam || r.number(gN, 1) != 1 || r.number(gBestOf, 1) != 1 {
		return false
	}
	if api == pd.APIChat {
		return true
	}
	prompt, _ := r.scan.Find(gPrompt)
	return prompt.Kind == body.String || prompt.Kind == body.Array && prompt.First == body.Number
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
	r.at, r.into, r.given, r.theirs, r.form = 0, 0, 0, nil, deltaForm{}
	r.blanks = r.blank
	r.said.Reset()
}

// Moves returns how often another engine has gone on.
func (r *Regeneration) Moves() int { return r.moves }

// Broken returns why no more of the answer may be sent; nil if there is no reason.
func (r *Regeneration) Broken() error { return r.broken }

// Held returns nothing: no event is held back.
func (r *Regeneration) Held() []byte { return nil }

// The members of an event, in the order of deltaTable: those of responses and messages, and from dChoices on those of chat and completions.
// Those up to dToolName say what an event of responses or messages is, and those from dResponseID to dCallID are ids that an engine makes up.
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
	dItemCallID
	dID
	dCallID
	dDelta
	dText
	dThinking
	dSignature
	dJSON
	dCreated
	dTime
	dNumber
	dLogprob
	dChoices
	dChoiceDelta
	dRole
	dReasoning
	dReasoningContent
	dContent
	dCompletion
	dCalls
	dCall
	dCallIndex
	dCallType
	dCallFunction
	dCallName
	dCallArguments
	dFinish
	dStop
	dTokenIDs
	dScores
	dScoredTokens
	dUsage
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
	body.Want{Path: "id"},
	body.Want{Path: "choices.*.delta.tool_calls.*.id"},
	body.Want{Path: "delta"},
	body.Want{Path: "delta.text"},
	body.Want{Path: "delta.thinking"},
	body.Want{Path: "delta.signature"},
	body.Want{Path: "delta.partial_json"},
	body.Want{Path: "response.created_at"},
	body.Want{Path: "created"},
	body.Want{Path: "sequence_number"},
	body.Want{Path: "logprobs.*"},
	body.Want{Path: "choices"},
	body.Want{Path: "choices.*.delta"},
	body.Want{Path: "choices.*.delta.role"},
	body.Want{Path: "choices.*.delta.reasoning"},
	body.Want{Path: "choices.*.delta.reasoning_content"},
	body.Want{Path: "choices.*.delta.content"},
	body.Want{Path: "choices.*.text"},
	body.Want{Path: "choices.*.delta.tool_calls"},
	body.Want{Path: "choices.*.delta.tool_calls.*"},
	body.Want{Path: "choices.*.delta.tool_calls.*.index"},
	body.Want{Path: "choices.*.delta.tool_calls.*.type"},
	body.Want{Path: "choices.*.delta.tool_calls.*.function"},
	body.Want{Path: "choices.*.delta.tool_calls.*.function.name"},
	body.Want{Path: "choices.*.delta.tool_calls.*.function.arguments"},
	body.Want{Path: "choices.*.finish_reason"},
	body.Want{Path: "choices.*.stop_reason"},
	body.Want{Path: "choices.*.token_ids"},
	body.Want{Path: "choices.*.logprobs.content"},
	body.Want{Path: "choices.*.logprobs.tokens"},
	body.Want{Path: "usage"},
)

var (
	errOtherAnswer = errors.New("the other engine answers with another text")
	errOtherForm   = errors.New("the other engine sends an event that cannot be read")
	errWithinToken = errors.New("the other engine's log probabilities or token ids are not those of the text that was sent")
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
	case string(e.Data) == doneData:
		if r.behind && !r.complete() {
			r.broken = errOtherAnswer
			return body.Event{}
		}
		return e
	case r.scan.Scan(deltaTable, body.Limits{}, e.Data) != nil || !r.read(e):
		r.giveUp(Unreadable)
		if r.follow {
			r.broken = errOtherForm
			return body.Event{}
		}
		return e
	}
	if !r.follow {
		r.readOwn(e.Data)
		r.note(e, 0, 0)
		return e
	}
	r.readTheirs(e.Data)
	had, skip := r.compare(e.Data)
	if r.broken != nil || r.repeats(had, skip) {
		return body.Event{}
	}
	r.note(e, had, skip)
	return r.rewrite(e, had, skip)
}

// read reads the pieces of the event that was scanned last. It returns false if the event has something that is not known.
func (r *Regeneration) read(e body.Event) bool {
	r.pieces, r.calls, r.scored = r.pieces[:0], r.calls[:0], 0
	if choices, ok := r.scan.Find(dChoices); ok {
		return r.readChoice(e.Data, choices)
	}
	text := r.textOf()
	r.pieces = append(r.pieces, piece{key: r.key(e.Data, e.Name, text.Want), of: text, isText: text.Want >= 0, call: -1})
	return true
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
		case (m.Want == dCreated || m.Want == dTime) && r.created == nil:
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
	return m.Want >= dResponseID && m.Want <= dCallID && m.Kind == body.String && m.Value.Len() > int64(len(`""`))
}

func has(ids [][]byte, id []byte) bool {
	return slices.ContainsFunc(ids, func(one []byte) bool { return bytes.Equal(one, id) })
}

// compare compares an event of the engine that goes on with what the client has, while that engine is behind. It returns how many pieces of
// the event the client has, and how many bytes of the text of the next one.
func (r *Regeneration) compare(data []byte) (had int, skip int64) {
	for ; had < len(r.pieces) && r.behind; had++ {
		if skip, whole := r.comparePiece(&r.pieces[had], data); !whole {
			return had, skip
		}
	}
	return had, 0
}

// comparePiece is compare for one piece. whole says that the client has all of it.
func (r *Regeneration) comparePiece(next *piece, data []byte) (skip int64, whole bool) {
	p := &r.parts[r.at]
	if next.key != p.key {
		r.broken = errOtherAnswer
		return 0, false
	}
	last := r.at == len(r.parts)-1
	if !p.isText {
		r.at++
		r.behind = !last
		return 0, true
	}
	text := next.of.Value
	skip = min(text.Len(), p.bytes-r.into)
	_, _ = r.said.Write(data[text.Start : text.Start+skip])
	if r.into += skip; r.into < p.bytes {
		return 0, true
	}
	if r.said.Sum64() != p.sum || skip < text.Len() && !last {
		r.broken = errOtherAnswer
		return 0, false
	}
	r.at++
	r.into, r.behind = 0, !last
	r.said.Reset()
	return skip, skip == text.Len()
}

// repeats reports whether the client gets nothing of an event of the engine that goes on, because it has all of its pieces. An event of which
// it has a part only breaks the stream off if its log probabilities or token ids cannot be cut with its text.
func (r *Regeneration) repeats(had int, skip int64) bool {
	before := r.given
	r.given += r.scored
	all, some := had == len(r.pieces), had > 0 || skip > 0
	_, scores := r.scan.Find(dLogprob)
	switch {
	case r.scored > 0 && r.given <= r.tokens && all:
		return true
	case r.scored > 0 && (before < r.tokens || some || r.behind):
		r.broken = errWithinToken
	case r.scored > 0:
	case len(r.pieces) == 0:
		if !r.behind && r.blanks > 0 {
			r.blanks--
			return true
		}
		return r.behind
	case all:
		return true
	case some && scores:
		r.broken = errWithinToken
	case some && r.pieces[0].of.Want == dRole: // vLLM sends it alone
		r.broken = errOtherForm
	}
	return r.broken != nil
}

// note notes that the client gets the event that was scanned last, without its first pieces, and without the first bytes of the next one's text.
func (r *Regeneration) note(e body.Event, had int, skip int64) {
	if m, ok := r.scan.Find(dNumber); ok && !r.follow {
		if n, err := strconv.ParseInt(string(e.Data[m.Value.Start:m.Value.End]), 10, 64); err == nil {
			r.number = n + 1
		}
	}
	r.tokens += r.scored
	if len(r.pieces) == 0 {
		if r.scored == 0 {
			r.blank++
		}
		return
	}
	r.blank, r.blanks, r.form = 0, 0, deltaForm{}
	for _, p := range r.pieces[had:] {
		r.notePiece(e.Data, p, skip)
		skip = 0
	}
	if p := r.pieces[0]; len(r.pieces) == 1 && p.isText && !r.follow && r.scored == 0 {
		r.learn(e, p.of)
	}
}

func (r *Regeneration) notePiece(data []byte, p piece, skip int64) {
	r.finished = r.finished || p.of.Want == dFinish
	r.counted = r.counted || p.of.Want == dUsage
	if !p.isText {
		r.begin(part{key: p.key})
		return
	}
	if n := len(r.parts); n == 0 || r.parts[n-1].key != p.key {
		r.begin(part{key: p.key, isText: true})
	}
	if r.why == "" {
		r.addText(data[p.of.Value.Start+skip : p.of.Value.End])
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

// rewrite makes the event of the engine that goes on into one of the first engine, without its first pieces, and without the first bytes of
// the next one's text.
func (r *Regeneration) rewrite(e body.Event, had int, skip int64) body.Event {
	edits := r.cuts(e.Data, had, skip)
	if m, ok := r.scan.Find(dNumber); ok {
		edits = append(edits, edit{m.Value, strconv.AppendInt(nil, r.number, 10)})
		r.number++
	}
	for _, want := range []int{dCreated, dTime} {
		if m, ok := r.scan.Find(want); ok && r.created != nil {
			edits = append(edits, edit{m.Value, r.created})
		}
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
	choice       bool // of chat or completions
}

// learn takes the form of an event with text.
func (r *Regeneration) learn(e body.Event, text body.Member) {
	f := deltaForm{name: bytes.Clone(e.Name), before: bytes.Clone(e.Data[:text.Value.Start]), after: bytes.Clone(e.Data[text.Value.End:]),
		choice: text.Want >= dChoices}
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
	if to >= len(data) || to == from && f.choice { // it says nothing
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
	r.blank = 0
	if f.numbered {
		r.number++
	}
	return true
}
