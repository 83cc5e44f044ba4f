package continuation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tandem-serving/tandem/pd/body"
)

// ParsePath is where vLLM parses the tokens of a chat's stream, if it was started with --enable-scale-out.
const ParsePath = "/v1/chat/completions/derender"

// Parsing has the engine that goes on with a stream of chat parse the tokens of its leg into reasoning, content and calls of tools. The
// events of the leg enter, which are those of a completion. They leave with a delta, as the engine's chat would have sent it.
//
// That engine keeps no state of the stream. Each question has all tokens so far, and how many came at once, so that its parser is in the
// state of the first engine's. One question may be about several events, and they leave as one.
type Parsing struct {
	head   []byte // of each question
	state  []byte // what the engine must know of the tokens before, as JSON
	count  int64  // of those tokens
	scores bool   // events have log probabilities, and leave one by one
	told   int64  // tokens of the question

	ids   []byte // of the events that were taken, each after a comma
	last  []byte // the data of the last one; nil: none is taken
	after []byte // events without tokens that came after them
	out   []byte // of Events
	ended bool   // the last one has the finish reason
	empty bool   // the last one has no tokens
	scan  body.Scanner
}

// Parsing returns how the events of the last leg are parsed; nil if they are text as it is.
func (s *Stream) Parsing() *Parsing {
	if !s.parses() || s.finished || s.of.whole == nil {
		return nil
	}
	head := bytes.Join([][]byte{[]byte(`{"stream":true,"prompt_token_ids":[`), s.prompt, []byte(`],"chat_request":`), s.of.whole, []byte(`,"stream_state":`)}, nil)
	return &Parsing{head: head, state: s.parserState(), count: s.count, scores: s.of.scores}
}

// parserState makes the state of a parser that has read what the client has.
func (s *Stream) parserState() []byte {
	state := append([]byte(`{"role_sent":true,"output_token_ids":[`), bytes.TrimPrefix(s.sent, comma)...)
	state = append(state, `],"output_chunk_lens":[`...)
	at := int64(0)
	one := func(n int64) {
		if at > 0 {
			state = append(state, ',')
		}
		state = strconv.AppendInt(state, n, 10)
		at += n
	}
	for _, c := range s.chunks {
		if c.at >= s.count {
			break // the client has not got it
		}
		for at < c.at {
			one(1)
		}
		one(c.n)
	}
	for at < s.count {
		one(1)
	}
	state = strconv.AppendBool(append(state, `],"tools_streamed":`...), len(s.calls) > 0)
	state = append(append(state, `,"last_tool_call_ids":[`...), bytes.Join(s.calls, comma)...)
	return append(state, "]}"...)
}

// parses reports whether the text is parsed. An engine that has read tokens and sent no delta for them has a parser.
func (s *Stream) parses() bool { return s.parsed || s.sparse && !s.plain }

// chunk is an event with several tokens.
type chunk struct{ at, n int64 } // the first one, and how many

// chunkBytes is what a chunk takes.
const chunkBytes = 16

// noteChunk notes how many tokens came at once, if the stream may be parsed.
func (s *Stream) noteChunk(n int64) {
	if n > 1 && s.of.whole != nil && s.take(chunkBytes) {
		s.chunks = append(s.chunks, chunk{s.count + s.heldN, n})
	}
}

// noteCalls keeps the ids of the calls of tools that begin in an event: a parser makes up others.
func (s *Stream) noteCalls(data []byte) {
	var event struct {
		Choices []struct{ Delta delta }
	}
	if json.Unmarshal(data, &event) != nil {
		s.giveUp(Unreadable)
		return
	}
	for _, choice := range event.Choices {
		for _, call := range choice.Delta.Calls {
			if call.ID == nil || call.Index < len(s.calls) {
				continue
			}
			id, err := json.Marshal(call.ID)
			if err != nil || call.Index != len(s.calls) || !s.take(int64(len(id))) {
				s.giveUp(Unreadable)
				return
			}
			s.calls = append(s.calls, id)
		}
	}
}

// Check makes a question without tokens, which an engine that can parse answers with 200.
func (p *Parsing) Check() []byte { return p.question(nil, false) }

func (p *Parsing) question(ids []byte, ended bool) []byte {
	q := append(append(bytes.Clone(p.head), p.state...), `,"generate_chunk":{"request_id":"tandem","choices":[`...)
	if ids != nil || ended {
		q = append(append(append(q, `{"index":0,"token_ids":[`...), bytes.TrimPrefix(ids, comma)...), ']')
		if ended {
			q = append(q, `,"finish_reason":"stop"`...)
		}
		q = append(q, '}')
	}
	return append(q, "]}}"...)
}

// Take takes the next event of the leg.
func (p *Parsing) Take(e body.Event) {
	if !bytes.HasPrefix(e.Raw, []byte(dataStart)) || e.Done() || e.Error() || p.scan.Scan(eventTable, body.Limits{}, e.Data) != nil {
		p.after = append(p.after, e.Raw...)
		return
	}
	m, ok := p.scan.Find(eIDs)
	if !ok || m.Kind != body.Array {
		p.after = append(p.after, e.Raw...)
		return
	}
	list := e.Data[m.Value.Start+1 : m.Value.End-1]
	if p.empty = len(list) == 0; !p.empty {
		p.ids = append(append(p.ids, ','), list...)
	}
	p.last = append(p.last[:0], e.Data...)
	finish, ok := p.scan.Find(eFinish)
	p.ended = ok && finish.Kind != body.Null
}

// Full reports whether the events that were taken must leave before the next one is taken.
func (p *Parsing) Full() bool { return p.scores && p.last != nil || len(p.after) > 0 }

// Question makes the body of a call of ParsePath about the events that were taken; nil if none has to be parsed.
func (p *Parsing) Question() []byte {
	if p.last == nil {
		return nil
	}
	ids := p.ids
	if p.stops() { // the engine's chat does not give its parser the text of the token that ends an answer
		ids = ids[:max(0, bytes.LastIndexByte(ids, ','))]
	}
	p.told = int64(bytes.Count(ids, comma))
	return p.question(append([]byte{}, ids...), p.ended)
}

// stops reports whether the last event ends an answer with a token that means its end.
func (p *Parsing) stops() bool {
	if !p.ended || p.empty || p.scan.Scan(eventTable, body.Limits{}, p.last) != nil {
		return false
	}
	m, _ := p.scan.Find(eFinish)
	return bytes.Equal(p.last[m.Value.Start:m.Value.End], stopReason)
}

var (
	stopReason  = []byte(`"stop"`)
	callsReason = []byte(`"tool_calls"`)
)

// delta is the part of a message that an event has, in the order in which vLLM writes it.
type delta struct {
	Content   *string `json:"content,omitempty"`
	Reasoning *string `json:"reasoning,omitempty"`
	Calls     []call  `json:"tool_calls,omitempty"`
}

// call is a part of a call of a tool.
type call struct {
	ID       *string `json:"id,omitempty"`
	Type     *string `json:"type,omitempty"`
	Index    int     `json:"index"`
	Function *struct {
		Name      *string `json:"name,omitempty"`
		Arguments *string `json:"arguments,omitempty"`
	} `json:"function,omitempty"`
}

// parsedAnswer is an answer of ParsePath.
type parsedAnswer struct {
	Chunk struct {
		Choices []struct{ Delta delta }
	}
	State json.RawMessage `json:"stream_state"`
}

// parsedState is what is read of the state that comes with it.
type parsedState struct {
	IDs   json.RawMessage `json:"output_token_ids"`
	Tools bool            `json:"tools_streamed"`
}

// ErrNoParser says that an engine answers for tokens with text that is not parsed.
var ErrNoParser = errors.New("the engine has no parser for tools or reasoning (--tool-call-parser, --reasoning-parser), and the first engine of this stream has one")

// Answer takes the answer to Question. The stream cannot go on at this engine if there is an error.
func (p *Parsing) Answer(answer []byte) error {
	var a parsedAnswer
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("reading the parsed tokens: %w", err)
	}
	var state parsedState
	if err := json.Unmarshal(a.State, &state); err != nil {
		return fmt.Errorf("reading the state of the parser: %w", err)
	}
	ids := bytes.Trim(state.IDs, "[] ")
	count := int64(bytes.Count(ids, comma))
	if len(ids) > 0 {
		count++
	}
	if count != p.count+p.told {
		return ErrNoParser
	}
	p.count, p.state = count, bytes.Clone(a.State)
	var made bytes.Buffer
	encoder := json.NewEncoder(&made)
	encoder.SetEscapeHTML(false)
	var parsed delta
	if len(a.Chunk.Choices) > 0 {
		parsed = a.Chunk.Choices[0].Delta
	}
	if err := encoder.Encode(parsed); err != nil {
		return fmt.Errorf("writing the parsed tokens: %w", err)
	}
	return p.leave(bytes.TrimSpace(made.Bytes()), state.Tools)
}

// leave makes the event of those that were taken.
func (p *Parsing) leave(parsed []byte, tools bool) error {
	if err := p.scan.Scan(eventTable, body.Limits{}, p.last); err != nil {
		return err // it was scanned before
	}
	choice, _ := p.scan.Find(eChoice)
	ids, _ := p.scan.Find(eIDs)
	edits := []edit{
		{body.Span{Start: choice.Value.Start + 1, End: choice.Value.Start + 1}, append(append([]byte(`"delta":`), parsed...), ',')},
		{ids.Value, append(append([]byte{'['}, bytes.TrimPrefix(p.ids, comma)...), ']')},
	}
	if finish, _ := p.scan.Find(eFinish); tools && bytes.Equal(p.last[finish.Value.Start:finish.Value.End], stopReason) {
		edits = append(edits, edit{finish.Value, callsReason})
	}
	p.out = append(append(append(p.out, dataStart...), splice(p.last, edits)...), dataEnd...)
	p.ids, p.last, p.ended = p.ids[:0], nil, false
	return nil
}

// Events returns what leaves now, in which there is nothing of events that have to be parsed yet.
func (p *Parsing) Events() []byte {
	if p.last == nil {
		p.out = append(p.out, p.after...)
		p.after = p.after[:0]
	}
	out := p.out
	p.out = nil
	return out
}
